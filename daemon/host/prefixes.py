"""Follows every request's prefix for the registry: hashes it in small slices, has its cache hit judged, counts and warns.

A slice takes a fraction of a millisecond. Worker threads would serve the event loop worse: the work holds the interpreter lock,
and a thread gives it up only every five milliseconds.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from daemon.core.prefix_watch import Allowance, Miss, MissCause, PrefixFigures, PrefixWatch, Trace
from daemon.core.requests import ValidRequest
from daemon.core.wire import Limits, Started, TokenSpan

_log = logging.getLogger("exl3d.prefix")

_SLICE = 16
"""Pages hashed in one turn of the event loop."""


class Prefixes:
    """See the module. Lives on the event loop's thread."""

    def __init__(self) -> None:
        self._watch = PrefixWatch()
        self._allowance = Allowance()
        self._work: deque[tuple[Trace, str | None]] = deque()
        """Sequences to hash, with the owner for whom to remember them afterwards."""
        self.figures = PrefixFigures()
        """Totals since the daemon started."""

    def engine_up(self, limits: Limits) -> None:
        """A new engine: its cache is empty."""
        self._allowance = Allowance.of_interval(limits.interval)
        self._watch.forget()

    def follow(self, request: ValidRequest) -> Trace | None:
        """Begin to hash a request's prompt. None: it holds images, which are not followed."""
        ids: list[Sequence[int]] = [span.ids for span in request.spans if isinstance(span, TokenSpan)]
        if len(ids) < len(request.spans):
            return None
        trace = Trace(ids[0] if len(ids) == 1 else [token for part in ids for token in part])
        self._hash(trace, None)
        return trace

    def judge(self, request: ValidRequest, trace: Trace | None, event: Started) -> None:
        """A request holds its pages for the first time: was its hit what it should have been?"""
        figures = self.figures
        prompt = request.prompt_tokens
        self.figures = replace(figures, queries=figures.queries + prompt, hits=figures.hits + event.cached)
        if trace is None:
            return
        trace.finish()
        miss = self._watch.judge(request.owner, trace, event.cached, event.kv_only, self._allowance)
        if miss is not None:
            self._count(request, miss)

    def remember(self, request: ValidRequest, trace: Trace | None, delivered: Sequence[int]) -> None:
        """A request is over, and the engine has computed all of it but its last token."""
        if trace is not None:
            trace.grow(delivered[:-1])
            self._hash(trace, request.owner)

    def _hash(self, trace: Trace, owner: str | None) -> None:
        self._work.append((trace, owner))
        if len(self._work) == 1:
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        trace, owner = self._work[0]
        if trace.advance(_SLICE):
            self._work.popleft()
            if owner is not None:
                self._watch.remember(owner, trace)
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
