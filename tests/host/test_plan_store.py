"""What the daemon remembers of loads: durable, by machine, and never in anybody's way."""

import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from daemon.core.settings import EngineSettings
from daemon.core.vram_learned import FILE, Learned, Machine
from daemon.core.vram_model import describe
from daemon.core.vram_values import Layout
from daemon.core.wire import Command, DeviceMemory, Hello, Limits, Step
from daemon.host.fit import Forecast, Weighed
from daemon.host.gpu_census import Census, CountedGpu
from daemon.host.link import CommandSink
from daemon.host.overseen import Overseen
from daemon.host.plan_store import PlanStore, known_overheads
from daemon.host.workforce import Fall
from tests.core.vram_models import ORNITH_9B, weights

GIB = 1 << 30
MODEL = Weighed("9B", describe(ORNITH_9B), weights(ORNITH_9B))
FORECAST = Forecast(MODEL, Census((CountedGpu("GPU-1", "RTX", 12 * GIB, GIB // 2),), "576.88"))


def hello(memory: list[DeviceMemory], *, pages: int = 64, slots: int = 4) -> Hello:
    limits = Limits(256, pages, slots, 2048, slots)
    return Hello(1, "boot", 1, "exl3 on cuda" if memory else "exl3 on cpu", "Qwen3_5ForCausalLM", limits, [0], 248320, memory)


def store(directory: Path, forecast: Forecast = FORECAST) -> PlanStore:
    return PlanStore(directory, forecast, EngineSettings(), 16384, lambda: 5.0)


GPU = DeviceMemory("RTX", "GPU-1", 12 * GIB, 4 * GIB, 6 * GIB, 7 * GIB, 32)


async def test_load_is_on_disk_and_found_by_the_next_daemon(tmp_path: Path) -> None:
    plans = store(tmp_path)
    plans.loaded(hello([GPU]))
    await plans.flushed()
    again = await asyncio.to_thread(known_overheads, tmp_path)
    assert again == plans.learned
    (load,) = again.of(Machine(("RTX",), "576.88", Layout.SPLIT))
    assert (load.t, load.model) == (5.0, "9B")
    (held,) = load.cards
    assert held.measured == (12 - 4 - 6) * GIB - GIB // 2 + 7 * GIB
    assert held.others == GIB // 2
    assert MODEL.weights.loaded < held.predicted < held.measured


async def test_engine_that_was_built_smaller_is_compared_with_what_it_has(tmp_path: Path) -> None:
    plans = store(tmp_path)
    plans.loaded(hello([GPU], pages=64))
    plans.loaded(hello([GPU], pages=32))
    await plans.flushed()
    first, second = plans.learned.of(Machine(("RTX",), "576.88", Layout.SPLIT))
    tokens = 32 * 256
    assert first.cards[0].predicted - second.cards[0].predicted == tokens * 8 * 4 * 1024


async def test_cpu_engine_teaches_nothing_and_the_log_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plans = store(tmp_path)
    with caplog.at_level(logging.INFO):
        plans.loaded(hello([]))
    await plans.flushed()
    assert not (tmp_path / FILE).exists()
    assert "exl3 on cpu uses no GPU, so there is nothing to compare with the plan" in caplog.text


async def test_model_without_a_plan_teaches_nothing(tmp_path: Path) -> None:
    plans = store(tmp_path, Forecast())
    plans.loaded(hello([GPU]))
    await plans.flushed()
    assert not (tmp_path / FILE).exists()


async def test_replicas_are_learned_apart(tmp_path: Path) -> None:
    plans = store(tmp_path, Forecast(MODEL, FORECAST.census, Layout.REPLICAS))
    plans.loaded(hello([GPU]))
    plans.loaded(hello([GPU]))
    await plans.flushed()
    again = await asyncio.to_thread(known_overheads, tmp_path)
    assert len(again.of(Machine(("RTX",), "576.88", Layout.REPLICAS))) == 2


def test_damaged_file_is_said_and_nothing_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).write_text('{"version": 1, "known": [{"machine"')
    with caplog.at_level(logging.WARNING):
        assert known_overheads(tmp_path) == Learned()
    assert "overheads are assumed" in caplog.text


async def test_disk_that_refuses_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "memory.tmp").mkdir()
    plans = store(tmp_path)
    with caplog.at_level(logging.WARNING):
        plans.loaded(hello([GPU]))
        await plans.flushed()
    assert "cannot be remembered" in caplog.text
    assert len(plans.learned.known) == 1


async def test_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    plans = store(tmp_path)
    plans.loaded(hello([GPU]))
    await plans.flushed()
    before = os.stat(tmp_path / FILE).st_ino  # noqa: PTH116 - the inode
    plans.loaded(hello([GPU]))
    await plans.flushed()
    assert os.stat(tmp_path / FILE).st_ino != before  # noqa: PTH116 - the inode
    assert msgspec.json.decode((tmp_path / FILE).read_bytes(), type=Learned) == plans.learned


async def test_every_engine_that_comes_up_is_compared_before_anybody_uses_it(tmp_path: Path) -> None:
    plans, came = store(tmp_path), list[int]()
    crew = Overseen(Counting(came, plans), lambda _, __: None, plans.loaded)
    crew.engine_up(1, Nowhere(), hello([GPU]))
    await plans.flushed()
    assert came == [1]


class Nowhere:
    """A link that leads nowhere."""

    def send(self, command: Command) -> None:
        """Nobody reads it."""


@dataclass
class Counting:
    """A workforce that notes how many loads were known when its engine came."""

    came: list[int]
    plans: PlanStore

    def outstanding(self, engine: int) -> bool:  # noqa: ARG002 - as Workforce has it
        return False

    def engine_up(self, engine: int, sink: CommandSink, hello: Hello) -> None:  # noqa: ARG002 - as Workforce has it
        self.came.append(len(self.plans.learned.known))

    def engine_down(self, engine: int, why: str) -> None: ...

    def engine_fell(self, engine: int, fall: Fall) -> None: ...

    def engine_coming(self, engine: int) -> None: ...

    def give_up(self, engine: int, why: str) -> None: ...

    def step(self, engine: int, step: Step) -> None: ...
