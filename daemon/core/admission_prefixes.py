"""Which conversation a prompt goes on with, as far as an engine's prefix cache may hold it.

Chains of page digests are those of `core/prefix_watch.py`: where one page of two sequences agrees, all before it do. Nothing here
knows what the engine has evicted; what it says when a request begins is the truth.
"""

from collections import OrderedDict
from itertools import pairwise

from daemon.core.admission_values import Hint
from daemon.core.prefix_watch import DIGEST, PAGE

MOST_CONVERSATIONS = 256
"""Conversations remembered of each engine. One of 80,000 tokens takes 30 KB."""


class PrefixIndex:
    """The latest conversations of each engine. Holds digests, never text."""

    def __init__(self) -> None:
        self._known: dict[int, OrderedDict[int, list[bytes]]] = {}
        """By engine and request: the digests of its pages. The latest last."""
        self._last: dict[int, dict[bytes, int]] = {}
        """By engine and digest: the latest request whose sequence has this page."""

    def engine_up(self, engine: int) -> None:
        """Its cache is empty."""
        self._known[engine] = OrderedDict()
        self._last[engine] = {}

    def remember(self, engine: int, request: int, digests: bytes) -> None:
        """A request is over, and its sequence has this chain."""
        known = self._known.get(engine)
        if known is None or not digests:
            return
        pages = [digests[start:end] for start, end in pairwise(range(0, len(digests) + 1, DIGEST))]
        known[request] = pages
        last = self._last[engine]
        last.update(dict.fromkeys(pages, request))
        while len(known) > MOST_CONVERSATIONS:
            oldest, gone = known.popitem(last=False)
            for page in gone:
                if last.get(page) == oldest:
                    del last[page]

    def find(self, digests: bytes) -> tuple[Hint, ...]:
        """What each engine may hold of a prompt with this chain."""
        return tuple(hint for engine in self._known if (hint := self._find(engine, digests)) is not None)

    def _find(self, engine: int, digests: bytes) -> Hint | None:
        last = self._last[engine]
        low, high = 0, len(digests) // DIGEST
        while low < high:
            middle = (low + high + 1) // 2
            if digests[(middle - 1) * DIGEST : middle * DIGEST] in last:
                low = middle
            else:
                high = middle - 1
        if not low:
            return None
        return Hint(engine, low * PAGE, last[digests[(low - 1) * DIGEST : low * DIGEST]])
