"""How the daemon bears 1, 8, 64 and 300 streams over HTTP while the model takes the time that a profile says.

1. Each level sends that many requests at once, on one daemon with its slots and its bounded queue; nothing may fail.
2. Processor time of the front is read from the scheduler around the widest level.
3. At 64 streams the bare generator runs the same load with the same step times, in turns with the daemon; what the daemon's
   tokens a second are short of is the loss.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from daemon.core.bare_run import BareRun
from ops.bench import client
from ops.bench.processes import Bare, bare, cpu_seconds
from ops.bench.summary import Level, percentile, summarise
from ops.bench.town import Plan, Town, setup_in, town
from ops.bench.values import Load, Sample, Target
from ops.errors import BenchFailed


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    widths: tuple[int, ...] = (1, 8, 64, 300)
    tokens: int = 128
    prompt_tokens: int = 32
    slots: int = 64
    max_queued: int = 300
    beside_bare: int = 64
    """Streams at which the bare generator is compared."""
    bare_tokens: int = 256
    runs: int = 3
    """Of the comparison; the median counts."""


class Streams(msgspec.Struct, frozen=True):
    """The figures, as `make bench NAME=streams` prints them last."""

    errors: int
    tok_s: dict[str, float]
    ttft_p99_s: dict[str, float]
    front_us_per_token: float
    """Processor time of the front at the most streams."""
    loss_beside_bare: float
    """Share of the bare generator's tokens a second that the daemon is short of."""
    slots: int
    max_queued: int


async def measure(size: Size) -> Streams:
    """Run it. Raises BenchFailed."""
    plan = Plan(cache_tokens=size.slots * 1024, slots=size.slots, max_queued=size.max_queued)
    async with town(plan) as place:
        await ladder(place.target(), [8], 8, size.prompt_tokens)
        levels: dict[int, Level] = {}
        spent = 0.0
        for width in size.widths:
            before = cpu_seconds(place.served.front)
            levels[width] = (await ladder(place.target(), [width], size.tokens, size.prompt_tokens))[0]
            spent = cpu_seconds(place.served.front) - before
        loss = await _loss(place, plan, size)
    widest = levels[size.widths[-1]]
    return Streams(
        errors=sum(level.failed for level in levels.values()),
        tok_s={str(width): level.tok_s for width, level in levels.items()},
        ttft_p99_s={
            str(width): round(level.ttft_ms.p99 / 1000, 3) for width, level in levels.items() if level.ttft_ms is not None
        },
        front_us_per_token=round(spent / max(1, widest.completion_tokens) * 1e6, 2),
        loss_beside_bare=round(loss, 4),
        slots=size.slots,
        max_queued=size.max_queued,
    )


async def ladder(
    target: Target, widths: Sequence[int], tokens: int, prompt_tokens: int, *, ignore_eos: bool = True
) -> list[Level]:
    """One level a width: that many requests, all at once. Works on any server."""
    levels: list[Level] = []
    for step, width in enumerate(widths):
        load = Load(width, width, tokens, prompt_tokens, ignore_eos=ignore_eos, temperature=0.0, seed=width + step)
        level = summarise(load, await client.run(target, load))
        levels.append(level)
        print(
            f"{width:>3} streams: {level.failed} failed, {level.tok_s:,.1f} tok/s,"
            f" first token p99 {level.ttft_ms.p99 if level.ttft_ms else 0:,.0f} ms; {level.problems or ''}",
            file=sys.stderr,
        )
    return levels


async def _loss(place: Town, plan: Plan, size: Size) -> float:
    losses: list[float] = []
    load = Load(size.beside_bare, size.beside_bare, size.bare_tokens, size.prompt_tokens, temperature=0.0, seed=99)
    with setup_in(plan) as alone:
        async with bare(alone) as generator:
            await _bare_rate(generator, load, 8)
            for number in range(size.runs):
                by_itself = await _bare_rate(generator, load, load.tokens)
                through = rate(await client.run(place.target(), load))
                losses.append(1 - through / by_itself)
                print(f"run {number + 1}: bare {by_itself:,.1f}, daemon {through:,.1f} tok/s", file=sys.stderr)
    return median(losses)


def rate(samples: Sequence[Sample]) -> float:
    """Tokens a second from the first request sent to the last token. Raises BenchFailed where one failed."""
    problem = next((sample.problem for sample in samples if sample.problem is not None), None)
    if problem is not None:
        raise BenchFailed(f"a request failed: {problem}")
    seconds = max(sample.last for sample in samples) - min(sample.sent for sample in samples)
    return sum(sample.completion_tokens for sample in samples) / seconds


async def _bare_rate(generator: Bare, load: Load, tokens: int) -> float:
    prompts = [client.prompt_text(load, number) for number in range(load.requests)]
    result = await generator.run(BareRun(prompts, load.streams, tokens))
    return result.tokens / result.seconds


def p99(values: Sequence[float]) -> float:
    """The 99th percentile of unsorted values."""
    return percentile(sorted(values), 0.99)
