"""How fast the CPU path is: exllamav3's generator over this project's operations against transformers' `generate`.

The demo model, greedy, one thread each, the same prompts, all tokens whatever the model says. Both are loaded side by side and
take turns, so that a machine that slows down slows both; each round's ratio is that of two runs one after the other, and the
median of the ratios counts. Which side goes first changes from round to round.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from daemon.core.bare_run import BareResult, BareRun
from ops.bench import client
from ops.bench.processes import Bare, Setup, bare, speaker
from ops.bench.values import Load
from ops.errors import BenchFailed

_PLAIN = "tests.engine.plain_transformers"
"""Beside the tests, in a checkout: transformers is installed for them only."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    runs: int = 5
    tokens: int = 64
    """Of each answer."""
    prompt: int = 32
    """Words."""
    jobs: tuple[int, ...] = (1, 8)


class Cpu(msgspec.Struct, frozen=True):
    """The figures, as `make bench NAME=cpu` prints them last."""

    transformers: dict[str, float]
    """Our tokens a second over theirs, by jobs: above 1 is faster."""
    tok_s: dict[str, float]
    """Ours, by jobs."""
    transformers_tok_s: dict[str, float]
    runs: int
    tokens: int


async def measure(model: Path, size: Size) -> Cpu:
    """Run the comparison. Raises BenchFailed."""
    rates: dict[int, list[tuple[float, float]]] = {jobs: [] for jobs in size.jobs}
    setup = Setup(model, "cpu", cache_tokens=8192, max_batch=max(size.jobs))
    theirs_command = ["-m", _PLAIN, "--model", str(model), "--threads", str(setup.threads)]
    async with bare(setup) as ours, speaker(theirs_command) as theirs:
        for jobs in size.jobs:
            await _round(ours, theirs, _wanted(jobs, 4, size, 0), ours_first=True)
        for number in range(1, size.runs + 1):
            for jobs in size.jobs:
                rate = await _round(ours, theirs, _wanted(jobs, size.tokens, size, number), ours_first=number % 2 == 1)
                rates[jobs].append(rate)
                print(f"run {number}, {jobs} jobs: {rate[0]:.1f} tok/s, transformers {rate[1]:.1f}", file=sys.stderr)
    return Cpu(
        transformers={str(jobs): round(median(mine / other for mine, other in each), 3) for jobs, each in rates.items()},
        tok_s={str(jobs): round(median(mine for mine, _ in each), 1) for jobs, each in rates.items()},
        transformers_tok_s={str(jobs): round(median(other for _, other in each), 1) for jobs, each in rates.items()},
        runs=size.runs,
        tokens=size.tokens,
    )


def _wanted(jobs: int, tokens: int, size: Size, seed: int) -> BareRun:
    """Prompts of their own for each round, so that no prefix cache answers for the arithmetic."""
    load = Load(streams=jobs, requests=jobs, tokens=tokens, prompt_tokens=size.prompt, seed=seed)
    return BareRun([client.prompt_text(load, number) for number in range(jobs)], jobs, tokens)


async def _round(ours: Bare, theirs: Bare, wanted: BareRun, *, ours_first: bool) -> tuple[float, float]:
    """Tokens a second of both, one after the other."""
    order: Sequence[Bare] = (ours, theirs) if ours_first else (theirs, ours)
    results = {side.pid: await side.run(wanted) for side in order}
    return _rate(results[ours.pid], wanted), _rate(results[theirs.pid], wanted)


def _rate(result: BareResult, wanted: BareRun) -> float:
    expected = len(wanted.prompts) * wanted.tokens
    if result.tokens != expected:
        raise BenchFailed(f"{result.tokens} tokens were made of {expected}")
    return result.tokens / result.seconds
