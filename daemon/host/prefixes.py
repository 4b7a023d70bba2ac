"""Follows every request's prefix for the registry: hashes it in small slices, has its cache hit judged, counts and warns.

A slice takes a fraction of a millisecond. Worker threads would serve the event loop worse: the work holds the interpreter lock,
and a thread gives it up only every five milliseconds.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from daemon.core.pictures import ids_of
from daemon.core.prefix_watch import Allowance, Miss, MissCause, PrefixFigures, PrefixWatch, Trace
from daemon.core.requests import ValidRequest
from daemon.core.wire import ImageSpan, Limits, Started, TokenSpan

_log = logging.getLogger("exl3d.prefix")

_LOWER = 0xFFFFFFFF
_SLICE = 16
"""Pages hashed in one turn of the event loop."""


@dataclass(frozen=True, slots=True)
class _Cache:
    """The prefix cache of one engine's life, as seen from here."""

    watch: PrefixWatch
    allowance: Allowance


@dataclass(frozen=True, slots=True)
class _Memo:
    """Where a sequence is to be remembered. A cache that is gone meanwhile is remembered for nobody."""

    cache: _Cache
    owner: str


class Prefixes:
    """See the module. Lives on the event loop's thread."""

    def __init__(self) -> None:
        self._caches: dict[int, _Cache] = {}
        self._work: deque[tuple[Trace, _Memo | None]] = deque()
        """Sequences to hash, and where to remember them afterwards."""
        self.figures = PrefixFigures()
        """Totals since the daemon started."""

    def engine_up(self, engine: int, limits: Limits) -> None:
        """A new engine: its cache is empty."""
        self._caches[engine] = _Cache(PrefixWatch(), Allowance.of_interval(limits.interval))

    def follow(self, request: ValidRequest) -> Trace:
        """Begin to hash a request's prompt. Of a picture's ids the lower half will do: they are as good as random."""
        match request.spans:
            case (TokenSpan(ids=ids),):
                trace = Trace(ids)
            case spans:
                trace = Trace([token & _LOWER for token in ids_of(spans)])
        self._hash(trace, None)
        return trace

    def judge(self, engine: int, request: ValidRequest, trace: Trace | None, event: Started) -> None:
        """A request holds its pages for the first time: was its hit what it should have been?"""
        figures = self.figures
        prompt = request.prompt_tokens
        self.figures = replace(figures, queries=figures.queries + prompt, hits=figures.hits + event.cached)
        cache = self._caches.get(engine)
        if trace is None or cache is None:
            return
        trace.finish()
        miss = cache.watch.judge(request.owner, trace, event.cached, event.kv_only, cache.allowance)
        if miss is not None and not (miss.cause is MissCause.TEMPLATE_CHANGED and _shows_pictures(request)):
            # The same words about another picture are no earlier turn that reads differently now.
            self._count(request, miss)

    def remember(self, engine: int, request: ValidRequest, trace: Trace | None, delivered: Sequence[int]) -> None:
        """A request is over, and this engine has computed all of it but its last token."""
        cache = self._caches.get(engine)
        if trace is not None and cache is not None:
            trace.grow(delivered[:-1])
            self._hash(trace, _Memo(cache, request.owner))

    def _hash(self, trace: Trace, memo: "_Memo | None") -> None:
        self._work.append((trace, memo))
        if len(self._work) == 1:
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        trace, memo = self._work[0]
        if trace.advance(_SLICE):
            self._work.popleft()
            if memo is not None:
                memo.cache.watch.remember(memo.owner, trace)
        if self._work:
            asyncio.get_running_loop().call_soon(self._turn)

    def _count(self, request: ValidRequest, miss: Miss) -> None:
        figures = self.figures
        words = f"{request.name} of {request.owner} found {miss.cached} of {miss.expected} tokens: {_explained(miss.cause)}"
        match miss.cause:
            case MissCause.EVICTED:
                figures = replace(figures, evicted=figures.evicted + 1, last=words)
            case MissCause.NO_CHECKPOINT:
                figures = replace(figures, no_checkpoint=figures.no_checkpoint + 1, last=words)
            case MissCause.TEMPLATE_CHANGED:
                figures = replace(figures, template_changed=figures.template_changed + 1, last=words)
            case MissCause.TOO_SHORT:
                figures = replace(figures, too_short=figures.too_short + 1)
        self.figures = figures
        level = logging.DEBUG if miss.cause is MissCause.TOO_SHORT else logging.WARNING
        _log.log(level, "silent miss of the prefix cache (%s): %s", miss.cause.value, words)


def _shows_pictures(request: ValidRequest) -> bool:
    return any(isinstance(span, ImageSpan) for span in request.spans)


def _explained(cause: MissCause) -> str:
    """The cause for people, with what may help."""
    match cause:
        case MissCause.EVICTED:
            return "the cache was too small to keep them (engine.cache_tokens, engine.k_bits)"
        case MissCause.NO_CHECKPOINT:
            return "no recurrent checkpoint covers them (engine.checkpoint_memory_mib, engine.checkpoint_tokens)"
        case MissCause.TEMPLATE_CHANGED:
            return "the chat template or the client wrote an earlier turn differently"
        case MissCause.TOO_SHORT:
            return "they share less than a page with the request before"
