"""What whoever operates the daemon sees of each accepted request."""

from dataclasses import replace

from daemon.core.requests import Priority
from daemon.core.stream_view import StreamState
from daemon.core.wire import Finished, FinishReason, Suspended
from daemon.host.workforce import Fall
from tests.host.desk import Desk, request, started

WAITING, PREFILL, ANSWERING = StreamState.WAITING, StreamState.PREFILL, StreamState.ANSWERING


def states(desk: Desk) -> list[StreamState]:
    return [view.state for view in desk.streams.views()]


async def test_request_is_seen_on_its_way_from_the_queue_to_its_answer() -> None:
    desk = Desk(slots=1)
    desk.engine_up()
    desk.streams.open(replace(request("first"), name="one"))
    desk.streams.open(replace(request("second one"), name="two", priority=Priority.BACKGROUND))
    assert states(desk) == [PREFILL, WAITING]
    first = desk.engine.submits[0]
    desk.now += 2
    desk.step(started(first, cached=3))
    desk.say(first, "ab")
    desk.now += 2
    desk.say(first, "cdef", 2)
    one, two = desk.streams.views()
    assert (one.name, one.state, one.engine, one.prompt, one.cached, one.generated) == ("one", ANSWERING, 0, 5, 3, 6)
    assert (one.age, one.waited, one.rate, one.background) == (4.0, 2.0, 2.5, False)
    assert (two.name, two.state, two.engine, two.prompt, two.waited, two.rate) == ("two", WAITING, None, 10, None, None)
    assert two.background
    desk.finish(first)
    assert [view.name for view in desk.streams.views()] == ["two"]


async def test_request_that_was_set_aside_is_told_from_one_that_lost_its_engine() -> None:
    desk = Desk(slots=1)
    desk.engine_up()
    entry = desk.streams.open(request("first"))
    submit = desk.engine.submits[0]
    desk.say(submit, "a")
    desk.streams.open(replace(request("second"), owner="bob"))
    desk.streams.suspend(entry)
    desk.step(Suspended(submit.id, submit.attempt, 5))
    assert states(desk) == [StreamState.SUSPENDED, PREFILL]
    desk.streams.engine_down(0, "it died")
    assert states(desk) == [StreamState.INTERRUPTED, StreamState.INTERRUPTED]
    desk.streams.engine_fell(0, Fall("it died", accuses=False, prefilling=None, in_flight=()))
    desk.engine_up()
    assert states(desk) == [ANSWERING, StreamState.INTERRUPTED]


async def test_draft_tokens_are_counted_when_an_answer_is_finished() -> None:
    desk = Desk()
    desk.engine_up()
    desk.streams.open(request())
    submit = desk.engine.submits[0]
    desk.say(submit, "abc")
    desk.step(Finished(submit.id, submit.attempt, FinishReason.LENGTH, accepted=2, rejected=5))
    totals = desk.streams.totals
    assert (totals.accepted_drafts, totals.rejected_drafts) == (2, 5)
