"""The port between the engine's loop and whatever computes. The loop knows messages and steps; a backend knows a library.

Every method is called from the one thread that owns the backend. Methods only take note of what is asked; work happens in
`step`. What happened to requests is reported as wire events, in order, by the next `step`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

from daemon.core.errors import Exl3dError
from daemon.core.wire import (
    Answer,
    Durations,
    Event,
    FatalClass,
    Hello,
    Keep,
    Phase,
    Pool,
    Quote,
    Quoted,
    Statistics,
    Steer,
    Submit,
)


class EngineFailed(Exl3dError):
    """This process cannot go on: what `Fatal` will say. `kind` decides the exit code."""

    def __init__(self, kind: FatalClass, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class PrefillWatch(Protocol):
    """Told which request's prefill is running at this moment, so that a crash leaves its name behind."""

    def prefilling(self, request: int | None) -> None:
        """`request` begins; None: it came back."""
        ...


class LoadStage(Enum):
    """What loading is at, in words for whoever waits."""

    IMPORTING = "importing"
    EXTENSION = "importing exllamav3, compiling its extension where it did not come with it"
    LOADING = "loading"
    WARMING_UP = "warming up"
    BUILDING = "building"

    @property
    def phase(self) -> Phase:
        """Which patience applies. Compilers take minutes and report nothing."""
        match self:
            case LoadStage.EXTENSION | LoadStage.WARMING_UP:
                return Phase.BUILDING
            case LoadStage.IMPORTING | LoadStage.LOADING | LoadStage.BUILDING:
                return Phase.LOADING


LoadProgress: TypeAlias = Callable[[LoadStage, int, int], None]
"""Called with the stage of loading, steps done and steps in all."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one turn did."""

    phase: Phase
    pool: Pool
    durations: Durations = field(default_factory=Durations)
    events: list[Event] = field(default_factory=list[Event])
    answers: list[Answer] = field(default_factory=list[Answer])


class Backend(Protocol):
    """A loaded model that generates for several requests."""

    def hello(self, boot: str, pid: int) -> Hello:
        """What is loaded."""
        ...

    def submit(self, request: Submit) -> None:
        """Take a request. One that cannot be run is reported as `Failed`, never raised."""
        ...

    def cancel(self, request: int) -> None:
        """Forget a request and free its pages. Unknown ids are ignored: it may have ended a moment ago."""
        ...

    def suspend(self, request: int) -> None:
        """Set a request aside at once. Unknown ids are ignored."""
        ...

    def steer(self, steer: Steer) -> None:
        """Change prefill order and pace."""
        ...

    def keep(self, keep: Keep) -> None:
        """Evict the prefixes of these requests last. Unknown ids are ignored."""
        ...

    def quote(self, quote: Quote) -> Quoted:
        """What a prompt would cost now."""
        ...

    def probe(self, probe: int) -> None:
        """Prove that a token can be produced; a later step carries the answer."""
        ...

    def statistics(self, request: int) -> Statistics:
        """Totals since the start."""
        ...

    def busy(self) -> bool:
        """Whether `step` has anything to do or to report."""
        ...

    def pool(self) -> Pool:
        """The room now, after whatever commands have changed."""
        ...

    def in_flight(self) -> tuple[int, ...]:
        """The requests the next step computes for, newest last."""
        ...

    def step(self) -> StepResult:
        """One turn: prefill, decode, report. Contains faults; raises EngineFailed where this process is lost."""
        ...
