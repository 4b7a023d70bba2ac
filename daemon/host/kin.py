"""Which processes and cards are ours, so that the watchdog leaves other people's faults alone. Reads /proc, in a thread."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from daemon.core.faults import Ours, Platform
from daemon.core.gpu import GpuReading

MEMORY_SECONDS = 120.0
"""How long an ended process is still ours: its faults may be told late."""
_PROC = Path("/proc")
_DEV = Path("/dev")
_INITIAL_NAMESPACE = 0xEFFFFFFC
"""Inode of the PID namespace in which the kernel counts when it prints a pid (PROC_PID_INIT_INO)."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where this daemon runs."""

    platform: Platform
    kernel_pids: bool
    """Whether the pids we see are those the kernel prints: not inside a container."""
    gpu_nodes: bool
    """Whether there is a device through which an NVIDIA driver could be reached."""


def surroundings(proc: Path = _PROC, dev: Path = _DEV) -> Surroundings:
    """Look. Reads files."""
    platform = Platform.NATIVE
    with contextlib.suppress(OSError):
        release = (proc / "sys/kernel/osrelease").read_text(encoding="utf-8", errors="replace").lower()
        if "microsoft" in release or (dev / "dxg").exists():
            platform = Platform.WSL
    kernel_pids = False
    with contextlib.suppress(OSError):
        kernel_pids = (proc / "self/ns/pid").stat().st_ino == _INITIAL_NAMESPACE
    return Surroundings(platform, kernel_pids, any((dev / node).exists() for node in ("dxg", "nvidiactl")))


def relatives(pid: int, proc: Path = _PROC) -> frozenset[int]:
    """A process, its threads, and all that it started and that still hangs on it. Empty where it is gone."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        try:
            threads = [int(task.name) for task in (proc / str(one) / "task").iterdir()]
        except OSError:
            continue
        found.update((one, *threads))
        for thread in threads:
            with contextlib.suppress(OSError):
                children = (proc / str(one) / "task" / str(thread) / "children").read_text(encoding="ascii").split()
                waiting.extend(int(child) for child in children if int(child) not in found)
    return frozenset(found)


@dataclass(slots=True)
class _Member:
    """One engine process and what it started."""

    pid: int
    pids: set[int] = field(default_factory=set)
    gone: float | None = None


class Kin:
    """See the module. Members are named by the boot they are."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._surroundings = Surroundings(Platform.NATIVE, kernel_pids=False, gpu_nodes=False)
        self._members: dict[str, _Member] = {}
        self._gpus: frozenset[str] | None = None

    def settle(self, surroundings: Surroundings) -> None:
        """From now on it is known where we are."""
        self._surroundings = surroundings

    def joined(self, name: str, pid: int) -> None:
        """A process was started."""
        self._members[name] = _Member(pid, {pid})

    def left(self, name: str) -> None:
        """It ended."""
        member = self._members.get(name)
        if member is not None and member.gone is None:
            member.gone = self._clock()

    async def look(self) -> None:
        """See what the living have started."""
        living = {name: member.pid for name, member in self._members.items() if member.gone is None}
        found = await asyncio.to_thread(lambda: {name: relatives(pid) for name, pid in living.items()})
        for name, pids in found.items():
            if name in self._members:
                self._members[name].pids |= pids
        now = self._clock()
        for name in [n for n, member in self._members.items() if member.gone is not None and now - member.gone > MEMORY_SECONDS]:
            del self._members[name]

    def on_gpus(self, readings: Iterable[GpuReading]) -> None:
        """Where NVML names the processes on each GPU, it tells which cards are ours."""
        ours = self._all()
        named = {
            gpu.pci for gpu in readings if gpu.processes is not None and any(process.pid in ours for process in gpu.processes)
        }
        if named:
            self._gpus = (self._gpus or frozenset()) | named

    def whose(self, pid: int) -> str | None:
        """The member that a pid belongs to, the latest first."""
        return next((name for name, member in reversed(self._members.items()) if pid in member.pids), None)

    def ours(self) -> Ours:
        """For the rules. In a container no pid is ours: the kernel counts otherwise."""
        where = self._surroundings
        return Ours(pids=self._all() if where.kernel_pids else frozenset(), gpus=self._gpus, platform=where.platform)

    @property
    def near_gpu(self) -> bool:
        """Whether there may be an NVIDIA card at all."""
        return self._surroundings.gpu_nodes

    @property
    def gpus(self) -> frozenset[str] | None:
        """PCI addresses of the cards that our processes were seen on; None: not known."""
        return self._gpus

    def _all(self) -> frozenset[int]:
        return frozenset({os.getpid()}.union(*(member.pids for member in self._members.values())))
