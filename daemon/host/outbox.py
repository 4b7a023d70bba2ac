"""What a stream's reader has not taken yet.

Pieces that the reader finds side by side are given to it as one, so a lagging reader costs one event and not one a token; the
count of what waits tells when it has been away for too long.

Readers are served in rounds: one for each turn of the event loop in which anything came, for all of them together. A reader that
keeps up is called from the round itself (`deliver`), so that a token wakes no task. What one reader does or raises is its own
affair: it comes out of its `deliver`, and the others' round goes on.
"""

import asyncio
from collections.abc import Callable, Sequence

from daemon.core.events import Piece, StreamEvent


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

    __slots__ = ("_closed", "_due", "_events", "_rounds", "_take", "_waiter", "unread")

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._events: list[StreamEvent] = []
        """As they were added; pieces side by side are merged when they are taken."""
        self._take: Callable[[StreamEvent], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        """Of the reader that waits; with `_take` it is called and need not be woken."""
        self._due = False
        self._closed = False
        self.unread = 0
        """Additions since the reader last took something."""

    def add(self, event: StreamEvent) -> None:
        """Add an event after everything before."""
        self._events.append(event)
        self.unread += 1
        if self._waiter is not None and not self._due:
            self._due = True
            self._rounds.add(self)

    def close(self) -> None:
        """Nothing more will come."""
        self._closed = True
        if self._waiter is not None and not self._due:
            self._due = True
            self._rounds.add(self)

    def drop(self) -> None:
        """Forget what was not read: the reader is known to be gone."""
        self._events.clear()

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
        events = self._events
        while events:
            if len(events) == 1:
                self.unread = 0
                event = events.pop()
            else:
                event = self._next()
            if not take(event):
                return True
        return self._closed

    def _next(self) -> StreamEvent:
        """The first event; with all pieces right behind it, if it is one."""
        self.unread = 0
        events = self._events
        count = next((place for place, event in enumerate(events) if not isinstance(event, Piece)), len(events))
        taken = events[: max(1, count)]
        del events[: len(taken)]
        return _merged(taken) if count > 1 else taken[0]

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
            if self._events:
                return self._next()
            if self._closed:
                raise StopAsyncIteration
            await self._wait()


def _merged(events: Sequence[StreamEvent]) -> Piece:
    """Pieces as one."""
    pieces = [event for event in events if isinstance(event, Piece)]
    ids = tuple([token for piece in pieces for token in piece.ids])
    logprobs = tuple([logprob for piece in pieces for logprob in piece.logprobs])
    return Piece("".join([piece.text for piece in pieces]), ids, logprobs)


def _settle(waiter: asyncio.Future[None], error: Exception | None) -> None:
    """End a wait, unless the reader gave it up meanwhile."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
