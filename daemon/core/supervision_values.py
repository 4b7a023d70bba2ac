"""What an engine can be, and the policy that decides about it. What happens to engines is in `core/supervision_events.py`, the
rules stand in `core/supervision.py`.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from daemon.core.settings import EngineSettings, SupervisorSettings
from daemon.core.supervision_memory import Awaits, Cause, Doubt, History
from daemon.core.wire import Phase


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
