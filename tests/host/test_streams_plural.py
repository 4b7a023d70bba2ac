"""Several engines: each holds its own requests, and the death of one disturbs nobody else's."""

import asyncio

import pytest

from daemon.core.errors import NotReady, RequestTimeout, ShuttingDown
from daemon.core.events import Broken, Paused, Piece
from daemon.core.settings import ServerSettings, Settings
from daemon.host.workforce import Fall
from tests.host.desk import Desk, drain, ends, request, started

FALL = Fall("killed", accuses=False, prefilling=None, in_flight=())
ACCUSING = Fall("exit code 139", accuses=True, prefilling=None, in_flight=())


async def test_requests_spread_over_engines_and_reports_count_from_the_right_one() -> None:
    desk = Desk(slots=1, engines=2)
    first, second = desk.engine_up(0), desk.engine_up(1)
    one, two = desk.streams.open(request("a")), desk.streams.open(request("b"))
    assert [len(engine.submits) for engine in (first, second)] == [1, 1]
    assert (desk.streams.outstanding(0), desk.streams.outstanding(1)) == (True, True)
    held = {one.engine: one, two.engine: two}
    desk.say(first.submits[0], "x", engine=0)
    desk.say(first.submits[0], "y", done=1, engine=1)
    assert held[0].transcript.delivered == [ord("x")]
    assert held[1].transcript.delivered == []


async def test_death_of_one_engine_pauses_its_own_requests_only() -> None:
    desk = Desk(slots=1, engines=2)
    first, second = desk.engine_up(0), desk.engine_up(1)
    entries = {entry.link_id: entry for entry in (desk.streams.open(request("a")), desk.streams.open(request("b")))}
    waiting = desk.streams.open(request("c"))
    [lost], [kept] = first.submits, second.submits
    desk.streams.engine_down(0, "it died")
    desk.streams.engine_fell(0, FALL)
    assert second.submits == [kept]
    assert second.cancels == []
    desk.say(kept, "ok", engine=1)
    desk.finish(kept, engine=1)
    events = await drain(entries[kept.id])
    assert not [event for event in events if isinstance(event, Paused)]
    assert [submit.id for submit in second.submits] == [kept.id, lost.id]
    third = desk.engine_up(0)
    assert [submit.id for submit in third.submits] == [waiting.link_id]


async def test_lost_requests_rest_until_it_is_known_why_their_engine_died() -> None:
    """Else the one that killed it could kill the next engine too, among its other requests."""
    desk = Desk(slots=2, engines=2)
    first, second = desk.engine_up(0), desk.engine_up(1)
    entries = [desk.streams.open(request("ab")) for _ in range(2)]
    assert (len(first.submits), len(second.submits)) == (1, 1)
    suspect = next(entry for entry in entries if entry.engine == 0)
    desk.streams.engine_down(0, "it died")
    assert len(second.submits) == 1
    desk.streams.engine_fell(0, ACCUSING)
    assert len(second.submits) == 1
    assert [submit.id for submit in desk.engine_up(0).submits] == [suspect.link_id]


async def test_suspect_whose_place_stays_empty_gets_another_engine_to_itself() -> None:
    desk = Desk(slots=2, engines=2)
    desk.engine_up(0)
    second = desk.engine_up(1)
    entries = [desk.streams.open(request("ab")) for _ in range(2)]
    suspect = next(entry for entry in entries if entry.engine == 0)
    other = next(entry for entry in entries if entry.engine == 1)
    desk.streams.engine_down(0, "it died")
    desk.streams.engine_fell(0, ACCUSING)
    desk.streams.give_up(0, "no more restarts")
    assert second.suspends == [other.link_id]
    assert [submit.id for submit in second.submits] == [other.link_id]
    desk.finish(second.submits[0], engine=1)
    assert [submit.id for submit in second.submits] == [other.link_id, suspect.link_id]


async def test_door_stays_open_while_any_engine_serves_and_shuts_with_the_last() -> None:
    desk = Desk(engines=2)
    with pytest.raises(NotReady, match="loaded"):
        desk.streams.open(request())
    desk.engine_up(0)
    entry = desk.streams.open(request())
    desk.streams.give_up(1, "GPU 1 fell off the bus")
    desk.streams.open(request())
    desk.streams.engine_down(0, "it died")
    desk.streams.give_up(0, "GPU 0 too")
    [end] = ends(await drain(entry))
    assert isinstance(end, Broken)
    with pytest.raises(NotReady, match="GPU 0 too"):
        desk.streams.open(request())


async def test_requests_of_an_engine_that_will_not_come_back_go_to_the_other() -> None:
    desk = Desk(slots=4, engines=2)
    desk.engine_up(0)
    entry = desk.streams.open(request())
    second = desk.engine_up(1)
    desk.streams.engine_down(0, "it died")
    desk.streams.give_up(0, "no more restarts")
    [submit] = second.submits
    desk.say(submit, "on", engine=1)
    desk.finish(submit, engine=1)
    events = await drain(entry)
    assert "".join(event.text for event in events if isinstance(event, Piece)) == "on"


async def test_nobody_is_timed_out_while_another_engine_serves() -> None:
    desk = Desk(ServerSettings(resume_timeout=0.01), slots=1, engines=2)
    desk.engine_up(0)
    entry = desk.streams.open(request("a"))
    desk.engine_up(1)
    desk.streams.open(request("b"))
    desk.streams.engine_down(0, "it died")
    desk.streams.engine_fell(0, FALL)
    desk.now += 1
    rung = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, rung.set)  # behind the registry's own timer
    await asyncio.wait_for(rung.wait(), 10)
    assert not entry.ended
    desk.streams.engine_down(1, "it died too")
    end = ends(await drain(entry))[0]
    assert isinstance(end, Broken)
    assert isinstance(end.error, RequestTimeout)


async def test_card_promises_what_the_smaller_engine_can_do() -> None:
    desk = Desk(engines=2)
    desk.engine_up(0, pages=16)
    desk.engine_up(1, pages=8)
    assert desk.streams.card().context == 8 * 256


# --- what people ask for ---


async def test_paused_intake_refuses_with_the_reason_and_lets_running_requests_finish() -> None:
    desk = Desk()
    engine = desk.engine_up()
    entry = desk.streams.open(request())
    desk.streams.pause_intake("an upgrade at noon")
    assert not desk.streams.accepting
    assert "an upgrade at noon" in (desk.streams.shut or "")
    with pytest.raises(NotReady, match="an upgrade at noon") as refused:
        desk.streams.open(request())
    assert refused.value.retry_after > 0
    desk.say(engine.submits[0], "A")
    desk.finish(engine.submits[0])
    assert len(ends(await drain(entry))) == 1
    desk.streams.resume_intake()
    assert desk.streams.accepting
    desk.streams.open(request())


async def test_paused_intake_stays_paused_through_a_restart_and_a_shutdown_comes_first() -> None:
    desk = Desk()
    desk.engine_up()
    desk.streams.pause_intake("later")
    desk.streams.engine_down(0, "asked for")
    desk.engine_up()
    with pytest.raises(NotReady, match="later"):
        desk.streams.open(request())
    desk.streams.close()
    with pytest.raises(ShuttingDown):
        desk.streams.open(request())
    desk.streams.resume_intake()
    with pytest.raises(ShuttingDown):
        desk.streams.open(request())


async def test_reloaded_limits_hold_from_then_on() -> None:
    desk = Desk(ServerSettings(stall_buffer=8192))
    engine = desk.engine_up()
    entry = desk.streams.open(request())
    desk.streams.reload(Settings(server=ServerSettings(stall_buffer=16)))
    for index in range(17):
        desk.say(engine.submits[0], "x", done=index)
    assert entry.ended


# --- what a death costs ---


async def test_figures_of_a_death_tell_how_long_each_waited_and_what_was_prefilled_again() -> None:
    desk = Desk()
    engine = desk.engine_up()
    desk.streams.open(request("abcd"))
    gone = desk.streams.open(request("abcdefgh"))
    queued = desk.streams.recovery(0)
    assert (queued.interrupted, queued.waiting, queued.waited) == (0, 0, ())
    desk.say(engine.submits[0], "xy")
    desk.streams.engine_down(0, "it died")
    desk.streams.engine_fell(0, FALL)
    figures = desk.streams.recovery(0)
    assert (figures.interrupted, figures.waiting) == (2, 2)
    desk.now += 3
    engine = desk.engine_up()
    again = next(submit for submit in engine.submits if submit.id == 1)
    desk.step(started(again, cached=2))
    gone.cancel()
    desk.now += 1
    desk.say(again, "z")
    figures = desk.streams.recovery(0)
    assert (figures.interrupted, figures.waiting, figures.waited, figures.reprefilled) == (2, 0, (4.0,), 4)
    assert desk.streams.totals.interruptions == 2
    assert desk.streams.totals.reprefilled_tokens == 4


async def test_request_that_loses_two_engines_waits_for_both_deaths() -> None:
    desk = Desk()
    desk.engine_up()
    desk.streams.open(request("ab"))
    desk.streams.engine_down(0, "it died")
    desk.now += 1
    desk.engine_up()
    desk.streams.engine_down(0, "it died again")
    desk.now += 1
    engine = desk.engine_up()
    before = desk.streams.recovery(0)
    assert before.waiting == 1
    desk.say(engine.submits[0], "x")
    assert desk.streams.recovery(0).waited == (1.0,)
    assert desk.streams.totals.interruptions == 2
