"""One accepted request as whoever operates the daemon sees it: names and numbers, never what somebody wrote."""

from dataclasses import dataclass
from enum import Enum


class StreamState(Enum):
    """What a request does at this moment."""

    WAITING = "waiting"
    """For its first turn."""
    PREFILL = "prefill"
    """An engine holds it and has given no token yet."""
    ANSWERING = "answering"
    SUSPENDED = "suspended"
    """Set aside for others; it goes on where it was."""
    INTERRUPTED = "interrupted"
    """It lost its engine and waits for another."""


@dataclass(frozen=True, slots=True)
class StreamView:
    """One accepted request. Times in seconds."""

    name: str
    """The public id, as in `chatcmpl-…`."""
    owner: str
    background: bool
    state: StreamState
    engine: int | None
    """Which engine holds it."""
    prompt: int
    """Tokens."""
    cached: int
    """Those of them that the cache had."""
    generated: int
    limit: int
    """Most tokens of its answer."""
    age: float
    """Since it was accepted."""
    waited: float | None = None
    """From then until its pages were held; None while they are not."""
    rate: float | None = None
    """Tokens a second since its first one; None before the second."""
