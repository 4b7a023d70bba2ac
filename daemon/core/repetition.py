"""Telling an answer that runs in circles from one that merely repeats itself. Pure: ids in, a verdict out.

An answer is a loop if its last `max(least, count * p)` tokens repeat with some period p: exactly, token for token. Tables,
code and lists repeat with variations, and a modest row of equal characters is shorter than `least`. Nothing else is ever
called a loop.

How it is found, in linear time: tokens are kept as the characters of a string, one each, so that searches run at the speed of
`str.find`. Every `STRIDE` tokens the last ones are looked for among those before. Where they are found, the distance is a
period of the end of the answer; the shortest period of that stretch is the one to try. The needle is as long as the longest
period looked for, so that (by the theorem of Fine and Wilf) every distance found is a multiple of the loop's own period.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

_UTF_32 = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"
STRIDE = 64
"""Tokens between two looks."""


@dataclass(frozen=True, slots=True)
class RepetitionPolicy:
    """What counts as a loop."""

    least: int = 512
    """Tokens the repetition must span."""
    count: int = 6
    """Times the repeated passage must stand in a row."""

    @property
    def longest(self) -> int:
        """The longest period looked for: the needle and one more period must fit into what a loop spans at least."""
        return self.least * (self.count - 1) // self.count


class RepetitionDetector:
    """Watches one answer. Memory is bounded by the policy, work per token is constant."""

    __slots__ = ("_fresh", "_kept", "_policy", "_window")

    def __init__(self, policy: RepetitionPolicy) -> None:
        self._policy = policy
        self._window = ""
        self._fresh: list[int] = []
        self._kept = max(policy.least, policy.count * policy.longest)

    def push(self, ids: Sequence[int]) -> bool:
        """Take the next tokens. True: the answer has become a loop."""
        fresh = self._fresh
        fresh.extend(ids)
        if len(fresh) < STRIDE:
            return False
        self._window = (self._window + _characters(fresh))[-self._kept :]
        fresh.clear()
        return self._loops()

    def reset(self) -> None:
        """Forget everything: what follows is something new."""
        self._window = ""
        self._fresh.clear()

    def _loops(self) -> bool:
        window, longest = self._window, self._policy.longest
        end = len(window)
        if end <= longest:
            return False
        needle = window[end - longest :]
        found = window.find(needle, max(0, end - 2 * longest), end - 1)
        if found < 0:
            return False
        period = _shortest_period(window[end - (end - longest - found) :])
        span = max(self._policy.least, self._policy.count * period)
        return span <= end and window[end - span : end - period] == window[end - span + period :]


def _characters(ids: Sequence[int]) -> str:
    """A string with the code points `ids`. Vocabularies are smaller than Unicode; surrogates are characters like others here."""
    return array("I", ids).tobytes().decode(_UTF_32, "surrogatepass")


def _shortest_period(block: str) -> int:
    """The length of the shortest text of which `block` is a whole number of copies."""
    return (block + block).find(block, 1)
