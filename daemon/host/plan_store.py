"""Stores predicted against measured memory after each load, in the state directory, and tells plans what was learned.

A store that cannot be read or written never stops anything: the next load is told from assumptions, and the log says why.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from daemon.core.settings import EngineSettings
from daemon.core.vram_fit import demand_of
from daemon.core.vram_learned import FILE, Learned, learn
from daemon.core.vram_measured import compare, machine_of
from daemon.core.vram_model import PAGE
from daemon.core.vram_report import mib
from daemon.core.vram_values import Layout
from daemon.core.wire import Hello
from daemon.host.fit import Forecast

_log = logging.getLogger("exl3d.memory")


def read_learned(state_dir: Path) -> Learned:
    """What earlier loads taught; nothing where there is no file, or none that can be read."""
    path = state_dir / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Learned)
    except FileNotFoundError:
        return Learned()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        _log.warning("%s cannot be read, so overheads are assumed: %s", path, problem)
        return Learned()


class PlanStore:
    """Lives on the event loop's thread, but for its construction. `forecast` is what was known before any engine came, `engine`
    and `context` what engines are told to load. `clock` is wall-clock time.
    """

    def __init__(
        self, state_dir: Path, forecast: Forecast, engine: EngineSettings, context: int, clock: Callable[[], float]
    ) -> None:
        self._path = state_dir / FILE
        self._forecast = forecast
        self._engine = engine
        self._context = context
        self._clock = clock
        self.learned = read_learned(state_dir)
        self._written = self.learned
        self._writing: asyncio.Task[None] | None = None

    def loaded(self, hello: Hello) -> None:
        """An engine has loaded. What it took is on disk a moment later; see `flushed`."""
        model = self._forecast.model
        if not hello.memory:
            _log.info("memory: %s uses no GPU, so there is nothing to compare with the plan", hello.backend)
            return
        if model is None:
            return
        # An engine that found too little memory is built smaller than configured: what it has is what counts.
        engine = msgspec.structs.replace(self._engine, cache_tokens=hello.limits.pages * PAGE, max_batch=hello.limits.slots)
        demand = demand_of(engine, self._context, model.beside)
        replica = self._forecast.layout is Layout.REPLICAS
        load = compare(
            self._clock(), model.name, model.shape, model.weights, demand, hello.memory, self._forecast.others, replica=replica
        )
        for gpu, (device, held) in enumerate(zip(hello.memory, load.cards, strict=True)):
            predicted, measured, rest = mib(held.predicted), mib(held.measured), mib(held.rest)
            _log.info("memory: GPU %d (%s): %s predicted, %s measured, %s to learn", gpu, device.name, predicted, measured, rest)
        self.learned = learn(self.learned, machine_of(hello.memory, self._forecast.census.driver, replica=replica), load)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write(), name="memory plan")

    async def flushed(self) -> None:
        """Wait until everything learned is on disk, or known not to get there."""
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        while self._written is not self.learned:
            learned = self.learned
            try:
                await asyncio.to_thread(_replace, self._path, msgspec.json.format(msgspec.json.encode(learned)))
            except OSError as problem:
                _log.warning("what loading took cannot be remembered: %s", problem)
            self._written = learned


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".tmp")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, opened with the right mode
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
