"""Whether a dead engine's GPU memory has come back: the next one must not be loaded before. Decides nothing about waiting."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

SLACK_MIB = 256
"""What others on the GPU (a desktop, a browser) may have taken meanwhile."""
INNOCENT_SECONDS = 1.0
"""A process this young has not touched the GPU: it still imports torch."""


@dataclass(frozen=True, slots=True)
class UsedMemory:
    """One reading of how much memory is used."""

    t: float
    """CLOCK_MONOTONIC seconds."""
    mib: Mapping[int, int]
    """By the GPU's index; one that did not answer is missing."""


class MemoryGauge(Protocol):
    """Whoever reads the GPUs. Never blocks: a hung driver shows as a reading that gets old."""

    def used_mib(self) -> UsedMemory | None:
        """The last good reading; None where there is none."""
        ...

    def read_soon(self) -> None:
        """Somebody waits for the next reading."""
        ...


class Vacancy:
    """Compares with what was used before the last engine came. `gpus`: those of this engine; None: all."""

    def __init__(self, gauge: MemoryGauge, gpus: frozenset[int] | None = None) -> None:
        self._gauge = gauge
        self._gpus = gpus
        self._baseline: Mapping[int, int] = {}
        self._innocent_until = 0.0

    def remember(self, now: float) -> None:
        """No engine is there, and one is about to be: this is what is used without it."""
        self._innocent_until = now + INNOCENT_SECONDS
        reading = self._gauge.used_mib()
        if reading is not None:
            self._baseline = self._ours(reading)

    def notice(self) -> None:
        """An engine loads. The first reading of all may come only now: before the engine took anything, it is the measure."""
        if not self._baseline:
            reading = self._gauge.used_mib()
            if reading is not None and reading.t <= self._innocent_until:
                self._baseline = self._ours(reading)

    def vacated(self, since: float) -> bool:
        """Whether a reading made after `since` shows no more than before; without a baseline there is nothing to wait for."""
        if not self._baseline:
            return True
        self._gauge.read_soon()
        reading = self._gauge.used_mib()
        return reading is not None and reading.t > since and not self._above(self._ours(reading))

    def words(self) -> str:
        """What is used and what should be, for people."""
        reading = self._gauge.used_mib()
        if reading is None:
            return "no reading of the GPUs' memory"
        now = self._ours(reading)
        return "; ".join(
            f"GPU {gpu}: {now.get(gpu, 'unknown')} MiB used, {self._baseline[gpu]} before" for gpu in self._above(now)
        )

    def _ours(self, reading: UsedMemory) -> dict[int, int]:
        return {gpu: mib for gpu, mib in reading.mib.items() if self._gpus is None or gpu in self._gpus}

    def _above(self, now: Mapping[int, int]) -> list[int]:
        """GPUs that hold more than before; one that does not answer any more counts as one."""
        return [gpu for gpu, before in self._baseline.items() if gpu not in now or now[gpu] > before + SLACK_MIB]
