"""What happens to an engine, and what is to be done about it: the events and effects of `core/supervision.py`. Values only."""

from dataclasses import dataclass
from typing import TypeAlias

from daemon.core.faults_values import Label, Remedy, Verdict
from daemon.core.settings import EngineSettings
from daemon.core.supervision_values import FailedKind, Machine, Mark
from daemon.core.wire import FatalClass

QUIET = Verdict(Remedy.NONE, Label.BENIGN_NOISE)
"""Nothing is known about the device."""

# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartAsked:
    """The daemon or a person wants an engine."""

    t: float


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The daemon stops. Running streams get `drain` seconds."""

    t: float
    drain: float


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """A person wants a fresh engine."""

    t: float
    why: str


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The system could not start the process."""

    t: float
    boot: int
    detail: str
    luck: float = 0.5


@dataclass(frozen=True, slots=True)
class Progressed:
    """A `Loading` report."""

    t: float
    boot: int
    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Greeted:
    """A `Hello` that the front accepts."""

    t: float
    boot: int
    room: int | None = None
    """Tokens of cache."""


@dataclass(frozen=True, slots=True)
class Condemned:
    """A `Fatal` report: the engine ends itself. `verdict` is what its exception says about the device."""

    t: float
    boot: int
    kind: FatalClass
    detail: str
    verdict: Verdict = QUIET


@dataclass(frozen=True, slots=True)
class Rejected:
    """A `Hello` that the front cannot accept: no engine of this kind ever will do."""

    t: float
    boot: int
    detail: str


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The link ended or carried garbage, or the engine does not read it any more."""

    t: float
    boot: int
    detail: str | None = None
    """What was wrong with it; None for a plain end of file."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The process is gone, reaped. `code` is negative for a signal; `luck` in 0..1 spreads restarts."""

    t: float
    boot: int
    code: int
    luck: float = 0.5


@dataclass(frozen=True, slots=True)
class Observed:
    """A look at the progress page. `outstanding`: work was given to the engine and has not come back."""

    t: float
    boot: int
    mark: Mark | None
    outstanding: bool


@dataclass(frozen=True, slots=True)
class Judged:
    """The watchdog's verdict on evidence made at `t`. `boot` is the engine it speaks of; None: the machine."""

    t: float
    boot: int | None
    remedy: Remedy
    label: Label
    words: str
    """What was seen."""


@dataclass(frozen=True, slots=True)
class Vacated:
    """No engine is there, and no more GPU memory is used than before the last one."""

    t: float


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""

    t: float


EngineEvent: TypeAlias = SpawnFailed | Progressed | Greeted | Condemned | Rejected | LinkLost | Exited | Observed
"""Events about one engine, named by its boot."""

Event: TypeAlias = StartAsked | StopAsked | RestartAsked | Ticked | Judged | Vacated | EngineEvent


# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a process; it answers to `boot` and is told `smaller` where the configuration did not fit."""

    boot: int
    smaller: EngineSettings | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """Send `Drain`."""

    boot: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM to the process group."""

    boot: int


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to the process group."""

    boot: int


@dataclass(frozen=True, slots=True)
class Serve:
    """Give requests to this engine."""

    boot: int


@dataclass(frozen=True, slots=True)
class Interrupt:
    """The engine can do no more work; its requests wait for the next one."""

    why: str


@dataclass(frozen=True, slots=True)
class Fell:
    """Tell who had requests how the last engine ended. Comes before `Serve` and `GiveUp`."""

    boot: int
    why: str
    accuses: bool


@dataclass(frozen=True, slots=True)
class Stuck:
    """The process outlives SIGKILL: say so, with what the kernel tells about it."""

    boot: int


@dataclass(frozen=True, slots=True)
class OpenIncident:
    """Write this down before anything else of the same decision is done."""

    boot: int | None
    label: Label
    remedy: Remedy
    seen: str
    decided: str


@dataclass(frozen=True, slots=True)
class GrowIncident:
    """More is known about the open incident."""

    seen: str


@dataclass(frozen=True, slots=True)
class CloseIncident:
    """The open incident is over."""

    outcome: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No engine will come; waiting requests end with this reason."""

    why: str
    kind: FailedKind


@dataclass(frozen=True, slots=True)
class Finish:
    """The engine is gone and none is wanted."""


Note: TypeAlias = OpenIncident | GrowIncident | CloseIncident
Effect: TypeAlias = Spawn | Ask | Terminate | Kill | Stuck | Serve | Interrupt | Fell | GiveUp | Finish | Note
Decision: TypeAlias = tuple[Machine, tuple[Effect, ...]]
