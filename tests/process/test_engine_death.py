"""An engine may die at any moment; its streams go on with the next one as if nothing had happened."""

import asyncio
import os
import signal
from pathlib import Path

from daemon.core.events import Ended, Ending
from daemon.core.supervision_values import Ready
from tests.fake_engine import continuation
from tests.process.house import Heard, ask, hear, house, until

LOW, HIGH = 32, 127
PROMPTS = [[65, 66], [70], [80, 81, 82], [90, 33, 34, 35]]


def check_undisturbed(heards: list[Heard], count: int) -> None:
    """Each stream holds exactly what an engine that never died would have said, and ended once."""
    for prompt, heard in zip(PROMPTS, heards, strict=True):
        expected = continuation(prompt, count, LOW, HIGH)
        assert heard.ids == expected
        assert heard.text == bytes(expected).decode()
        assert [type(end) for end in heard.ends] == [Ended]
        assert heard.opened == 1


async def test_undisturbed_streams_finish_with_the_engines_ids() -> None:
    async with house() as h:
        await h.ready()
        heards = await asyncio.gather(*(hear(h.streams.open(ask(prompt, 50))) for prompt in PROMPTS))
        check_undisturbed(heards, 50)
        assert all(isinstance(heard.ends[0], Ended) and heard.ends[0].ending is Ending.LENGTH for heard in heards)
        assert [summary.attempts for summary in h.summaries] == [1, 1, 1, 1]


async def test_engine_killed_during_four_streams_lets_all_four_finish(tmp_path: Path) -> None:
    async with house("--step-seconds", "0.01") as h:
        await h.ready()
        readers = [asyncio.create_task(hear(h.streams.open(ask(prompt, 150)))) for prompt in PROMPTS]
        await until(lambda: h.view.progress is not None and h.view.progress.generated_tokens > 20, "some tokens")
        assert h.view.pid is not None
        os.kill(h.view.pid, signal.SIGKILL)
        heards = await asyncio.gather(*readers)
        check_undisturbed(heards, 150)
        assert all(heard.paused == 1 for heard in heards)
        assert h.view.restarts == 1
        assert [summary.attempts for summary in h.summaries] == [2, 2, 2, 2]


async def test_engine_that_crashes_by_itself_is_replaced(tmp_path: Path) -> None:
    async with house("--crash-after", "40", "--once", str(tmp_path / "crashed")) as h:
        await h.ready()
        heards = await asyncio.gather(*(hear(h.streams.open(ask(prompt, 50))) for prompt in PROMPTS))
        check_undisturbed(heards, 50)
        assert isinstance(h.view.mode, Ready)
