"""Answers and thoughts that run in circles, and thoughts that the model begins itself, as the front sees them."""

from daemon.core.events import REPETITION, Ended, Ending, Piece, StreamEvent, ThoughtClosing
from daemon.core.repetition import RepetitionPolicy
from daemon.core.wire import OPENING, Finished, FinishReason, Reasoning
from tests.host.desk import Desk, drain, ends, request, tokens
from tests.host.tiny import THINK, UNTHINK

POLICY = RepetitionPolicy(64, 4)
CLOSE = [UNTHINK, 10]


def thinking(*, inside: bool, budget: int | None = None) -> Reasoning:
    """A thought that is open, or may be opened."""
    return Reasoning([UNTHINK], CLOSE, inside=inside, budget_left=budget, begin_ids=[] if inside else [THINK])


def text_of(events: list[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Piece))


def end_of(events: list[StreamEvent]) -> Ended:
    [end] = ends(events)
    assert isinstance(end, Ended)
    return end


async def test_answer_in_circles_is_ended_and_the_engine_told() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request(max_tokens=1000, repetition=POLICY))
    [submit] = engine.submits
    desk.say(submit, "ab" * 100)
    end = end_of(await drain(entry))
    assert (end.ending, end.detail, end.closings) == (Ending.STOP, REPETITION, ())
    assert engine.cancels == [submit.id]


async def test_answer_in_circles_goes_on_where_nobody_looks() -> None:
    desk = Desk()
    engine = desk.engine_up()
    desk.streams.open(request(max_tokens=1000))
    [submit] = engine.submits
    desk.say(submit, "ab" * 400)
    assert engine.cancels == []


async def test_thought_in_circles_is_closed_once_by_submitting_it_again_without_a_budget() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request(max_tokens=1000, repetition=POLICY, reasoning=thinking(inside=True)))
    [first] = engine.submits
    desk.say(first, "hm" * 100)
    _, second = engine.submits
    assert engine.cancels == [first.id]
    assert (second.id, second.attempt) == (first.id, 2)
    assert second.reasoning is not None
    assert (second.reasoning.inside, second.reasoning.budget_left) == (True, 0)
    desk.step(tokens(first, list(b"hm"), 200))
    desk.say(second, [*CLOSE, *b"yes"])
    desk.step(Finished(second.id, 2, FinishReason.STOP, closed_thoughts=1, spent_budgets=1))
    events = await drain(entry)
    assert text_of(events) == "hm" * 100 + "</think>\nyes"
    assert end_of(events).closings == (ThoughtClosing.REPETITION,)


async def test_thought_that_goes_on_in_circles_ends_the_answer() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request(max_tokens=1000, repetition=POLICY, reasoning=thinking(inside=True)))
    desk.say(engine.submits[0], "hm" * 100)
    desk.say(engine.submits[1], "hm" * 100)
    assert end_of(await drain(entry)).detail == REPETITION
    assert len(engine.submits) == 2


async def test_closings_are_told_by_their_cause() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request(reasoning=thinking(inside=True, budget=5)))
    [submit] = engine.submits
    desk.say(submit, [*b"hm", *CLOSE, *b"yes"])
    desk.step(Finished(submit.id, 1, FinishReason.STOP, closed_thoughts=2, spent_budgets=1))
    assert end_of(await drain(entry)).closings == (ThoughtClosing.STOP, ThoughtClosing.BUDGET)


async def test_stop_strings_sleep_from_the_mark_with_which_the_model_begins_its_thought() -> None:
    """What was held back before the mark comes before it."""
    desk = Desk()
    engine = desk.engine_up()
    stops = ("think", "\nno", "END")
    entry = desk.streams.open(request(stop_strings=stops, reasoning=thinking(inside=False)))
    [submit] = engine.submits
    for done, token in enumerate([10, THINK, *b"END", UNTHINK, *b"yes END no"]):
        desk.say(submit, [token], done)
    events = await drain(entry)
    assert text_of(events) == "\n<think>END</think>yes "
    assert end_of(events).stop == "END"
    assert end_of(events).usage.reasoning == len("END") + 1


async def test_mark_in_the_middle_of_an_answer_is_text() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request(stop_strings=("END",), reasoning=thinking(inside=False)))
    [submit] = engine.submits
    desk.say(submit, [*b"x" * OPENING, THINK, *b"END"])
    assert end_of(await drain(entry)).stop == "END"


async def test_next_engine_hears_where_the_thought_stands() -> None:
    """Before its mark, inside, and when it can no longer begin."""
    desk = Desk()
    engine = desk.engine_up()
    desk.streams.open(request(reasoning=thinking(inside=False, budget=9)))
    heard: list[tuple[bool, int | None, list[int]]] = []
    for ids in ([10], [THINK, *b"hm"], [UNTHINK]):
        desk.say(engine.submits[-1], ids)
        desk.streams.engine_down(0, "gone")
        engine = desk.engine_up()
        reasoning = engine.submits[-1].reasoning
        assert reasoning is not None
        heard.append((reasoning.inside, reasoning.budget_left, reasoning.begin_ids))
    assert heard == [(False, 9, [THINK]), (True, 7, []), (False, 6, [])]
