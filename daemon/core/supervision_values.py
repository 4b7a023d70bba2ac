"""The values of supervision: what an engine can be (states), what happens to it (events), what to do about it (effects).

The rules stand in `core/supervision.py`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from daemon.core.settings import SupervisorSettings
from daemon.core.wire import FatalClass


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits, in seconds unless said."""

    load_stall: float
    step_stall: float
    term: float
    restarts: int
    """Restarts allowed within `window`."""
    window: float
    backoff: float
    backoff_limit: float
    kill: float = 20.0
    """How long a process may outlive SIGKILL before it counts as stuck."""
    calm: float = 120.0
    """An engine that served tokens this long after its start ends the row of deaths."""
    blind: float = 5.0
    """Observations further apart than this prove nothing: the observer itself did not run."""

    @classmethod
    def of(cls, settings: SupervisorSettings) -> "Policy":
        """The policy that the configuration asks for."""
        return cls(
            load_stall=settings.load_stall_seconds,
            step_stall=settings.step_stall_seconds,
            term=settings.term_seconds,
            restarts=settings.restarts,
            window=settings.restart_window_minutes * 60,
            backoff=settings.backoff_seconds,
            backoff_limit=settings.backoff_limit_seconds,
        )


# --- states ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """Counters of the progress page. Any change of any of them is progress."""

    step: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    phase: str = ""


class Rung(Enum):
    """How hard an engine is being stopped."""

    ASKED = "asked"
    TERMINATED = "terminated"
    KILLED = "killed"
    STUCK = "stuck"


class FailedKind(Enum):
    """Why no engine is started any more."""

    CONFIG = "config"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class ThenStop:
    """After this engine there is none."""


@dataclass(frozen=True, slots=True)
class ThenRestart:
    """After this engine comes another. `why` is None where only the exit code will tell."""

    why: str | None
    counted: bool = True
    """Whether the restart is taken from the budget; one that a person asked for is not."""


@dataclass(frozen=True, slots=True)
class ThenFail:
    """After this engine a person must act."""

    why: str


After: TypeAlias = ThenStop | ThenRestart | ThenFail


@dataclass(frozen=True, slots=True)
class Stopped:
    """No engine, and none is wanted."""


@dataclass(frozen=True, slots=True)
class Starting:
    """A process exists and loads."""

    boot: int
    since: float
    advanced: float
    """When it last made progress."""
    observed: float
    mark: Mark = Mark()
    stage: str = ""
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """Requests are taken."""

    boot: int
    since: float
    advanced: float
    """When a counter last moved, or when there was last nothing to do."""
    observed: float
    mark: Mark = Mark()


@dataclass(frozen=True, slots=True)
class Draining:
    """The daemon stops: running streams may finish until `until`."""

    boot: int
    until: float


@dataclass(frozen=True, slots=True)
class Stopping:
    """The process is being ended."""

    boot: int
    rung: Rung
    until: float
    """When the next rung is due."""
    after: After


@dataclass(frozen=True, slots=True)
class Backoff:
    """No process; the next one starts at `until`."""

    until: float
    why: str


@dataclass(frozen=True, slots=True)
class Failed:
    """No process, and none will be started before a person asks for it."""

    kind: FailedKind
    why: str


Mode: TypeAlias = Stopped | Starting | Ready | Draining | Stopping | Backoff | Failed


@dataclass(frozen=True, slots=True)
class History:
    """What outlives an engine."""

    boots: int = 0
    """Engines spawned since the daemon started; also the name of the newest."""
    restarts: tuple[float, ...] = ()
    """Times of the restarts within the window."""
    row: int = 0
    """Deaths since tokens were last served for a while."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The supervisor's state for one engine."""

    mode: Mode = Stopped()
    history: History = History()


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


@dataclass(frozen=True, slots=True)
class Condemned:
    """A `Fatal` report: the engine ends itself."""

    t: float
    boot: int
    kind: FatalClass
    detail: str


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
class Ticked:
    """Time has passed."""

    t: float


EngineEvent: TypeAlias = SpawnFailed | Progressed | Greeted | Condemned | Rejected | LinkLost | Exited | Observed
"""Events about one engine, named by its boot."""

Event: TypeAlias = StartAsked | StopAsked | RestartAsked | Ticked | EngineEvent


# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a process; it answers to `boot`."""

    boot: int


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
class GiveUp:
    """No engine will come; waiting requests end with this reason."""

    why: str
    kind: FailedKind


@dataclass(frozen=True, slots=True)
class Finish:
    """The engine is gone and none is wanted."""


Effect: TypeAlias = Spawn | Ask | Terminate | Kill | Serve | Interrupt | GiveUp | Finish
Decision: TypeAlias = tuple[Machine, tuple[Effect, ...]]
