"""Two engines in one daemon: the death of one moves its streams to the other, poison stops one at a time, prefixes are found."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from daemon.core.ports import EngineStatus, Status
from tests.engine.checkpoints import Architecture, write_checkpoint
from tests.process.front import Front, front
from tests.process.house import until
from tests.process.test_daemon import chat, client_of

TWO = "engine.replicas=2"
WORDS = ("ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak", "pine", "poplar", "rowan")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model directory."""
    return write_checkpoint(Architecture.LLAMA, tmp_path_factory.mktemp("llama"))


def both_ready(running: Front) -> bool:
    """Whether each engine serves."""
    return all(engine.state == "ready" for engine in running.status().engines)


def inside(engine: EngineStatus) -> int:
    """Requests that an engine computes."""
    return 0 if engine.pool is None else engine.pool.running


class Diary:
    """Statuses of a daemon, taken all the time."""

    def __init__(self, running: Front) -> None:
        self.seen: list[Status] = []
        self._running = running
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while True:
            self.seen.append(await asyncio.to_thread(self._running.status))
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """No more."""
        self._task.cancel()
        await asyncio.wait([self._task])


async def test_sixteen_streams_outlive_one_engine_and_go_on_before_it_is_back(model: Path, tmp_path: Path) -> None:
    """Real arithmetic in both engines: each stream says every word that it says when nobody dies, once."""
    prompts = [f"stream {number} of {WORDS[number % 12]}" for number in range(16)]
    with front(model, tmp_path, TWO, "engine.backend=cpu") as running:
        await until(lambda: both_ready(running), "both ready")
        async with client_of(running) as client:
            undisturbed = await asyncio.gather(*(chat(client, model.name, words, 60) for words in prompts))
            assert [reason for _, reason in undisturbed] == ["length"] * 16
            reading = asyncio.gather(*(chat(client, model.name, words, 60) for words in prompts))
            await until(lambda: [inside(engine) for engine in running.status().engines] == [8, 8], "eight in each")
            victim, survivor = running.status().engines
            assert victim.pid is not None
            diary = Diary(running)
            os.kill(victim.pid, signal.SIGKILL)
            disturbed = await reading
            await diary.close()
            assert disturbed == undisturbed
        away = [status.engines for status in diary.seen if status.engines[0].state not in {"ready", "draining"}]
        assert any(inside(other) == 16 for _, other in away), "the other never had all of them while the first was away"
        assert any(lost.recovering == 0 for lost, _ in away), "somebody waited for the first to come back"
        assert running.status().engines[1].pid == survivor.pid
        assert running.status().interruptions == 8
