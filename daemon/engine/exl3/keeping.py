"""Which prefixes to evict last, and which first: what `Keep` and `Submit.fleeting` mean for pages and recurrent checkpoints.

exllamav3 evicts whole cached sequences, the one used longest ago first, from its tail. Between two turns of a conversation
another person's long prompt is enough to make it cold. Two of its decisions are therefore taken here:

1. Pages: the library's order stands, except that pages of requests nobody comes back to go before all others that hold
   anything, and pages on the list of `Keep` after all others, the most precious request's last. Every page of a kept prefix is
   kept with it, so that what remains of it always begins at its root.
2. Checkpoints (hybrids): a store of its own with a budget of its own, oldest out first. Before each new one those of kept
   requests are made the youngest: of every request first the two that a next turn starts from (the end of its prompt and the
   end of its answer), then the rest.

Pages of requests that are running cannot be evicted anyway; what is remembered here is what a request leaves behind.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from exllamav3.cache.recurrent import RecurrentCache
from exllamav3.constants import PAGE_SIZE
from exllamav3.generator.pagetable import CachePage, PageTable, is_content_hash

REMEMBERED = 1024
"""Requests whose pages are remembered; the oldest that nobody wants kept are forgotten first."""


@dataclass(frozen=True, slots=True)
class Trail:
    """The full pages of a request, by name, from the first on. `prompt` are those that its prompt fills."""

    pages: list[bytes]
    prompt: int


class PageHolder(Protocol):
    """A request that holds pages now."""

    def trail(self) -> Trail:
        """Its full pages."""
        ...


def full_pages(pages: Sequence[CachePage]) -> list[bytes]:
    """The names of the pages at the beginning of a sequence whose content is complete."""
    names: list[bytes] = []
    for page in pages:
        if page.kv_position != PAGE_SIZE or not is_content_hash(page.phash):
            break
        names.append(page.phash)
    return names


def drop_checkpoint(checkpoints: RecurrentCache, name: bytes) -> None:
    """Take a checkpoint out, if it is still there, and give its buffers back for the next one."""
    if name in checkpoints:
        checkpoints._release(checkpoints.pop(name))  # noqa: SLF001 - the library evicts so
        checkpoints.update_total_size()


class Keeping:
    """See the module. `holders` are the requests in the generator, by id."""

    def __init__(self, table: PageTable, checkpoints: RecurrentCache | None, holders: Mapping[int, PageHolder]) -> None:
        self._table = table
        self._checkpoints = checkpoints
        self._holders = holders
        self._wanted: tuple[int, ...] = ()
        self._left: OrderedDict[int, Trail] = OrderedDict()
        self._fleeting: set[bytes] = set()
        self._ranks: dict[bytes, int] | None = {}
        self._by_age: Callable[[set[bytes] | None], deque[CachePage]] = table.build_eviction_order
        table.build_eviction_order = self.order

    def keep(self, requests: Sequence[int]) -> None:
        """Take over the list of `Keep`: the most precious request last."""
        self._wanted = tuple(requests)
        self._ranks = None
        for request in [request for request, trail in self._left.items() if not self._is_live(trail)]:
            del self._left[request]

    def leave(self, request: int, trail: Trail, *, new_from: int | None) -> None:
        """A request gives its pages back. `new_from`: nobody comes back to it; the page from which on it made them itself."""
        if not trail.pages:
            return
        self._ranks = None
        if new_from is not None:
            self._leave_for_good(trail, new_from)
            return
        self._fleeting.difference_update(trail.pages)
        before = self._left.pop(request, None)
        longer = before is not None and before.pages[: len(trail.pages)] == trail.pages
        self._left[request] = before if before is not None and longer else trail
        if len(self._left) > REMEMBERED:
            wanted = frozenset(self._wanted)
            del self._left[next((known for known in self._left if known not in wanted), request)]

    def order(self, protected: set[bytes] | None = None) -> deque[CachePage]:
        """The pages nobody holds, the one to evict first at the front. `protected` are those the caller is about to claim."""
        by_age = self._by_age(protected)
        ranks = self._current_ranks()
        if not ranks and not self._fleeting:
            return by_age
        self._fleeting = {name for name in self._fleeting if self._table.get_live_page(name) is not None}
        claimed = protected or set()
        last = len(self._wanted) + 3

        def place(page: CachePage) -> int:
            if page.phash in claimed:
                return last
            if page.kv_position == 0:
                return 0
            if page.phash in self._fleeting:
                return 1
            return 3 + ranks[page.phash] if page.phash in ranks else 2

        return deque(sorted(by_age, key=place))

    def refresh_checkpoints(self) -> None:
        """Make the checkpoints of kept requests the youngest. Called before one is added."""
        checkpoints = self._checkpoints
        if checkpoints is None:
            return
        starts: list[bytes] = []
        for request in self._wanted:
            trail = self._trail(request)
            if trail is None:
                continue
            stashed = [(place, name) for place, name in enumerate(trail.pages, start=1) if name in checkpoints]
            for _, name in stashed:
                checkpoints.move_to_end(name)
            starts += [name for place, name in stashed if place <= trail.prompt][-1:]
            starts += [name for _, name in stashed[-1:]]
        for name in starts:
            checkpoints.move_to_end(name)

    def _leave_for_good(self, trail: Trail, new_from: int) -> None:
        """Its own pages go first, unless somebody who comes back has left the same ones."""
        shared = max((_common(trail.pages, other.pages, new_from) for other in self._left.values()), default=new_from)
        own = trail.pages[shared:]
        self._fleeting.update(own)
        if self._checkpoints is not None:
            for name in own:
                if name in self._checkpoints:
                    self._checkpoints.move_to_end(name, last=False)

    def _current_ranks(self) -> dict[bytes, int]:
        if self._ranks is None:
            self._ranks = {}
            for rank, request in enumerate(self._wanted):
                trail = self._trail(request)
                if trail is not None:
                    self._ranks.update(dict.fromkeys(trail.pages, rank))
        return self._ranks

    def _trail(self, request: int) -> Trail | None:
        holder = self._holders.get(request)
        held = None if holder is None else holder.trail()
        return held if held is not None and held.pages else self._left.get(request)

    def _is_live(self, trail: Trail) -> bool:
        return self._table.get_live_page(trail.pages[0]) is not None


def _common(one: Sequence[bytes], other: Sequence[bytes], start: int) -> int:
    """Pages both sequences begin with, `start` at least. A page's name stands for everything before it too."""
    place = start
    while place < min(len(one), len(other)) and one[place] == other[place]:
        place += 1
    return place
