"""Suspend deep in a context and go on: what is kept, what going on costs, and that the text is the one it would have been."""

import time

import msgspec

from daemon.core.settings import EngineSettings
from daemon.core.wire import Started, Suspended, TokenSpan
from tests.engine.workbench import Workbench, ask, text
from tests.gpu.report import PartFailed, Place

_PAGE = 256
_BEFORE = 45
"""Tokens delivered before."""
_ANSWER = 80


class Depth(msgspec.Struct, frozen=True):
    """One model."""

    model: str
    depth: int
    """Prompt and delivered tokens."""
    kept: int
    """Tokens whose pages, and state, were kept."""
    cached: int
    """Tokens that going on found."""
    first_seconds: float
    """From the first submission to its first tokens: the whole prefill."""
    resume_seconds: float
    """The same when it went on."""


class SuspendNumbers(msgspec.Struct, frozen=True):
    """Both kinds of model."""

    depths: list[Depth]


def run(place: Place) -> SuspendNumbers:
    """See the module."""
    settings = EngineSettings(
        backend=place.device, cache_tokens=16384, max_batch=4, chunk_tokens=512, reserve_tokens=512, threads=1
    )
    depths: list[Depth] = []
    for model in (place.dense, place.hybrid):
        bench = Workbench(model, settings)
        prompt = text(7000 if place.on_gpu else 600, seed=5)
        bench.run(ask(99, text(300, seed=99), 4))
        depth, delivered, rest = _suspended(bench, model.name, prompt)
        depths.append(depth)
        fresh = Workbench(model, settings)
        bench_answer = fresh.run(ask(1, prompt, _ANSWER))[1]
        try:
            fresh.assert_same(prompt, delivered + rest, bench_answer)
        except AssertionError as problem:
            raise PartFailed(f"{model.name}: the text after going on is another: {problem}", SuspendNumbers(depths)) from problem
        if depth.kept < depth.depth // _PAGE * _PAGE or depth.cached < depth.kept:
            raise PartFailed(f"{model.name}: {depth.kept} kept and {depth.cached} found of {depth.depth}", SuspendNumbers(depths))
    return SuspendNumbers(depths)


def _suspended(bench: Workbench, name: str, prompt: list[int]) -> tuple[Depth, list[int], list[int]]:
    began = time.perf_counter()
    bench.backend.submit(ask(1, prompt, _ANSWER))
    bench.after_tokens(1, 1)
    first = time.perf_counter() - began
    bench.after_tokens(1, _BEFORE)
    bench.backend.suspend(1)
    bench.until(lambda: bench.ended(1))
    delivered, last = bench.ids(1), bench.of(1)[-1]
    if not isinstance(last, Suspended):
        raise PartFailed(f"{name}: suspended, and yet it ended with {last}")
    bench.forget()
    began = time.perf_counter()
    again = msgspec.structs.replace(
        ask(1, prompt, _ANSWER - len(delivered), attempt=2), spans=[TokenSpan([*prompt, *delivered])], draws=len(delivered)
    )
    bench.backend.submit(again)
    bench.after_tokens(1, 1)
    resume = time.perf_counter() - began
    bench.until(lambda: bench.ended(1))
    cached = next(event.cached for event in bench.of(1) if isinstance(event, Started))
    depth = Depth(name, len(prompt) + len(delivered), last.kept, cached, round(first, 4), round(resume, 4))
    return depth, delivered, bench.ids(1)
