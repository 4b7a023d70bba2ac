"""The registry: each accepted request ends once, and no engine's death changes what it says."""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from daemon.core.errors import (
    GenerationFailed,
    NotReady,
    Overloaded,
    PoisonousRequest,
    RequestError,
    RequestTimeout,
    ShuttingDown,
)
from daemon.core.events import Broken, Ended, Ending, Opened, Paused, Piece, StreamEvent
from daemon.core.requests import Priority
from daemon.core.settings import ServerSettings
from daemon.core.wire import (
    Failed,
    FailureClass,
    FinishReason,
    ImageSpan,
    Reasoning,
    Sampler,
    Suspended,
    Tokens,
    TokenSpan,
)
from tests.host.desk import Desk, drain, ends, length, request, started, tokens
from tests.host.tiny import END, UNTHINK


def text_of(events: list[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Piece))


def broken(events: list[StreamEvent]) -> RequestError:
    [end] = ends(events)
    assert isinstance(end, Broken)
    return end.error


async def test_stream_tells_its_life_in_order() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request("hello", 3))
    [submit] = engine.submits
    desk.now += 2
    desk.step(started(submit, cached=4), tokens(submit, [65]))
    desk.say(submit, "BC", done=1)
    desk.finish(submit)
    events = await drain(entry)
    assert events[0] == Opened(4, 2.0, at=102.0)
    assert text_of(events) == "ABC"
    assert [token for event in events if isinstance(event, Piece) for token in event.ids] == [65, 66, 67]
    [end] = ends(events)
    assert isinstance(end, Ended)
    assert (end.ending, end.usage.prompt, end.usage.cached, end.usage.completion) == (Ending.LENGTH, 5, 4, 3)
    assert events[-1] is end
    assert desk.summaries[0].outcome == "length"


async def test_pieces_merge_while_the_reader_is_away() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request())
    for index in range(50):
        desk.say(engine.submits[0], "x", done=index)
    desk.finish(engine.submits[0])
    pieces = [event for event in await drain(entry) if isinstance(event, Piece)]
    assert [len(piece.ids) for piece in pieces] == [50]


async def test_waiting_reader_is_woken_once_a_step() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request())
    events = entry.events()
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    desk.step(tokens(engine.submits[0], [65]), tokens(engine.submits[0], [66], 1))
    assert await waiting == Piece("AB", (65, 66))


async def test_stop_id_ends_the_answer_and_is_not_shown() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request(stop_ids=(END,)))
    desk.say(engine.submits[0], [65, END])
    desk.finish(engine.submits[0], FinishReason.STOP)
    events = await drain(entry)
    assert text_of(events) == "A"
    [end] = ends(events)
    assert isinstance(end, Ended)
    assert (end.ending, end.stop, end.usage.completion) == (Ending.STOP, END, 2)


async def test_stop_string_cancels_the_engines_work() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request(stop_strings=("\nUser:",)))
    desk.say(engine.submits[0], "Hello\nUs")
    desk.say(engine.submits[0], "er: me", done=8)
    events = await drain(entry)
    assert text_of(events) == "Hello"
    [end] = ends(events)
    assert isinstance(end, Ended)
    assert (end.ending, end.stop) == (Ending.STOP, "\nUser:")
    assert engine.cancels == [1]


async def test_held_back_text_is_delivered_at_the_end() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request(stop_strings=("\nUser:",)))
    desk.say(engine.submits[0], "Hello\nUs")
    desk.finish(engine.submits[0])
    assert text_of(await drain(entry)) == "Hello\nUs"


async def test_stop_strings_sleep_inside_a_thought_and_thoughts_are_counted() -> None:
    desk = Desk()
    engine = desk.engine_up()
    thought = Reasoning([UNTHINK], [UNTHINK], inside=True)
    entry = desk.streams.open(request(stop_strings=("stop",), reasoning=thought))
    desk.say(engine.submits[0], "stop")
    desk.say(engine.submits[0], [UNTHINK, *b"go stop"], done=4)
    events = await drain(entry)
    assert text_of(events) == "stop</think>go "
    [end] = ends(events)
    assert end.usage.reasoning == 5


async def test_failed_request_is_broken_and_others_go_on() -> None:
    desk = Desk()
    engine = desk.engine_up()
    one, two = desk.streams.open(request()), desk.streams.open(request())
    desk.step(Failed(1, 1, FailureClass.SAMPLING, "boom"), tokens(engine.submits[1], [66]))
    error = broken(await drain(one))
    assert isinstance(error, GenerationFailed)
    assert error.kind is FailureClass.SAMPLING
    assert not two.ended
    assert engine.cancels == []


async def test_cancel_frees_engine_and_queue_and_ends_the_stream() -> None:
    desk = Desk(slots=1)
    engine = desk.engine_up()
    running, waiting, third = (desk.streams.open(request()) for _ in range(3))
    waiting.cancel()
    running.cancel()
    running.cancel()
    assert engine.cancels == [1]
    assert [submit.id for submit in engine.submits] == [1, 3]
    assert len(ends(await drain(running))) == 1
    assert not third.ended
    assert [summary.outcome for summary in desk.summaries] == ["cancelled", "cancelled"]


async def test_late_news_of_a_cancelled_request_is_dropped() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request())
    entry.cancel()
    desk.say(engine.submits[0], "late")
    assert text_of(await drain(entry)) == ""


async def test_reader_that_never_reads_is_cut_off_and_delays_nobody() -> None:
    desk = Desk(ServerSettings(stall_buffer=16))
    engine = desk.engine_up()
    stalled, lively = desk.streams.open(request()), desk.streams.open(request())
    reader = lively.events()
    for index in range(20):
        one = [] if stalled.ended else [tokens(engine.submits[0], [65], index)]
        desk.step(*one, tokens(engine.submits[1], [66], index))
        assert await anext(reader) == Piece("B", (66,))
    assert stalled.ended
    assert engine.cancels == [1]
    assert desk.summaries[0].outcome == "stalled"
    assert isinstance(broken(await drain(stalled)), RequestTimeout)


# --- engines that die ---


async def test_engine_death_resubmits_prompt_and_delivered() -> None:
    desk = Desk()
    first = desk.engine_up()
    sampler = Sampler(temperature=0.5)
    thought = Reasoning([UNTHINK], [UNTHINK], inside=True, budget_left=50)
    entry = desk.streams.open(request("ab", 100, min_tokens=10, seed=7, sampler=sampler, stop_ids=(END,), reasoning=thought))
    [submit] = first.submits
    desk.step(started(submit), tokens(submit, [120, 121, 122]))
    desk.streams.engine_down(0, "it died")
    second = desk.engine_up()
    assert second.submits == [
        msgspec.structs.replace(
            submit,
            attempt=2,
            spans=[TokenSpan([97, 98]), TokenSpan([120, 121, 122])],
            max_left=97,
            min_left=7,
            draws=3,
            reasoning=Reasoning([UNTHINK], [UNTHINK], inside=True, budget_left=47),
            rank=second.submits[0].rank,
        )
    ]
    desk.step(started(second.submits[0]), tokens(second.submits[0], [65]))
    desk.finish(second.submits[0])
    events = await drain(entry)
    assert text_of(events) == "xyzA"
    assert [type(event) for event in events] == [Opened, Piece, Paused, Piece, Ended]
    assert desk.summaries[0].attempts == 2


async def test_death_in_the_middle_of_a_character_and_a_stop_string_loses_nothing() -> None:
    desk = Desk()
    first = desk.engine_up()
    entry = desk.streams.open(request(stop_strings=("é!",)))
    desk.say(first.submits[0], [65, 0xC3])
    desk.streams.engine_down(0, "it died")
    second = desk.engine_up()
    desk.say(second.submits[0], [0xA9])
    desk.streams.engine_down(0, "it died again")
    third = desk.engine_up()
    desk.say(third.submits[0], "!never seen")
    events = await drain(entry)
    assert text_of(events) == "A"
    [end] = ends(events)
    assert isinstance(end, Ended)
    assert end.stop == "é!"


async def test_reports_of_an_older_attempt_are_dropped() -> None:
    desk = Desk()
    first = desk.engine_up()
    entry = desk.streams.open(request())
    desk.say(first.submits[0], "A")
    desk.streams.engine_down(0, "it died")
    second = desk.engine_up()
    desk.say(first.submits[0], "late", done=1)
    desk.finish(first.submits[0])
    desk.say(second.submits[0], "B")
    desk.finish(second.submits[0])
    assert text_of(await drain(entry)) == "AB"


async def test_tokens_reported_twice_are_taken_once() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request())
    desk.say(engine.submits[0], "A")
    desk.say(engine.submits[0], "A")
    desk.say(engine.submits[0], "B", done=1)
    desk.finish(engine.submits[0])
    assert text_of(await drain(entry)) == "AB"


async def test_gap_in_the_tokens_breaks_the_stream_instead_of_hiding_it() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request())
    desk.say(engine.submits[0], "B", done=1)
    assert isinstance(broken(await drain(entry)), GenerationFailed)
    assert engine.cancels == [1]


async def test_interrupted_requests_come_back_shortest_first() -> None:
    desk = Desk(slots=3)
    first = desk.engine_up()
    for prompt in ("a long prompt", "short", "mid prompt"):
        desk.streams.open(request(prompt))
    desk.streams.open(request("x"))
    assert len(first.submits) == 3
    desk.streams.engine_down(0, "it died")
    second = desk.engine_up()
    assert [length(submit) for submit in second.submits] == [5, 10, 13]


async def test_answer_complete_when_the_engine_died_ends_without_another() -> None:
    desk = Desk()
    engine = desk.engine_up()
    full = desk.streams.open(request("a", 2))
    stopped = desk.streams.open(request("a", 100, stop_ids=(END,)))
    desk.step(tokens(engine.submits[0], [65, 66]), tokens(engine.submits[1], [65, END]))
    desk.streams.engine_down(0, "it died")
    assert [end.ending for end in ends(await drain(full)) if isinstance(end, Ended)] == [Ending.LENGTH]
    assert [end.stop for end in ends(await drain(stopped)) if isinstance(end, Ended)] == [END]
    assert desk.engine_up().submits == []


async def test_no_engine_within_the_resume_timeout_ends_with_words() -> None:
    desk = Desk(ServerSettings(resume_timeout=0.01))
    desk.engine_up()
    entry = desk.streams.open(request())
    desk.streams.engine_down(0, "it died")
    desk.now += 1
    events = await asyncio.wait_for(drain(entry), 10)
    error = broken(events)
    assert isinstance(error, RequestTimeout)
    assert "resume_timeout" in str(error)


async def test_failed_supervision_ends_everything_and_refuses_with_the_reason() -> None:
    desk = Desk()
    desk.engine_up()
    entry = desk.streams.open(request())
    desk.streams.engine_down(0, "it died")
    desk.streams.give_up(0, "the driver does not match")
    assert isinstance(broken(await drain(entry)), NotReady)
    with pytest.raises(NotReady, match="driver"):
        desk.streams.open(request())
    desk.streams.engine_coming(0)
    with pytest.raises(NotReady, match="loaded"):
        desk.streams.open(request())
    desk.engine_up()
    desk.streams.open(request())


async def test_suspended_request_is_given_again_as_a_new_attempt() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request())
    desk.say(engine.submits[0], "A")
    desk.step(Suspended(1, 1, 3))
    assert [(submit.attempt, length(submit)) for submit in engine.submits] == [(1, 2), (2, 3)]
    desk.say(engine.submits[1], "B")
    desk.finish(engine.submits[1])
    assert text_of(await drain(entry)) == "AB"


async def test_requests_wait_through_a_restart_instead_of_being_refused() -> None:
    desk = Desk()
    desk.engine_up()
    desk.streams.engine_down(0, "it died")
    entry = desk.streams.open(request())
    engine = desk.engine_up()
    desk.say(engine.submits[0], "A")
    desk.finish(engine.submits[0])
    assert text_of(await drain(entry)) == "A"


async def test_picture_in_a_prompt_counts_with_its_tokens_and_outlives_the_engine() -> None:
    desk = Desk()
    first = desk.engine_up()
    image = ImageSpan("d", "image/png", b"x", 298)
    entry = desk.streams.open(replace(request("ab"), spans=(TokenSpan([97]), image, TokenSpan([98]))))
    desk.step(Tokens(1, 1, 300, [65]))
    desk.streams.engine_down(0, "it died")
    second = desk.engine_up()
    assert len(first.submits[0].spans) == 3
    assert len(second.submits[0].spans) == 4
    assert first.submits[0].origin == second.submits[0].origin == entry.usage().prompt == 300
    desk.step(Tokens(1, 2, 300, [65]), Tokens(1, 2, 301, [66]))
    desk.finish(second.submits[0])
    assert text_of(await drain(entry)) == "AB"


# --- doors and deadlines ---


async def test_before_the_first_engine_requests_are_refused() -> None:
    desk = Desk()
    with pytest.raises(NotReady):
        desk.streams.open(request())


async def test_full_queue_refuses_with_a_time_to_come_back() -> None:
    desk = Desk(ServerSettings(max_queued=1), slots=1)
    desk.engine_up()
    desk.streams.open(request())
    desk.streams.open(request())
    with pytest.raises(Overloaded) as refused:
        desk.streams.open(request())
    assert refused.value.retry_after >= 1
    assert not refused.value.own_limit
    assert (desk.streams.running, desk.streams.queued) == (1, 1)


async def test_background_requests_yield_to_live_ones() -> None:
    desk = Desk(slots=1)
    engine = desk.engine_up()
    first = desk.streams.open(request("a"))
    desk.streams.open(request("bb", priority=Priority.BACKGROUND))
    desk.streams.open(request("ccc"))
    first.cancel()
    assert [length(submit) for submit in engine.submits] == [1, 3]


@pytest.mark.parametrize("slots", [1, 2])
async def test_passed_deadline_ends_queued_and_running_requests(slots: int) -> None:
    desk = Desk(slots=slots)
    engine = desk.engine_up()
    desk.streams.open(request())
    late = desk.streams.open(request(deadline=desk.now + 0.01))
    assert isinstance(broken(await asyncio.wait_for(drain(late), 10)), RequestTimeout)
    assert engine.cancels == ([] if slots == 1 else [2])
    assert desk.streams.queued == 0


async def test_closed_door_lets_running_requests_finish() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request())
    empty: list[bool] = []
    desk.streams.when_empty(lambda: empty.append(True))
    desk.streams.close()
    with pytest.raises(ShuttingDown):
        desk.streams.open(request())
    desk.say(engine.submits[0], "A")
    assert empty == []
    desk.finish(engine.submits[0])
    assert text_of(await drain(entry)) == "A"
    assert empty == [True]


async def test_ending_all_gives_each_its_own_error() -> None:
    desk = Desk()
    desk.engine_up()
    entries = [desk.streams.open(request()) for _ in range(3)]
    desk.streams.end_all(PoisonousRequest)
    errors = [broken(await drain(entry)) for entry in entries]
    assert len({id(error) for error in errors}) == 3


async def test_card_takes_its_context_from_the_engine() -> None:
    desk = Desk()
    assert desk.streams.card().context == 10_000
    desk.engine_up()
    assert desk.streams.card().context == 16 * 256
