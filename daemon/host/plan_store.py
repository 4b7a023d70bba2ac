"""Stores predicted against measured memory after each load, in the state directory, and tells plans what was learned.

A store that cannot be read or written never stops anything: the next load is told from assumptions, and the log says why.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from daemon.core.settings import EngineSettings
from daemon.core.vram_fit import demand_of
from daemon.core.vram_learned import FILE, Learned, learn
from daemon.core.vram_measured import compare, machine_of
from daemon.core.vram_model import PAGE
from daemon.core.vram_report import mib
from daemon.core.wire import Hello
from daemon.host.fit import Weighed

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
    """Lives on the event loop's thread, but for its construction. `others`: what other programs held before any engine came,
    by uuid of the GPU; `driver`: its version; `replicas`: whether each engine is one of several. `clock` is wall-clock time.
    """

    def __init__(
        self,
        state_dir: Path,
        model: Weighed | None,
        *,
        others: Mapping[str, int],
        driver: str,
        replicas: bool,
        clock: Callable[[], float],
    ) -> None:
        self._path = state_dir / FILE
        self._model = model
        self._others = others
        self._driver = driver
        self._replicas = replicas
        self._clock = clock
        self.learned = read_learned(state_dir)
        self._written = self.learned
        self._writing: asyncio.Task[None] | None = None

    def loaded(self, hello: Hello, engine: EngineSettings, context: int) -> None:
        """An engine has loaded. It is on disk a moment later; see `flushed`."""
        if not hello.memory:
            _log.info("memory: %s uses no GPU, so there is nothing to compare with the plan", hello.backend)
            return
        if self._model is None:
            return
        model = self._model
        allocated = msgspec.structs.replace(engine, cache_tokens=hello.limits.pages * PAGE, max_batch=hello.limits.slots)
        load = compare(
            self._clock(),
            model.name,
            model.shape,
            model.weights,
            demand_of(allocated, context, model.draft),
            hello.memory,
            self._others,
            replica=self._replicas,
        )
        for gpu, (device, held) in enumerate(zip(hello.memory, load.cards, strict=True)):
            _log.info("memory: GPU %d (%s): %s predicted, %s measured", gpu, device.name, mib(held.predicted), mib(held.measured))
        self.learned = learn(self.learned, machine_of(hello.memory, self._driver, replica=self._replicas), load)
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
