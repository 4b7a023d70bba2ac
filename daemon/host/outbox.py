"""What a stream's reader has not taken yet.

Text merges while the reader is away, so a lagging reader costs one piece and not one event a token; the count of what was
merged tells when it has been away for too long. One wake-up serves everything that came meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from daemon.core.events import Piece, StreamEvent
from daemon.core.wire import TokenLogprob


class Outbox:
    """Events of one stream, for one reader: `async for event in outbox`. Ends after `close`."""

    __slots__ = ("_closed", "_events", "_ids", "_logprobs", "_loop", "_text", "_waiter", "unread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[StreamEvent] = deque()
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self.unread = 0
        """Additions since the reader last took something."""

    def add_tokens(self, text: str, ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> None:
        """Add to the piece being collected."""
        if text:
            self._text.append(text)
        self._ids.extend(ids)
        if logprobs:
            self._logprobs.extend(logprobs)
        self.unread += 1
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def add(self, event: StreamEvent) -> None:
        """Add an event after everything collected so far."""
        self._seal()
        self._events.append(event)
        self.unread += 1
        self._wake()

    def close(self) -> None:
        """Nothing more will come."""
        self._closed = True
        self._wake()

    def drop(self) -> None:
        """Forget what was not read: the reader is known to be gone."""
        self._events.clear()
        self._text, self._ids, self._logprobs = [], [], []

    def _seal(self) -> None:
        piece = self._piece()
        if piece is not None:
            self._events.append(piece)

    def _piece(self) -> Piece | None:
        if not self._ids and not self._text:
            return None
        text = self._text
        piece = Piece(text[0] if len(text) == 1 else "".join(text), tuple(self._ids), tuple(self._logprobs))
        self._text, self._ids = [], []
        if self._logprobs:
            self._logprobs = []
        return piece

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> "Outbox":
        return self

    async def __anext__(self) -> StreamEvent:
        while True:
            event = self._events.popleft() if self._events else self._piece()
            if event is not None:
                self.unread = 0
                return event
            if self._closed:
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
