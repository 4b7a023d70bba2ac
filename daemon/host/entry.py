"""One accepted request and everything the registry knows about it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from daemon.core.events import StreamEvent, Usage
from daemon.core.prefix_watch import Trace
from daemon.core.requests import ValidRequest
from daemon.host.outbox import Outbox
from daemon.host.recovery import Recovery
from daemon.host.transcript import Transcript


class Canceller(Protocol):
    """Whoever ends an entry whose client is gone."""

    def cancel(self, entry: "Entry") -> None:
        """Drop it; it may have ended already."""
        ...


class Entry:
    """One accepted request and everything known about it. Implements `ports.Stream`."""

    __slots__ = (
        "_registry",
        "accepted",
        "attempt",
        "cached",
        "deadline",
        "ended",
        "engine",
        "first",
        "last",
        "link_id",
        "opened",
        "outbox",
        "paused",
        "recoveries",
        "request",
        "start",
        "trace",
        "transcript",
    )

    def __init__(
        self, registry: Canceller, link_id: int, request: ValidRequest, transcript: Transcript, outbox: Outbox, now: float
    ) -> None:
        self._registry = registry
        self.link_id = link_id
        self.request = request
        self.transcript = transcript
        self.outbox = outbox
        self.accepted = now
        self.attempt = 0
        self.engine: int | None = None
        """Which engine holds it. Set by whoever gives requests to engines (`host/giving.py`)."""
        self.ended = False
        self.cached = 0
        self.start = request.prompt_tokens
        """Position of the first generated token."""
        self.opened: float | None = None
        self.first: float | None = None
        self.last: float | None = None
        self.paused: float | None = None
        """Since when it waits for another engine."""
        self.recoveries: tuple[Recovery, ...] = ()
        """Deaths of engines after which it has not had a token yet."""
        self.deadline: asyncio.TimerHandle | None = None
        self.trace: Trace | None = None
        """Its sequence, hashed; None where that is not followed."""

    def events(self) -> AsyncIterator[StreamEvent]:
        """The events in order; see ports.Stream."""
        return self.outbox

    async def deliver(self, take: Callable[[StreamEvent], bool]) -> None:
        """Give the events to `take`; see ports.Stream."""
        await self.outbox.deliver(take)

    def cancel(self) -> None:
        """The client is gone; see ports.Stream."""
        self._registry.cancel(self)

    def usage(self) -> Usage:
        """Tokens so far."""
        transcript = self.transcript
        return Usage(self.request.prompt_tokens, self.cached, len(transcript.delivered), transcript.reasoning_tokens)
