"""What a stream's reader has not taken yet.

Text merges while the reader is away, so a lagging reader costs one piece and not one event a token; the count of what was
merged tells when it has been away for too long.

Readers are served in rounds: one for each turn of the event loop in which anything came, for all of them together. A reader that
keeps up is called from the round itself (`deliver`), so that a token wakes no task. What one reader does or raises is its own
affair: it comes out of its `deliver`, and the others' round goes on.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from daemon.core.events import Piece, StreamEvent
from daemon.core.wire import TokenLogprob


class Rounds:
    """Serves the readers of many outboxes. One for all outboxes that are filled together."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: list[Outbox] = []

    def add(self, outbox: "Outbox") -> None:
        """Serve its reader in the next round."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._serve)
        self._due.append(outbox)

    def _serve(self) -> None:
        due, self._due = self._due, []
        for outbox in due:
            outbox.serve()


class Outbox:
    """Events of one stream, for one reader: `await outbox.deliver(take)` or `async for event in outbox`. Ends after `close`."""

    __slots__ = ("_closed", "_due", "_events", "_ids", "_logprobs", "_rounds", "_take", "_text", "_waiter", "unread")

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._events: deque[StreamEvent] = deque()
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._take: Callable[[StreamEvent], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        """Of the reader that waits; with `_take` it is called and need not be woken."""
        self._due = False
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
        if self._waiter is not None and not self._due:
            self._due = True
            self._rounds.add(self)

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
        if self._waiter is not None and not self._due:
            self._due = True
            self._rounds.add(self)

    # --- the reader ---

    async def deliver(self, take: Callable[[StreamEvent], bool]) -> None:
        """Call `take` with every event, from now on as they come, until it gives False or nothing more will come. Raises what it
        raises.
        """
        if self._give(take):
            return
        self._take = take
        try:
            await self._wait()
        finally:
            self._take = None

    def serve(self) -> None:
        """The round's call: give the reader what there is, or wake it."""
        self._due = False
        waiter, take = self._waiter, self._take
        if waiter is None or waiter.done():
            return
        if take is None:
            waiter.set_result(None)
            return
        try:
            enough = self._give(take)
        except Exception as error:  # noqa: BLE001  # whatever it is, it ends this reader and no other
            _settle(waiter, error)
        else:
            if enough:
                _settle(waiter, None)

    def _give(self, take: Callable[[StreamEvent], bool]) -> bool:
        """Whether that was enough: `take` wants no more now, or nothing more will come."""
        while self._events or self._ids or self._text:
            event = self._next()
            if event is not None and not take(event):
                return True
        return self._closed

    def _next(self) -> StreamEvent | None:
        event = self._events.popleft() if self._events else self._piece()
        if event is not None:
            self.unread = 0
        return event

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def __aiter__(self) -> "Outbox":
        return self

    async def __anext__(self) -> StreamEvent:
        while True:
            event = self._next()
            if event is not None:
                return event
            if self._closed:
                raise StopAsyncIteration
            await self._wait()


def _settle(waiter: asyncio.Future[None], error: Exception | None) -> None:
    """End a wait, unless the reader gave it up meanwhile."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
