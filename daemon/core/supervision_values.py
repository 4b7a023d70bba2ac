"""The values of supervision: what an engine can be (states), what happens to it (events), what to do about it (effects).

The rules stand in `core/supervision.py`.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from daemon.core.faults_values import Label, Remedy, Verdict
from daemon.core.settings import EngineSettings, SupervisorSettings
from daemon.core.supervision_memory import Awaits, Cause, Doubt, History
from daemon.core.wire import FatalClass, Phase

QUIET = Verdict(Remedy.NONE, Label.BENIGN_NOISE)
"""Nothing is known about the device."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits, in seconds unless said."""

    load_stall: float
    step_stall: float
    """While generating."""
    term: float
    restarts: int
    """Restarts allowed within `window`."""
    window: float
    backoff: float
    backoff_limit: float
    kill: float = 20.0
    """How long a process may outlive SIGKILL before it counts as stuck."""
    calm: float = 120.0
    """An engine that spent this much time generating tokens ends the row of deaths. Time without requests does not count."""
    blind: float = 5.0
    """Observations further apart than this prove nothing: the observer itself did not run."""
    build_stall: float = 1800.0
    """While something is compiled, which reports nothing meanwhile."""
    prefill_stall: float = 60.0
    """For each 1024 tokens of a prefill step."""
    rebuilds: int = 3
    """Engines built smaller within `window`."""
    vram_wait: float = 0.0
    """How long the GPU memory of a dead engine may take to come back; 0 where nobody can tell how much is used."""
    doubt: float = 10.0
    """How long a serving engine that the watchdog holds for broken has to generate a token."""
    suspicion: float = 60.0
    """Evidence against the whole device explains deaths for this long."""
    hearing: float | None = None
    """How long an end that accuses requests waits for evidence that clears them, before they are told; one that accuses nobody is
    told at once. None: both are told when the next engine serves, since the requests have nowhere else to go.
    """
    engine: EngineSettings = field(default_factory=EngineSettings)
    """What the configuration asks for."""
    context: int = 32768
    """Longest prompt and answer of one request, in tokens: the cache where the configuration names no size."""

    @classmethod
    def of(cls, settings: SupervisorSettings) -> "Policy":
        """The policy that the configuration asks for. `host/supervisor.py` adds what it knows of engine and device."""
        return cls(
            load_stall=settings.load_stall_seconds,
            step_stall=settings.step_stall_seconds,
            term=settings.term_seconds,
            restarts=settings.restarts,
            window=settings.restart_window_minutes * 60,
            backoff=settings.backoff_seconds,
            backoff_limit=settings.backoff_limit_seconds,
            build_stall=settings.build_stall_seconds,
            prefill_stall=settings.prefill_stall_seconds,
            rebuilds=settings.rebuilds,
            vram_wait=settings.vram_wait_seconds,
        )


# --- states ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """What the progress page says. Any change of any of it is progress."""

    step: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    phase: Phase = Phase.STARTING
    prefilling: int | None = None
    """The request whose prefill runs in this step."""


class Rung(Enum):
    """How hard an engine is being stopped."""

    ASKED = "asked"
    TERMINATED = "terminated"
    KILLED = "killed"
    STUCK = "stuck"


class FailedKind(Enum):
    """Why no engine is started any more."""

    CONFIG = "config"
    """The configuration, the model or the installation is at fault."""
    BUDGET = "budget"
    """It died too often."""
    MEMORY = "memory"
    """It does not fit, however small it may be built."""
    DEVICE = "device"
    """The device or its driver needs what only a person can do."""


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
class ThenRebuild:
    """After this engine comes one that needs less memory."""

    why: str


@dataclass(frozen=True, slots=True)
class ThenFail:
    """After this engine a person must act."""

    why: str
    kind: FailedKind = FailedKind.CONFIG


After: TypeAlias = ThenStop | ThenRestart | ThenRebuild | ThenFail


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
    served: float = 0.0
    """Seconds in which tokens were generated."""
    doubt: Doubt | None = None


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
    cause: Cause = Cause.ASKED
    served: bool = False
    """Whether it had requests."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """No process; the next one starts at `until`, or sooner if what is awaited is there."""

    until: float
    why: str
    awaits: Awaits = Awaits.TIME
    counted: bool = True
    """Whether the restart is taken from the budget of restarts."""


@dataclass(frozen=True, slots=True)
class Failed:
    """No process, and none will be started before a person asks for it."""

    kind: FailedKind
    why: str


Mode: TypeAlias = Stopped | Starting | Ready | Draining | Stopping | Backoff | Failed


@dataclass(frozen=True, slots=True)
class Machine:
    """The supervisor's state for one engine."""

    mode: Mode = Stopped()
    history: History = field(default_factory=History)


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
