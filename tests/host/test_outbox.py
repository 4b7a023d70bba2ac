"""How an outbox serves its reader: called as events come, or waiting for them."""

import asyncio

import pytest

from daemon.core.errors import RequestTimeout
from daemon.core.events import Paused, Piece, StreamEvent
from daemon.host.outbox import Outbox, Rounds


class Reader:
    """Notes what it is given; has enough after `most` events."""

    def __init__(self, most: int = 1000) -> None:
        self.taken: list[StreamEvent] = []
        self._most = most

    def take(self, event: StreamEvent) -> bool:
        """See ports.Stream."""
        self.taken.append(event)
        return len(self.taken) < self._most

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(event.text for event in self.taken if isinstance(event, Piece))


async def turns(count: int = 3) -> None:
    """Let rounds and tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_reader_that_keeps_up_is_given_each_round_at_once() -> None:
    """What came in one turn of the loop is one piece; the task that waits is not woken for it."""
    outbox, reader = Outbox(Rounds()), Reader()
    reading = asyncio.create_task(outbox.deliver(reader.take))
    await turns()
    outbox.add(Piece("a", (1,)))
    outbox.add(Piece("b", (2,)))
    assert reader.taken == []
    await asyncio.sleep(0)
    assert reader.taken == [Piece("ab", (1, 2))]
    assert outbox.unread == 0
    outbox.add(Piece("c", (3,)))
    await asyncio.sleep(0)
    assert reader.text == "abc"
    assert not reading.done()
    outbox.close()
    await reading


async def test_events_that_came_before_are_given_when_reading_begins() -> None:
    outbox, reader = Outbox(Rounds()), Reader()
    outbox.add(Piece("a", (1,)))
    outbox.add(Paused("engine"))
    outbox.add(Piece("b", (2,)))
    outbox.close()
    await outbox.deliver(reader.take)
    assert reader.taken == [Piece("a", (1,)), Paused("engine"), Piece("b", (2,))]


async def test_reader_with_enough_gets_the_rest_by_its_next_call() -> None:
    """What comes until then is counted as unread and merged."""
    outbox, first, second = Outbox(Rounds()), Reader(1), Reader()
    reading = asyncio.create_task(outbox.deliver(first.take))
    await turns()
    outbox.add(Piece("a", (1,)))
    await asyncio.sleep(0)
    outbox.add(Piece("b", (2,)))
    outbox.add(Piece("c", (3,)))
    await reading
    assert first.text == "a"
    assert outbox.unread == 2
    outbox.close()
    await outbox.deliver(second.take)
    assert second.taken == [Piece("bc", (2, 3))]


async def test_reader_that_raises_gets_its_error_and_disturbs_no_other() -> None:
    rounds = Rounds()
    broken, sound = Outbox(rounds), Outbox(rounds)
    reader = Reader()

    def refuse(event: StreamEvent) -> bool:
        raise RequestTimeout(str(event))

    failing = asyncio.create_task(broken.deliver(refuse))
    reading = asyncio.create_task(sound.deliver(reader.take))
    await turns()
    for outbox in (broken, sound):
        outbox.add(Piece("a", (1,)))
    await asyncio.sleep(0)
    assert reader.text == "a"
    with pytest.raises(RequestTimeout):
        await failing
    sound.close()
    await reading


async def test_reader_cancelled_before_its_round_takes_nothing() -> None:
    outbox, reader = Outbox(Rounds()), Reader()
    reading = asyncio.create_task(outbox.deliver(reader.take))
    await turns()
    outbox.add(Piece("a", (1,)))
    reading.cancel()
    await turns()
    assert reading.cancelled()
    assert reader.taken == []
    outbox.close()
    await outbox.deliver(reader.take)
    assert reader.text == "a"


async def test_what_a_reader_adds_while_it_takes_is_not_lost() -> None:
    """A reader may end its own request, which adds the last event."""
    outbox, reader = Outbox(Rounds()), Reader()

    def take(event: StreamEvent) -> bool:
        if isinstance(event, Piece):
            outbox.add(Paused("last"))
            outbox.close()
        return reader.take(event)

    reading = asyncio.create_task(outbox.deliver(take))
    await turns()
    outbox.add(Piece("a", (1,)))
    await reading
    assert reader.taken == [Piece("a", (1,)), Paused("last")]


async def test_iterating_reader_gets_the_same_events() -> None:
    outbox = Outbox(Rounds())

    async def collect() -> list[StreamEvent]:
        return [event async for event in outbox]

    reading = asyncio.create_task(collect())
    await turns()
    outbox.add(Piece("a", (1,)))
    await turns()
    outbox.add(Paused("engine"))
    outbox.close()
    assert await reading == [Piece("a", (1,)), Paused("engine")]
