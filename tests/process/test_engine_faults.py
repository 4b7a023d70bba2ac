"""Engines that hang, refuse to end, fail to load or crash in a loop, as real processes."""

import asyncio
import logging
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from daemon.core.errors import NotReady
from daemon.core.events import Ended
from daemon.core.supervision_events import RestartAsked
from daemon.core.supervision_values import Failed, FailedKind, Ready, Starting
from daemon.host.engine_process import child_environment
from tests.fake_engine import FAILING_TOKEN, continuation
from tests.process.house import POLICY, Heard, ask, hear, house, until

HASTY = replace(POLICY, load_stall=1.5, step_stall=1.5, term=0.3)
"""A policy under which hangs are found soon. Longer than any pause of a busy machine between two steps of the fake."""


def check(heard: Heard, prompt: list[int], count: int) -> None:
    """The answer of an engine that never failed."""
    assert heard.ids == continuation(prompt, count, 32, 127)
    assert [type(end) for end in heard.ends] == [Ended]


@pytest.mark.parametrize("more", [(), ("--ignore-term",)])
async def test_hung_engine_is_ended_and_its_stream_goes_on(tmp_path: Path, more: tuple[str, ...]) -> None:
    flags = ("--hang", "5", "--once", str(tmp_path / "hung"), *more)
    async with house(*flags, policy=HASTY) as h:
        await h.ready()
        first = h.view.pid
        heard = await hear(h.streams.open(ask([65], 20)))
        check(heard, [65], 20)
        assert heard.paused == 1
        assert h.view.pid != first


async def test_stopped_engine_is_noticed_and_killed() -> None:
    """A process under SIGSTOP keeps its link open and never acts on SIGTERM."""
    async with house("--step-seconds", "0.01", policy=HASTY) as h:
        await h.ready()
        reading = asyncio.ensure_future(hear(h.streams.open(ask([65], 100))))
        await until(lambda: h.view.progress is not None and h.view.progress.generated_tokens > 3, "some tokens")
        assert h.view.pid is not None
        os.kill(h.view.pid, signal.SIGSTOP)
        heard = await reading
        check(heard, [65], 100)
        assert heard.paused == 1


async def test_load_that_hangs_is_started_again(tmp_path: Path) -> None:
    async with house("--hang-loading", "--once", str(tmp_path / "hung"), policy=HASTY) as h:
        await h.ready()
        assert h.view.restarts == 1


async def test_slow_load_shows_its_progress_and_is_left_alone() -> None:
    async with house("--slow-load", "2.5", policy=HASTY) as h:
        await h.ready()
        shares = [view.mode.done / view.mode.total for view in h.views if isinstance(view.mode, Starting) and view.mode.total]
        assert shares == [0.25, 0.5, 0.75, 1.0]
        assert h.view.restarts == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--exit-code", "78"), "78"),
        (("--fatal", "config"), "told to end by a flag"),
        (("--protocol", "99"), "protocol 99"),
    ],
)
async def test_engine_that_refuses_its_configuration_is_not_started_again(flags: tuple[str, ...], words: str) -> None:
    async with house(*flags) as h:
        await until(lambda: isinstance(h.view.mode, Failed), "giving up")
        assert isinstance(h.view.mode, Failed)
        assert h.view.mode.kind is FailedKind.CONFIG
        assert words in h.view.mode.why
        assert h.view.restarts == 0
        with pytest.raises(NotReady, match=words):
            h.streams.open(ask([65], 1))


async def test_crash_loop_ends_with_the_budget_and_the_last_words(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with house("--exit-code", "3", policy=replace(POLICY, restarts=2)) as h:
            await until(lambda: isinstance(h.view.mode, Failed), "giving up")
            assert isinstance(h.view.mode, Failed)
            assert h.view.mode.kind is FailedKind.BUDGET
            assert "exit code 3" in h.view.mode.why
            assert h.view.restarts == 2
    assert any(
        "cannot load: told so by a flag" in record.getMessage() for record in caplog.records if record.name == "exl3d.engine"
    )
    assert any(
        "cannot load: told so by a flag" in record.getMessage() for record in caplog.records if record.name == "exl3d.supervisor"
    )


async def test_program_that_does_not_exist_is_told_in_words() -> None:
    async with house(argv=("/no/such/program",), policy=replace(POLICY, restarts=1)) as h:
        await until(lambda: isinstance(h.view.mode, Failed), "giving up")
        assert isinstance(h.view.mode, Failed)
        assert "/no/such/program" in h.view.mode.why


async def test_restart_on_request_keeps_streams() -> None:
    async with house("--step-seconds", "0.01") as h:
        await h.ready()
        reading = asyncio.ensure_future(hear(h.streams.open(ask([65], 100))))
        await until(lambda: h.view.progress is not None and h.view.progress.generated_tokens > 3, "some tokens")
        h.supervisor.post(RestartAsked(0.0, "a person asked"))
        check(await reading, [65], 100)
        assert isinstance(h.view.mode, Ready)


async def test_processes_an_engine_started_go_with_it(tmp_path: Path) -> None:
    note = tmp_path / "grandchild"
    async with house("--grandchild", str(note)) as h:
        await h.ready()
        grandchild = int(note.read_text())
        assert h.view.pid is not None
        os.kill(h.view.pid, signal.SIGKILL)
        await until(lambda: gone(grandchild), "the grandchild's end")


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def test_request_that_fails_in_the_engine_hurts_no_other() -> None:
    async with house() as h:
        await h.ready()
        streams = [h.streams.open(ask(prompt, 30)) for prompt in ([65], [FAILING_TOKEN])]
        good, bad = await asyncio.gather(*map(hear, streams))
        check(good, [65], 30)
        assert [type(end).__name__ for end in bad.ends] == ["Broken"]
        assert h.view.restarts == 0


async def test_idle_engine_answers_questions() -> None:
    async with house() as h:
        await h.ready()
        assert await h.questions.probe() == ""
        statistics = await h.questions.statistics()
        assert statistics is not None
        assert statistics.generated_tokens == 0


async def test_streams_that_come_and_go_leave_nothing_behind() -> None:
    async with house("--slots", "4") as h:
        await h.ready()
        for _ in range(5):
            streams = [h.streams.open(ask([65 + index], 40)) for index in range(12)]
            for stream in streams[::2]:
                stream.cancel()
            await asyncio.gather(*(hear(stream) for stream in streams))
        assert (h.streams.running, h.streams.queued, h.streams.empty) == (0, 0, True)
        assert len(h.summaries) == 60
        await h.questions.probe()
        pool = h.streams.pool(0)
        assert pool is not None
        assert pool.running == 0


def test_child_hears_nothing_of_systemd() -> None:
    ours = {
        "NOTIFY_SOCKET": "x",
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": "1",
        "LISTEN_FDS": "1",
        "PATH": "/bin",
        "PYTHONPATH": "/p",
    }
    child = child_environment(ours)
    assert {name for name in ours if name in child} == {"PATH", "PYTHONPATH"}
    assert child["PYTHONPATH"].endswith(":/p")
