"""What one 80,000-token prompt does to four people who are reading their answers.

1. The prompt alone: its prefill time P.
2. Four streams alone: time between two tokens, d.
3. Both together: the four's times between tokens while the prompt prefills, and its prefill time now.
4. The bare generator with exllamav3's own schedule, given the same.

q is the mean time between tokens in 3 over that in 2; s is the prefill time in 3 over that in 1. One step that does both costs
each the other's time, so (q-1)(s-1) is 1 for any fixed way of taking turns: less is won, more is lost.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import aiohttp
import msgspec

from daemon.core.bare_run import BareRun
from ops.bench import client
from ops.bench.client import session_for
from ops.bench.processes import Bare, bare
from ops.bench.streams import p99
from ops.bench.town import Plan, setup_in, town, words
from ops.bench.values import Load, Sample, Target
from ops.errors import BenchFailed


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    streams: int = 4
    prompt_tokens: int = 80_000
    itl_target_ms: float = 250.0
    speed: float = 1.0
    """How much faster than the profile the model is; times in the figures are multiplied back."""


class Schedule(msgspec.Struct, frozen=True):
    """What one schedule does."""

    itl_p99_ms: float
    decode_ms: float
    """Mean time between tokens without the prompt."""
    q: float
    s: float
    product: float
    prefill_s: float


class Interference(msgspec.Struct, frozen=True):
    """The figures, as `make bench NAME=interference` prints them last."""

    itl_p99_ms: float
    target_ms: float
    decode_ms: float
    q: float
    s: float
    product: float
    prefill_s: float
    prefill_alone_s: float
    exllamav3: Schedule | None
    """The same with the bare generator's own schedule."""
    speed: float


@dataclass(frozen=True, slots=True)
class Beside:
    """Times of the four while the prompt prefilled, in seconds."""

    before: Sequence[float]
    beside: Sequence[float]
    prefill: float


async def measure(size: Size) -> Interference:
    """Run it. Raises BenchFailed."""
    pages = -(-(size.prompt_tokens + 4608 * (size.streams + 2)) // 256) * 2
    plan = Plan(cache_tokens=256 * pages, slots=size.streams + 2, speed=size.speed, itl_target_ms=size.itl_target_ms)
    async with town(plan) as place:
        alone = await prefill_alone(place.target(), size.prompt_tokens)
        print(f"the prompt alone: {alone * size.speed:.1f} s", file=sys.stderr)
        seen = await together(place.target(), size.streams, size.prompt_tokens)
    with setup_in(plan) as setup:
        async with bare(setup) as generator:
            stock_alone, stock = await _stock(generator, size)
    ours = schedule(seen, alone, size.speed)
    return Interference(
        itl_p99_ms=ours.itl_p99_ms,
        target_ms=size.itl_target_ms,
        decode_ms=ours.decode_ms,
        q=ours.q,
        s=ours.s,
        product=ours.product,
        prefill_s=ours.prefill_s,
        prefill_alone_s=round(alone * size.speed, 2),
        exllamav3=schedule(stock, stock_alone, size.speed),
        speed=size.speed,
    )


def schedule(seen: Beside, alone: float, speed: float) -> Schedule:
    """Figures from times."""
    q = fmean(seen.beside) / fmean(seen.before)
    s = seen.prefill / alone
    return Schedule(
        itl_p99_ms=round(p99(seen.beside) * 1000 * speed, 2),
        decode_ms=round(fmean(seen.before) * 1000 * speed, 3),
        q=round(q, 3),
        s=round(s, 4),
        product=round((q - 1) * (s - 1), 3),
        prefill_s=round(seen.prefill * speed, 2),
    )


async def prefill_alone(target: Target, prompt_tokens: int) -> float:
    """Seconds to the first token of the long prompt with nobody else there."""
    async with session_for(target.key) as session:
        sample = await client.ask(session, target, _long(target, prompt_tokens, 1))
    return _first(sample) - sample.sent


async def together(target: Target, streams: int, prompt_tokens: int, *, tokens: int = 4096, quiet: int = 64) -> Beside:
    """Let `streams` answers run; once each has `quiet` tokens, send the long prompt; cut them off when it has its first token.
    Works on any server. `tokens`: length that the answers would have; they must outlast the prompt.
    """
    async with session_for(target.key) as session:
        readers = [_Reader(session, target, number, tokens) for number in range(streams)]
        tasks = [asyncio.create_task(reader.read(), name=f"reader {reader.number}") for reader in readers]
        try:
            await _until_all_have(readers, tasks, quiet)
            long = await client.ask(session, target, _long(target, prompt_tokens, 2))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    ended = _first(long)
    before = [gap for reader in readers for gap in reader.gaps(0.0, long.sent)]
    beside = [gap for reader in readers for gap in reader.gaps(long.sent, ended)]
    if not before or not beside:
        raise BenchFailed("the streams said nothing while the prompt was prefilled")
    return Beside(before, beside, ended - long.sent)


class _Reader:
    """Reads an answer that is much too long, and notes when each piece came."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, number: int, tokens: int) -> None:
        self.number = number
        self._session = session
        self._target = target
        self._tokens = tokens
        self.times: list[float] = []

    async def read(self) -> None:
        """Until cancelled."""
        load = Load(1, 1, self._tokens, 32, temperature=0.0, seed=500)
        sample = await client.ask(self._session, self._target, client.body(self._target, load, self.number), self.times.append)
        raise BenchFailed(f"a stream ended too early: {sample.problem or f'{sample.completion_tokens} tokens'}")

    def gaps(self, since: float, until: float) -> list[float]:
        """Times between tokens of which the later one came in that span."""
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False) if since < later <= until]


async def _until_all_have(readers: Sequence[_Reader], tasks: Sequence[asyncio.Task[None]], tokens: int) -> None:
    while any(len(reader.times) < tokens for reader in readers):
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.01)


def _long(target: Target, tokens: int, seed: int) -> bytes:
    return client.body(target, Load(1, 1, 1, tokens, temperature=0.0, seed=seed), 0)


def _first(sample: Sample) -> float:
    if sample.problem is not None or sample.first is None:
        raise BenchFailed(f"the long prompt failed: {sample.problem or 'no token came'}")
    return sample.first


async def _stock(generator: Bare, size: Size) -> tuple[float, Beside]:
    alone = await generator.run(BareRun([words(size.prompt_tokens, 1)], 1, 1))
    # long enough that everybody still generates when the prompt is through, whatever the schedule
    streams = [words(32, 500 + number) for number in range(size.streams)]
    tokens = 64 + 8 * -(-size.prompt_tokens // 256) + 64
    found = await generator.run(BareRun(streams, size.streams, tokens, words(size.prompt_tokens, 2), 64))
    if found.late_seconds is None or not found.gaps_beside:
        raise BenchFailed("the bare generator ended its streams before the long prompt was through")
    return alone.seconds, Beside(found.gaps_before, found.gaps_beside, found.late_seconds)
