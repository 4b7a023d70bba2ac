"""How fast /health answers while the engine works: the question is whether the engine's work reaches the front at all.

1. While four streams generate on the demo model, and
2. while a prompt of about 1,500 tokens prefills on it alone,
`/health` is asked again and again over one connection. Both figures are the 99th percentile in milliseconds.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec

from ops.bench import client
from ops.bench.processes import RunningDaemon, Setup, daemon
from ops.bench.summary import spread
from ops.bench.values import Endpoint, Load, Sample, Target
from ops.errors import BenchFailed

_PAUSE = 0.01
"""Seconds between one answer and the next question."""
_OK = 200


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    streams: int = 4
    tokens: int = 96
    prompt_tokens: int = 1500


class Health(msgspec.Struct, frozen=True):
    """The figures, as `make bench NAME=health` prints them last."""

    health_p99_ms: float
    during_prefill_ms: float


async def measure(model: Path, size: Size) -> Health:
    """Run both parts. Raises BenchFailed."""
    async with daemon(Setup(model, "cpu", cache_tokens=8192, max_batch=16)) as served:
        decoding = Load(streams=size.streams, requests=size.streams, tokens=size.tokens, prompt_tokens=32, temperature=0.0)
        busy = await _ask_while(served, decoding)
        prefilling = Load(streams=1, requests=1, tokens=1, prompt_tokens=size.prompt_tokens, temperature=0.0, seed=1)
        long = await _ask_while(served, prefilling)
    return Health(health_p99_ms=_p99("generating", busy), during_prefill_ms=_p99("prefilling", long))


async def _ask_while(served: RunningDaemon, load: Load) -> list[float]:
    """Seconds of each answer of /health while a load runs."""
    target = Target(served.base_url, served.model, endpoint=Endpoint.COMPLETIONS)
    work = asyncio.create_task(client.run(target, load))
    times: list[float] = []
    async with aiohttp.ClientSession() as session:
        while not work.done():
            began = time.perf_counter()
            async with session.get(served.health_url) as answer:
                await answer.read()
            times.append(time.perf_counter() - began)
            if answer.status != _OK:
                raise BenchFailed(f"/health answered {answer.status} while the engine was working")
            await asyncio.sleep(_PAUSE)
    await _check(work)
    return times


async def _check(work: Awaitable[list[Sample]]) -> None:
    for sample in await work:
        if sample.problem is not None:
            raise BenchFailed(f"a request failed: {sample.problem}")
        print(
            f"{sample.prompt_tokens} tokens in, {sample.completion_tokens} out, {sample.last - sample.sent:.1f} s",
            file=sys.stderr,
        )


def _p99(what: str, times: list[float]) -> float:
    figures = spread(times)
    if figures is None:
        raise BenchFailed("nothing was measured")
    print(f"{what}: {len(times)} answers, p50 {figures.p50}, p99 {figures.p99}, slowest {figures.highest} ms", file=sys.stderr)
    return figures.p99
