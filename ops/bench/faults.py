"""Ways to make an engine fail from outside. The signals that `injected/sitecustomize.py` listens to make it fail from inside."""

import os
import signal
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

_INJECTED = Path(__file__).parent / "injected"


class FaultKind(Enum):
    """How an engine is made to fail."""

    KILL = "kill"
    """SIGKILL."""
    STOP = "stop"
    """SIGSTOP: it lives, and does nothing any more."""
    RAISE = "raise"
    """A pass raises an exception that says nothing about the device. The engine contains it and lives on."""
    DEVICE = "device"
    """A pass raises what a sticky CUDA error raises. The engine reports and ends itself."""
    EXIT = "exit"
    """The process exits, at any instruction."""

    @property
    def signal(self) -> int:
        """What to send to the engine."""
        match self:
            case FaultKind.KILL:
                return signal.SIGKILL
            case FaultKind.STOP:
                return signal.SIGSTOP
            case FaultKind.RAISE:
                return signal.SIGRTMIN + 1
            case FaultKind.DEVICE:
                return signal.SIGRTMIN + 2
            case FaultKind.EXIT:
                return signal.SIGRTMIN + 3

    @property
    def ends_the_engine(self) -> bool:
        """Whether another engine must come."""
        match self:
            case FaultKind.RAISE:
                return False
            case FaultKind.KILL | FaultKind.STOP | FaultKind.DEVICE | FaultKind.EXIT:
                return True


def environment(moments: Path) -> Mapping[str, str]:
    """Variables for a daemon whose engines shall obey the signals, and write down in `moments` when they did."""
    path = os.pathsep.join(filter(None, (str(_INJECTED), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "EXL3D_BENCH_MOMENTS": str(moments)}


def moment(moments: Path, engine: int, told: float) -> float | None:
    """When this engine did what it was told at `told`, in seconds since the epoch; None where nothing was asked of it, as by
    SIGKILL.

    An engine obeys only after the pass it is in. Until then it is as healthy as any, and nobody could notice anything.
    """
    if not moments.exists():
        return None
    lines = (line.split() for line in moments.read_text(encoding="ascii").splitlines())
    return next((float(t) for pid, t in lines if int(pid) == engine and float(t) >= told), None)


def inflict(kind: FaultKind, engine: int) -> None:
    """Make the engine with this process id fail."""
    os.kill(engine, kind.signal)
