"""Notices an engine that works, but several times slower than it did, while its GPU's memory is full: the driver is moving
memory to and fro. That is written down and told; a restart would not be a cure by itself.

What a decode step takes is learned by how much is decoded: running requests and the cache pages they hold, in powers of
two. Only steps that prefill nothing are looked at. Pure but for what it has learned; one instance an engine place.
"""

from dataclasses import dataclass
from typing import TypeAlias

from daemon.core.wire import Durations, Pool

FULL = 0.97
"""Share of a GPU's memory above which it counts as full."""
ENOUGH = 200
"""Steps of a kind after which its pace counts as learned."""
SUSTAINED = 10.0
"""Seconds for which it must be slow, or well again."""
ACCEPTED = 1800.0
"""Seconds after which a slow pace is taken as the new one."""
_SLOWLY, _QUICKLY = 1 / 500, 1 / 32
_PAUSE = 5.0
"""Seconds without a step after which what came before says nothing about now."""


@dataclass(frozen=True, slots=True)
class Slowed:
    """Steps take `times` what they did: `step` seconds instead of `learned`."""

    times: float
    step: float
    learned: float


@dataclass(frozen=True, slots=True)
class Recovered:
    """Steps take about what they did; it was slow for `seconds`. `accepted`: it still is, and that is the new pace."""

    seconds: float
    accepted: bool = False


Change: TypeAlias = Slowed | Recovered
_Kind: TypeAlias = tuple[int, int]


@dataclass(slots=True)
class _Pace:
    """What was learned about one kind of step."""

    seconds: float = 0.0
    steps: int = 0

    def learn(self, seconds: float) -> None:
        self.steps += 1
        self.seconds += (seconds - self.seconds) * max(1 / self.steps, _SLOWLY)


class StepPace:
    """See the module. `factor`: how many times slower counts."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._learned: dict[_Kind, _Pace] = {}
        self._ratio = 1.0
        """Of the last steps' times to what was learned about their kind."""
        self._crossed: float | None = None
        """Since when the ratio is on the other side of its limit than `_slow_since` says."""
        self._slow_since: float | None = None
        self._latest = float("-inf")

    def saw(self, t: float, durations: Durations, pool: Pool, fullness: float | None) -> Change | None:
        """Take a step into account that ended at `t`. `fullness` of the fullest GPU it uses, 0 to 1; None where not known."""
        if durations.prefill_tokens or not durations.decode_tokens or durations.decode <= 0:
            return None
        if t - durations.decode - self._latest > _PAUSE:
            self._crossed = None
        self._latest = t
        pace = self._learned.setdefault((pool.running.bit_length(), pool.referenced.bit_length()), _Pace())
        known = pace.steps >= ENOUGH
        ratio = durations.decode / pace.seconds if known else 1.0
        if known:
            self._ratio += (min(ratio, 10 * self._factor) - self._ratio) * _QUICKLY
        if not known or (self._slow_since is None and ratio < self._factor):
            pace.learn(durations.decode)
        return self._judge(t, durations.decode, pace.seconds, fullness)

    def _judge(self, t: float, step: float, learned: float, fullness: float | None) -> Change | None:
        since = self._slow_since
        if since is not None and t - since >= ACCEPTED:
            self.forget()
            return Recovered(t - since, accepted=True)
        well = self._ratio < (1 + self._factor) / 2
        slow = self._ratio >= self._factor and fullness is not None and fullness >= FULL
        if not (slow if since is None else well):
            self._crossed = None
            return None
        if self._crossed is None:
            self._crossed = t
        if t - self._crossed < SUSTAINED:
            return None
        self._crossed = None
        if since is None:
            self._slow_since = t
            return Slowed(self._ratio, step, learned)
        self._slow_since = None
        return Recovered(t - since)

    def forget(self) -> None:
        """Learn anew: another engine, or a pace that is here to stay."""
        self._learned.clear()
        self._ratio, self._crossed, self._slow_since = 1.0, None, None
