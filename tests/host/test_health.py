"""Health is computed from evidence each time; a probe is asked once for all."""

import asyncio
from dataclasses import replace

import pytest

from daemon.core.supervision_values import (
    Backoff,
    Draining,
    Failed,
    FailedKind,
    Mode,
    Ready,
    Rung,
    Starting,
    Stopped,
    Stopping,
    ThenStop,
)
from daemon.core.wire import Probe, Probed
from daemon.host.crew import Crew
from daemon.host.health import Evidence, Watch, judge, judge_all
from daemon.host.questions import Questions
from daemon.host.supervisor import View
from tests.host.desk import Desk, Engine, hello, request, tokens
from tests.process.house import until

GOOD = Evidence(Ready(1, 0, 0, 0), view_age=0.3, silence=None, stall_limit=60)
LOADING = replace(GOOD, mode=Starting(1, 0, 0, 0))


@pytest.mark.parametrize(
    "evidence",
    [
        replace(GOOD, view_age=6),
        replace(GOOD, silence=31),
        replace(GOOD, mode=Stopped()),
        replace(GOOD, mode=Starting(1, 0, 0, 0)),
        replace(GOOD, mode=Draining(1, 5)),
        replace(GOOD, mode=Stopping(1, Rung.ASKED, 5, ThenStop())),
        replace(GOOD, mode=Backoff(5, "it died")),
        replace(GOOD, mode=Failed(FailedKind.CONFIG, "bad")),
    ],
)
def test_trouble_is_not_ready_and_says_why(evidence: Evidence) -> None:
    health = judge(evidence)
    assert not health.ok
    assert health.reason


@pytest.mark.parametrize("evidence", [GOOD, replace(GOOD, silence=29)])
def test_serving_engine_is_ready(evidence: Evidence) -> None:
    assert judge(evidence).ok


def test_one_engine_that_serves_is_enough_and_the_others_are_named() -> None:
    health = judge_all([LOADING, GOOD], None)
    assert health.ok
    assert "engine 0" in health.reason
    assert not judge_all([LOADING, replace(GOOD, silence=31)], None).ok
    assert judge_all([GOOD, GOOD], None) == judge(GOOD)


def test_intake_that_people_shut_is_not_ready_and_says_why() -> None:
    health = judge_all([GOOD], "no new requests are taken: an upgrade")
    assert not health.ok
    assert "an upgrade" in health.reason


class _Observatory:
    """A watch over a desk whose supervisor says what the test wants."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.questions = Questions()
        self.crew = Crew(self.desk.streams, self.questions)
        self.mode: Mode = Starting(1, self.desk.now, self.desk.now, self.desk.now, stage="loading", done=1, total=4)
        self.watch = Watch(
            version="1",
            streams=self.desk.streams,
            questions=self.questions,
            views=[self.view],
            stall_limit=60,
            clock=lambda: self.desk.now,
        )

    def view(self) -> View:
        up = isinstance(self.mode, Ready)
        return View(self.desk.now, self.mode, restarts=2, pid=77, hello=hello() if up else None, progress=None, since=0)

    def engine_up(self) -> None:
        self.crew.engine_up(0, self.desk.engine, hello())
        self.mode = Ready(1, self.desk.now, self.desk.now, self.desk.now)


async def test_status_tells_loading_then_the_pool() -> None:
    watched = _Observatory()
    status = watched.watch.status()
    assert (status.ready, status.engines[0].state, status.engines[0].loading) == (False, "starting", 0.25)
    watched.engine_up()
    watched.desk.streams.open(request())
    status = watched.watch.status()
    assert (status.ready, status.running, status.queued, status.requests) == (True, 1, 0, 1)
    [engine] = status.engines
    assert (engine.state, engine.pid, engine.page, engine.restarts, engine.loading) == ("ready", 77, 256, 2, None)
    assert engine.pool is not None
    assert engine.pool.pages == 16


async def test_paused_intake_is_seen_in_ready_and_status() -> None:
    watched = _Observatory()
    watched.engine_up()
    watched.desk.streams.pause_intake("an upgrade at noon")
    assert "an upgrade at noon" in watched.watch.ready().reason
    status = watched.watch.status()
    assert not status.ready
    assert "an upgrade at noon" in status.shut
    watched.desk.streams.resume_intake()
    assert watched.watch.ready().ok
    assert watched.watch.status().shut == ""


async def test_each_idle_engine_is_probed_and_one_token_is_enough() -> None:
    desk = Desk(engines=2)
    questions = Questions()
    crew = Crew(desk.streams, questions)
    engines = [desk.engine, Engine()]
    for number, engine in enumerate(engines):
        crew.engine_up(number, engine, hello())
    view = View(desk.now, Ready(1, 0, 0, 0), restarts=0, pid=7, hello=hello(), progress=None, since=0)
    watch = Watch(
        version="1",
        streams=desk.streams,
        questions=questions,
        views=[lambda: view, lambda: view],
        stall_limit=60,
        clock=lambda: desk.now,
    )
    asking = asyncio.create_task(watch.deep())
    await until(lambda: all(engine.commands for engine in engines), "two probes")
    crew.engine_down(0, "it died")
    assert (questions.outstanding(0), questions.outstanding(1)) == (False, True)
    probe = engines[1].commands[-1]
    assert isinstance(probe, Probe)
    questions.answer([Probed(probe.id)])
    health = await asking
    assert health.ok
    assert "engine 0" in health.reason
    assert [status.pool is None for status in watch.status().engines] == [True, False]


async def test_fresh_token_is_proof_enough() -> None:
    watched = _Observatory()
    watched.engine_up()
    entry = watched.desk.streams.open(request())
    watched.desk.step(tokens(watched.desk.engine.submits[0], [65]))
    entry.cancel()
    assert (await watched.watch.deep()).ok
    assert not any(isinstance(command, Probe) for command in watched.desk.engine.commands)


async def test_idle_engine_is_probed_once_for_all_callers() -> None:
    watched = _Observatory()
    watched.engine_up()
    asking = [asyncio.create_task(watched.watch.deep()) for _ in range(5)]
    await until(lambda: any(isinstance(command, Probe) for command in watched.desk.engine.commands), "a probe")
    probes = [command for command in watched.desk.engine.commands if isinstance(command, Probe)]
    watched.questions.answer([Probed(probes[0].id)])
    assert all(health.ok for health in await asyncio.gather(*asking))
    assert len(probes) == 1


async def test_failed_probe_is_not_healthy_and_not_remembered() -> None:
    watched = _Observatory()
    watched.engine_up()
    for detail, ok in (("NaN everywhere", False), ("", True)):
        asking = asyncio.create_task(watched.watch.deep())
        known = len(watched.desk.engine.commands)
        await until(lambda known=known: len(watched.desk.engine.commands) > known, "a probe")
        probe = watched.desk.engine.commands[-1]
        assert isinstance(probe, Probe)
        watched.questions.answer([Probed(probe.id, detail)])
        assert (await asking).ok is ok


async def test_engine_that_dies_under_a_probe_is_not_healthy() -> None:
    watched = _Observatory()
    watched.engine_up()
    asking = asyncio.create_task(watched.watch.deep())
    await until(lambda: watched.questions.outstanding(0), "a probe")
    watched.crew.engine_down(0, "it died")
    health = await asking
    assert not health.ok
    assert "went away" in health.reason


async def test_deep_health_without_engine_asks_nobody() -> None:
    watched = _Observatory()
    assert not (await watched.watch.deep()).ok


def test_view_that_grows_old_starves_the_watchdog() -> None:
    watched = _Observatory()
    old = watched.view()
    watch = Watch(
        version="1",
        streams=watched.desk.streams,
        questions=watched.questions,
        views=[lambda: old],
        stall_limit=60,
        clock=lambda: watched.desk.now,
    )
    assert watch.supervised()
    watched.desk.now += 6
    assert not watch.supervised()
