"""What fair admission is told and what it has done: events and effects. Times inside them are CLOCK_MONOTONIC seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from daemon.core.admission_values import Admission, Hint
from daemon.core.requests import Priority

# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """A new request asks to be accepted."""

    t: float
    id: int
    owner: str
    priority: Priority
    prompt: int
    """Tokens."""
    answer: int
    """Most tokens that may be generated."""
    hints: tuple[Hint, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """A request ended, was cancelled, or timed out, wherever it was."""

    t: float
    id: int


@dataclass(frozen=True, slots=True)
class Returned:
    """An engine set a request aside, or lost it alone; it must be given again."""

    t: float
    id: int


@dataclass(frozen=True, slots=True)
class EngineUp:
    """An engine takes requests."""

    t: float
    engine: int
    slots: int
    pages: int
    page: int
    interval: int = 0


@dataclass(frozen=True, slots=True)
class EngineDown:
    """An engine is gone; what it held rests until `Understood`."""

    t: float
    engine: int


@dataclass(frozen=True, slots=True)
class Understood:
    """It is known why an engine went, and suspects were isolated: what it held may be given again. `lost`: none will come."""

    t: float
    engine: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Began:
    """A request holds its pages."""

    id: int
    cached: int
    """Tokens found in the prefix cache."""
    extends: int | None = None
    """The request whose sequence it goes on with, if that is known."""


@dataclass(frozen=True, slots=True)
class Waits:
    """A request waits inside its engine for pages, at its beginning or to grow."""

    id: int
    pages: int
    """All it needs, those included that it gave up to ask for more."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """What an engine said of its room after a step, and which requests of it have got pages or wait for them."""

    t: float
    engine: int
    referenced: int
    pending: int
    began: tuple[Began, ...] = ()
    waits: tuple[Waits, ...] = ()


@dataclass(frozen=True, slots=True)
class Quoted:
    """An engine's answer to `AskQuote`."""

    t: float
    id: int
    engine: int
    pages: int
    cached: int


@dataclass(frozen=True, slots=True)
class Served:
    """Tokens generated since the last time, by request. Told before another event; has no effects of its own."""

    t: float
    tokens: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Isolated:
    """A request that no engine holds may have killed one: it must run alone."""

    t: float
    id: int


@dataclass(frozen=True, slots=True)
class Acquitted:
    """It is trusted again."""

    t: float
    id: int


@dataclass(frozen=True, slots=True)
class SuspendAsked:
    """A person or a test wants a running request set aside."""

    t: float
    id: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""

    t: float


Event: TypeAlias = (
    Arrived
    | Left
    | Returned
    | EngineUp
    | EngineDown
    | Understood
    | Stepped
    | Quoted
    | Served
    | Isolated
    | Acquitted
    | SuspendAsked
    | Ticked
)

# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Give:
    """Submit this request to this engine now."""

    id: int
    engine: int
    rank: int
    """Prefill order inside the engine: lower goes first."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Set this request aside. It still holds its place until `Returned` or `Left`."""

    id: int
    engine: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request that arrived is not accepted."""

    id: int
    own_limit: bool
    """It is the person's own limit, not the server's."""
    why: str
    retry_after: float
    """Seconds."""


@dataclass(frozen=True, slots=True)
class AskQuote:
    """Ask this engine what the request would need now."""

    id: int
    engine: int


@dataclass(frozen=True, slots=True)
class Rank:
    """Change the prefill order inside an engine."""

    engine: int
    ranks: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Keep:
    """Which requests' prefixes to evict last, the most precious last. Replaces the list before."""

    engine: int
    ids: tuple[int, ...]


Effect: TypeAlias = Give | Suspend | Refuse | AskQuote | Rank | Keep
Decision: TypeAlias = tuple[Admission, tuple[Effect, ...]]
