"""Reads the GPUs through NVML, in one thread that may hang without anybody noticing but the reader of `sense`.

A reading that does not come within its deadline leaves the last good one in place, marks it stale, and is not asked for again
before the thread is back: no second thread is ever started. What a driver does not know is asked for once.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import SimpleQueue

from daemon.core.faults import NvmlFailed
from daemon.core.faults_host import NvmlCode
from daemon.core.gpu import GpuReading
from daemon.core.senses import Sense, SenseState
from daemon.host.nvml import FUNCTION_NOT_FOUND, Nvml, NvmlError
from daemon.host.vacancy import UsedMemory

_log = logging.getLogger("exl3d.watchdog")

NAME = "nvml"
_NOT_INITIALISED = 1
_UNSUPPORTED = frozenset({3, NvmlCode.NO_PERMISSION, FUNCTION_NOT_FOUND, NvmlCode.UNKNOWN})
"""Not Supported, Insufficient Permissions, Function Not Found; an old WSL2 says Unknown Error for Not Supported."""
_NOTHING_HERE = frozenset({NvmlCode.DRIVER_NOT_LOADED, NvmlCode.LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND})
"""How the first start fails on a machine without an NVIDIA driver."""
_VITAL = frozenset(NvmlCode) - {NvmlCode.NO_PERMISSION, NvmlCode.UNKNOWN}
"""Codes that mean something whichever call they come from."""


_FIRST_SECONDS = 30.0
"""The first answer may take this long: a driver that nobody uses wakes its cards."""
_SELDOM = 6.0
"""Periods between two readings while they fail."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one round brought. `failures` are those that mean something about health."""

    gpus: tuple[GpuReading, ...]
    failures: tuple[NvmlFailed, ...]


class _Reader:
    """Asks NVML. Belongs to the telemetry's thread."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._known: list[GpuReading] = []
        self._started = False
        self._unsupported: set[tuple[int, str]] = set()

    def read(self) -> _Reading:
        """One round. Raises NvmlError where the library cannot be started at all."""
        if not self._started:
            self._start()
        failures: list[NvmlFailed] = []
        for gpu, known in enumerate(self._known):
            self._known[gpu] = self._read_gpu(gpu, known, failures)
        if failures:
            self._stop()
        return _Reading(tuple(self._known), tuple(failures))

    def _start(self) -> None:
        self._nvml.start()
        self._started = True
        try:
            identities = [self._nvml.identity(gpu) for gpu in range(self._nvml.count())]
        except NvmlError:
            self._stop()
            raise
        before = {reading.uuid: reading for reading in self._known}
        self._known = [
            replace(before.get(card.uuid, GpuReading(card.name, card.uuid, card.pci)), pci=card.pci) for card in identities
        ]

    def _stop(self) -> None:
        """The next round starts anew: a driver that was reloaded is found again."""
        self._started = False
        try:
            self._nvml.stop()
        except NvmlError as problem:
            _log.debug("%s", problem)

    def _read_gpu(self, gpu: int, known: GpuReading, failures: list[NvmlFailed]) -> GpuReading:
        nvml = self._nvml

        def memory(reading: GpuReading) -> GpuReading:
            used, total = nvml.memory(gpu)
            return replace(reading, used_mib=used, total_mib=total)

        def utilisation(reading: GpuReading) -> GpuReading:
            return replace(reading, utilisation=nvml.utilisation(gpu))

        def temperature(reading: GpuReading) -> GpuReading:
            return replace(reading, temperature=nvml.temperature(gpu))

        def power(reading: GpuReading) -> GpuReading:
            return replace(reading, power_watts=nvml.power(gpu))

        def processes(reading: GpuReading) -> GpuReading:
            return replace(reading, processes=nvml.processes(gpu))

        for measure in (memory, utilisation, temperature, power, processes):
            if (gpu, measure.__name__) in self._unsupported:
                continue
            try:
                known = measure(known)
            except NvmlError as problem:
                if self._failed(gpu, measure.__name__, problem, vital=measure is memory):
                    failures.append(NvmlFailed(problem.call, problem.code))
                    return known
        return known

    def _failed(self, gpu: int, measure: str, problem: NvmlError, *, vital: bool) -> bool:
        """Whether a failure says something about the GPU. Where it is just not there, it is not asked for again."""
        if problem.code in _VITAL or (vital and problem.code == NvmlCode.UNKNOWN):
            return True
        if problem.code == _NOT_INITIALISED:
            self._started = False
        elif problem.code in _UNSUPPORTED:
            self._unsupported.add((gpu, measure))
            _log.info("GPU %d: no %s (%s)", gpu, measure, problem)
        return False


class GpuTelemetry:
    """See the module. `on_failure` hears, on the event loop, of failures that say something about a GPU: once while they last."""

    def __init__(
        self,
        nvml: Nvml,
        *,
        period: float,
        deadline: float,
        on_failure: Callable[[NvmlFailed], None],
        on_hang: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = _Reader(nvml)
        self._period = period
        self._deadline = deadline
        self._on_failure = on_failure
        self._on_hang = on_hang
        self._clock = clock
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._answer: asyncio.Future[_Reading] | None = None
        """The reading that is under way."""
        self._asked = 0.0
        self._gpus: tuple[GpuReading, ...] = ()
        self._good: float | None = None
        """When the last good reading was asked for."""
        self._wanted = asyncio.Event()
        self._begun = False
        """Whether NVML ever answered."""
        self._hung = False
        self._reported: frozenset[NvmlFailed] = frozenset()
        self._sense = Sense(NAME, SenseState.STARTING, "not read yet")

    def sense(self) -> Sense:
        """Whether the GPUs can be read."""
        return self._sense

    def readings(self) -> tuple[GpuReading, ...]:
        """The last good values, one a GPU in the driver's order; empty where nothing could be read yet."""
        return self._gpus

    def age(self) -> float | None:
        """Seconds since these values were good; None where nothing could be read yet."""
        return None if self._good is None else self._clock() - self._good

    def used_mib(self) -> UsedMemory | None:
        """See vacancy.MemoryGauge."""
        if self._good is None:
            return None
        return UsedMemory(self._good, {n: gpu.used_mib for n, gpu in enumerate(self._gpus) if gpu.used_mib is not None})

    def read_soon(self) -> None:
        """See vacancy.MemoryGauge."""
        self._wanted.set()

    async def run(self) -> None:
        """Read every `period` until cancelled, more seldom while readings fail. Returns only where there is no NVML here."""
        threading.Thread(target=self._work, name="exl3d-nvml", daemon=True).start()
        try:
            while True:
                self._wanted.clear()
                await self._read()
                if self._sense.state is SenseState.ABSENT:
                    return
                pause = self._period if self._sense.state is SenseState.WORKING else self._period * _SELDOM
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wanted.wait()
        finally:
            self._jobs.put(None)

    def _work(self) -> None:
        """The thread."""
        while (job := self._jobs.get()) is not None:
            job()

    async def _read(self) -> None:
        """A reading, or the one that is under way."""
        if self._answer is None:
            self._answer = self._ask()
        patience = self._deadline if self._begun else max(self._deadline, _FIRST_SECONDS)
        await asyncio.wait([self._answer], timeout=max(0.0, self._asked + patience - self._clock()))
        if self._answer.done():
            answer, self._answer = self._answer, None
            self._take(answer)
        else:
            self._hangs(self._answer, self._clock() - self._asked)

    def _ask(self) -> asyncio.Future[_Reading]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Reading] = loop.create_future()
        answer.add_done_callback(_look_at)
        self._asked = self._clock()

        def job() -> None:
            outcome: _Reading | Exception
            try:
                outcome = self._reader.read()
            except Exception as problem:  # noqa: BLE001 - carried to the event loop, which looks at it
                outcome = problem
            with contextlib.suppress(RuntimeError):  # the loop may be closed when a hung call comes back
                loop.call_soon_threadsafe(_settle, answer, outcome)

        self._jobs.put(job)
        return answer

    def _hangs(self, answer: asyncio.Future[_Reading], seconds: float) -> None:
        if not self._hung:
            self._hung = True
            answer.add_done_callback(lambda _: self._wanted.set())
            _log.warning("NVML does not answer; the last values stay")
            self._on_hang(seconds)
        self._sense = Sense(NAME, SenseState.STALE, f"no answer for {seconds:.0f} s; the last values stay")

    def _take(self, answer: asyncio.Future[_Reading]) -> None:
        self._hung = False
        problem = answer.exception()
        if problem is None:
            reading = answer.result()
            self._begun = True
            self._gpus = reading.gpus
            self._report(reading.failures)
        elif isinstance(problem, NvmlError):
            if not self._begun and problem.code in _NOTHING_HERE:
                self._sense = Sense(NAME, SenseState.ABSENT, f"no NVIDIA driver that could be asked ({problem})")
                _log.info("GPUs are not read: %s", self._sense.words)
                return
            self._report((NvmlFailed(problem.call, problem.code),))
        else:
            _log.error("NVML could not be read", exc_info=problem)
            self._sense = Sense(NAME, SenseState.STALE, f"{type(problem).__name__}: {problem}")

    def _report(self, failures: tuple[NvmlFailed, ...]) -> None:
        new = [failure for failure in failures if failure not in self._reported]
        self._reported = frozenset(failures)
        if failures:
            words = ", ".join(f"{failure.call} failed with {failure.code}" for failure in failures)
            self._sense = Sense(NAME, SenseState.STALE, f"{words}; the last values stay")
        else:
            self._good = self._asked
            self._sense = Sense(NAME, SenseState.WORKING, f"{len(self._gpus)} GPU{'' if len(self._gpus) == 1 else 's'}")
        for failure in dict.fromkeys(new):
            self._on_failure(failure)


def _look_at(answer: asyncio.Future[_Reading]) -> None:
    """Whoever asked may be gone when it comes; asyncio would call its failure forgotten."""
    if not answer.cancelled():
        answer.exception()


def _settle(answer: asyncio.Future[_Reading], outcome: _Reading | Exception) -> None:
    if answer.done():  # nobody waits any more
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
