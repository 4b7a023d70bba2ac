"""A request that may have killed an engine runs alone; one that kills alone is refused; everybody else finishes."""

import asyncio
from pathlib import Path

import pytest

from daemon.core.errors import PoisonousRequest
from daemon.core.events import Broken, Ended
from daemon.core.poison import Policy
from daemon.core.wire import Submit, Suspended
from daemon.host.conviction_store import NAME, ConvictionStore
from daemon.host.workforce import Fall
from tests.host.desk import Desk, drain, ends, length, request, started

POLICY = Policy(proof=4, memory=3600.0, remembered=8)


def fall(*in_flight: int, accuses: bool = True, prefilling: int | None = None) -> Fall:
    return Fall("exit code 139", accuses, prefilling, in_flight)


def desk_with(store: ConvictionStore | None = None) -> Desk:
    return Desk(poison=POLICY, convictions=store)


def given(desk: Desk) -> list[int]:
    """Ids of the requests that the present engine was given, in order."""
    return [submit.id for submit in desk.engine.submits]


def dies(desk: Desk, reported: Fall) -> None:
    """The engine dies, it is understood how, and the next one comes."""
    desk.streams.engine_down(0, "it died")
    desk.streams.engine_fell(0, reported)
    desk.engine_up()


async def test_suspect_runs_alone_and_others_wait_in_their_order() -> None:
    desk = desk_with()
    desk.engine_up()
    for prompt in ("one", "second", "third one"):
        desk.streams.open(request(prompt))
    dies(desk, fall(1, 2, 3, prefilling=2))
    desk.streams.open(request("newcomer"))
    assert given(desk) == [2]
    assert (desk.streams.running, desk.streams.queued) == (1, 3)
    desk.say(desk.engine.submits[0], "abc")
    assert given(desk) == [2]
    desk.say(desk.engine.submits[0], "d", done=3)
    assert given(desk) == [2, 1, 3, 4]


async def test_suspect_that_kills_alone_is_refused_and_innocent_requests_finish() -> None:
    desk = desk_with()
    desk.engine_up()
    innocent, guilty = desk.streams.open(request("good")), desk.streams.open(request("evil!"))
    dies(desk, fall(1, 2, prefilling=2))
    dies(desk, fall(2, prefilling=2))
    [end] = ends(await drain(guilty))
    assert isinstance(end, Broken)
    assert isinstance(end.error, PoisonousRequest)
    assert given(desk) == [1]
    desk.say(desk.engine.submits[0], "fine")
    desk.finish(desk.engine.submits[0])
    assert [type(end) for end in ends(await drain(innocent))] == [Ended]
    assert desk.streams.totals.convictions == 1


async def test_retry_of_a_poisonous_request_is_refused_before_the_engine_and_others_are_not() -> None:
    desk = desk_with()
    desk.engine_up()
    desk.streams.open(request("evil!"))
    dies(desk, fall(1))
    dies(desk, fall(1))
    with pytest.raises(PoisonousRequest):
        desk.streams.open(request("evil!"))
    desk.streams.open(request("evil?"))
    assert [length(submit) for submit in desk.engine.submits] == [5]
    assert desk.streams.totals.requests == 2


async def test_death_that_accuses_nobody_lets_all_come_back_together() -> None:
    desk = desk_with()
    desk.engine_up()
    for prompt in ("aa", "b"):
        desk.streams.open(request(prompt))
    dies(desk, fall(1, 2, accuses=False, prefilling=2))
    assert given(desk) == [2, 1]


async def test_suspects_run_one_after_the_other() -> None:
    """An acquitted one makes way for the next suspect; everybody runs together again afterwards."""
    desk = desk_with()
    desk.engine_up()
    for prompt in ("one", "two", "three"):
        desk.streams.open(request(prompt))
    dies(desk, fall(1, 2, 3, prefilling=1))
    desk.say(desk.engine.submits[0], "good")
    dies(desk, fall(2, 3, 1, prefilling=1))
    assert given(desk) == [3]
    [third] = desk.engine.submits
    desk.say(third, "good")
    assert desk.engine.suspends == [3]
    assert given(desk) == [3]
    desk.step(Suspended(third.id, third.attempt, 5))
    assert given(desk) == [3, 2]
    second = desk.engine.submits[1]
    desk.say(second, "good")
    desk.step(Suspended(second.id, second.attempt, 5))
    assert given(desk) == [3, 2, 1]
    desk.say(desk.engine.submits[2], "g" * 15)
    assert given(desk) == [3, 2, 1]
    desk.say(desk.engine.submits[2], "g", done=15)
    assert sorted(given(desk)[3:]) == [2, 3]


async def test_request_never_seen_by_the_last_step_is_not_the_suspect() -> None:
    desk = desk_with()
    desk.engine_up()
    desk.streams.open(request("seen"))
    desk.streams.open(request("just sent"))
    dies(desk, fall(1))
    assert given(desk) == [1]


async def test_suspect_that_is_set_aside_goes_on_alone() -> None:
    desk = desk_with()
    desk.engine_up()
    desk.streams.open(request("one"))
    desk.streams.open(request("two"))
    dies(desk, fall(1, 2))
    [suspect] = desk.engine.submits
    desk.step(Suspended(suspect.id, suspect.attempt, 3))
    assert given(desk) == [2, 2]


async def test_suspect_whose_client_leaves_frees_the_engine_for_the_others() -> None:
    desk = desk_with()
    desk.engine_up()
    desk.streams.open(request("one"))
    suspect = desk.streams.open(request("two"))
    dies(desk, fall(1, 2))
    suspect.cancel()
    assert desk.engine.cancels == [2]
    assert given(desk) == [2, 1]


async def test_accused_client_that_left_before_the_verdict_holds_nobody_up() -> None:
    desk = desk_with()
    desk.engine_up()
    desk.streams.open(request("one"))
    gone = desk.streams.open(request("two"))
    desk.streams.engine_down(0, "it died")
    gone.cancel()
    desk.streams.engine_fell(0, fall(1, 2))
    desk.engine_up()
    assert given(desk) == [1]


async def test_convictions_outlive_the_daemon_and_hold_no_text(tmp_path: Path) -> None:
    store = ConvictionStore(tmp_path / NAME, POLICY, lambda: 1000.0)
    desk = desk_with(store)
    desk.engine_up()
    desk.streams.open(request("evil!"))
    dies(desk, fall(1))
    dies(desk, fall(1))
    await store.flushed()
    data = await asyncio.to_thread((tmp_path / NAME).read_bytes)
    assert b"evil" not in data
    assert [path.name for path in await asyncio.to_thread(lambda: list(tmp_path.iterdir()))] == [NAME]
    later = await asyncio.to_thread(ConvictionStore, tmp_path / NAME, POLICY, lambda: 2000.0)
    desk = desk_with(later)
    desk.engine_up()
    with pytest.raises(PoisonousRequest):
        desk.streams.open(request("evil!"))
    much_later = await asyncio.to_thread(ConvictionStore, tmp_path / NAME, POLICY, lambda: 5000.0)
    assert not much_later.any()


@pytest.mark.parametrize("damage", [b"", b"{", b'{"convictions": [{"digest": 5}]}', b'{"other": 1}'])
def test_damaged_memory_is_told_and_begun_anew(tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / NAME).write_bytes(damage)
    assert not ConvictionStore(tmp_path / NAME, POLICY, lambda: 0.0).any()
    assert NAME in caplog.text


async def test_memory_that_cannot_be_written_is_told_and_still_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = ConvictionStore(tmp_path / "missing" / NAME, POLICY, lambda: 0.0)
    store.remember("aa")
    await store.flushed()
    assert store.refuses("aa")
    assert "cannot remember" in caplog.text


async def test_two_convictions_at_once_are_both_written(tmp_path: Path) -> None:
    store = ConvictionStore(tmp_path / NAME, POLICY, lambda: 0.0)
    store.remember("aa")
    store.remember("bb")
    await store.flushed()
    later = await asyncio.to_thread(ConvictionStore, tmp_path / NAME, POLICY, lambda: 1.0)
    assert later.refuses("aa")
    assert later.refuses("bb")


async def test_suspect_still_begins_where_its_reader_is() -> None:
    """What was delivered before the death is part of what the suspect is submitted with."""
    desk = desk_with()
    desk.engine_up()
    desk.streams.open(request("ab"))
    [first] = desk.engine.submits
    desk.step(started(first))
    desk.say(first, "xy")
    dies(desk, fall(1))
    [again] = desk.engine.submits
    assert isinstance(again, Submit)
    assert (again.attempt, length(again), again.max_left) == (2, 4, 98)
