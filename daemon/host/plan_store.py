"""Stores predicted against measured memory after each load, in the state directory, and tells plans what was learned.

A store that cannot be read or written never stops anything: the next load is told from assumptions, and the log says why.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from daemon.core.errors import ConfigError
from daemon.core.settings import EngineSettings
from daemon.core.vram_learned import FILE, Learned, learn
from daemon.core.vram_measured import compare, machine_of
from daemon.core.vram_model import PAGE
from daemon.core.vram_report import mib
from daemon.core.vram_values import Layout
from daemon.core.wire import Hello
from daemon.disk.learned import read_learned
from daemon.host.fit import Forecast
from daemon.host.kept_file import KeptFile

_log = logging.getLogger("exl3d.memory")


def known_overheads(state_dir: Path) -> Learned:
    """What earlier loads taught; nothing where there is no file, or none that can be read."""
    try:
        return read_learned(state_dir)
    except ConfigError as problem:
        _log.warning("%s, so overheads are assumed", problem)
        return Learned()


class PlanStore:
    """Lives on the event loop's thread, but for its construction. `forecast` is what was known before any engine came, `engine`
    and `context` what engines are told to load. `clock` is wall-clock time.
    """

    def __init__(
        self, state_dir: Path, forecast: Forecast, engine: EngineSettings, context: int, clock: Callable[[], float]
    ) -> None:
        self._file = KeptFile(state_dir / FILE, mode=0o644, log=_log, complaint="what loading took cannot be remembered")
        self._forecast = forecast
        self._engine = engine
        self._context = context
        self._clock = clock
        self.learned = known_overheads(state_dir)

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
        demand = model.demand(engine, self._context)
        replica = self._forecast.layout is Layout.REPLICAS
        load = compare(
            self._clock(), model.name, model.shape, model.weights, demand, hello.memory, self._forecast.others, replica=replica
        )
        for gpu, (device, held) in enumerate(zip(hello.memory, load.cards, strict=True)):
            predicted, measured, rest = mib(held.predicted), mib(held.measured), mib(held.rest)
            _log.info("memory: GPU %d (%s): %s predicted, %s measured, %s to learn", gpu, device.name, predicted, measured, rest)
        self.learned = learn(self.learned, machine_of(hello.memory, self._forecast.census.driver, replica=replica), load)
        self._file.keep(msgspec.json.format(msgspec.json.encode(self.learned)))

    async def flushed(self) -> None:
        """Wait until everything learned is on disk, or known not to get there."""
        await self._file.flushed()
