"""What fair admission is told and what it has done: events and effects. Times inside them are CLOCK_MONOTONIC seconds."""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from daemon.core.admission_values import Admission, Hint
from daemon.core.requests import Priority

# --- events ---------------------------------------------------------------------------------------------------------


class Arrived(msgspec.Struct, frozen=True):
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


class Left(msgspec.Struct, frozen=True):
    """A request ended, was cancelled, or timed out, wherever it was."""

    t: float
    id: int


class Returned(msgspec.Struct, frozen=True):
    """An engine set a request aside, or lost it alone; it must be given again."""

    t: float
    id: int


class EngineUp(msgspec.Struct, frozen=True):
    """An engine takes requests."""

    t: float
    engine: int
    slots: int
    pages: int
    page: int
    interval: int = 0


class EngineDown(msgspec.Struct, frozen=True):
    """An engine is gone; what it held rests until `Understood`."""

    t: float
    engine: int


class Understood(msgspec.Struct, frozen=True):
    """It is known why an engine went, and suspects were isolated: what it held may be given again. `lost`: none will come."""

    t: float
    engine: int
    lost: bool = False


class Began(msgspec.Struct, frozen=True):
    """A request holds its pages."""

    id: int
    cached: int
    """Tokens found in the prefix cache."""
    extends: int | None = None
    """The request whose sequence it goes on with, if that is known."""


class Waits(msgspec.Struct, frozen=True):
    """A request waits inside its engine for pages, at its beginning or to grow."""

    id: int
    pages: int
    """All it needs, those included that it gave up to ask for more."""


class Stepped(msgspec.Struct, frozen=True):
    """What an engine said of its room after a step, and which requests of it have got pages or wait for them."""

    t: float
    engine: int
    referenced: int
    pending: int
    began: tuple[Began, ...] = ()
    waits: tuple[Waits, ...] = ()


class Quoted(msgspec.Struct, frozen=True):
    """An engine's answer to `AskQuote`."""

    t: float
    id: int
    engine: int
    pages: int
    cached: int


class Served(msgspec.Struct, frozen=True):
    """Tokens generated since the last time, by request. Told before another event; has no effects of its own."""

    t: float
    tokens: Mapping[int, int]


class Isolated(msgspec.Struct, frozen=True):
    """A request that no engine holds may have killed one: it must run alone."""

    t: float
    id: int


class Acquitted(msgspec.Struct, frozen=True):
    """It is trusted again."""

    t: float
    id: int


class SuspendAsked(msgspec.Struct, frozen=True):
    """A person or a test wants a running request set aside."""

    t: float
    id: int


class Ticked(msgspec.Struct, frozen=True):
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


class Give(msgspec.Struct, frozen=True):
    """Submit this request to this engine now."""

    id: int
    engine: int
    rank: int
    """Prefill order inside the engine: lower goes first."""


class Suspend(msgspec.Struct, frozen=True):
    """Set this request aside. It still holds its place until `Returned` or `Left`."""

    id: int
    engine: int


class Refuse(msgspec.Struct, frozen=True):
    """The request that arrived is not accepted."""

    id: int
    own_limit: bool
    """It is the person's own limit, not the server's."""
    why: str
    retry_after: float
    """Seconds."""


class AskQuote(msgspec.Struct, frozen=True):
    """Ask this engine what the request would need now."""

    id: int
    engine: int


class Rank(msgspec.Struct, frozen=True):
    """Change the prefill order inside an engine."""

    engine: int
    ranks: Mapping[int, int]


class Keep(msgspec.Struct, frozen=True):
    """Which requests' prefixes to evict last, the most precious last. Replaces the list before."""

    engine: int
    ids: tuple[int, ...]


Effect: TypeAlias = Give | Suspend | Refuse | AskQuote | Rank | Keep
Decision: TypeAlias = tuple[Admission, tuple[Effect, ...]]
