"""How fast the CPU path is: exllamav3's generator over this project's operations against transformers' `generate`.

The demo model, greedy, one thread each, the same prompts, all tokens whatever the model says. Both are loaded side by side and
take turns, so that a machine that slows down slows both; each round's ratio is that of two runs one after the other, and the
median of the ratios counts. Which side goes first changes from round to round.

On a machine with other work the clock says more about that work than about either side, so the same is told in processor time,
which with one thread each is about what the clock would show on a machine with nothing else to do.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from daemon.core.bare_run import BareRun
from ops.bench import client
from ops.bench.processes import Bare, Setup, bare, cpu_seconds, speaker
from ops.bench.values import Load
from ops.errors import BenchFailed

_PLAIN = "tests.engine.plain_transformers"
"""Beside the tests, in a checkout: transformers is installed for them only."""


@dataclass(frozen=True, slots=True)
class _Rate:
    """How fast one side was in one round."""

    tok_s: float
    per_processor_s: float
    """Tokens a second of its processor time."""


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
    processor_time: dict[str, float]
    """The same, by tokens a second of processor time."""
    tok_s: dict[str, float]
    """Ours, by jobs."""
    transformers_tok_s: dict[str, float]
    runs: int
    tokens: int


async def measure(model: Path, size: Size) -> Cpu:
    """Run the comparison. Raises BenchFailed."""
    rates: dict[int, list[tuple[_Rate, _Rate]]] = {jobs: [] for jobs in size.jobs}
    setup = Setup(model, "cpu", cache_tokens=8192, max_batch=max(size.jobs))
    theirs_command = ["-m", _PLAIN, "--model", str(model), "--threads", str(setup.threads)]
    async with bare(setup) as ours, speaker(theirs_command) as theirs:
        for jobs in size.jobs:
            await _round(ours, theirs, _wanted(jobs, 4, size, 0), ours_first=True)
        for number in range(1, size.runs + 1):
            for jobs in size.jobs:
                pair = await _round(ours, theirs, _wanted(jobs, size.tokens, size, number), ours_first=number % 2 == 1)
                rates[jobs].append(pair)
                print(f"run {number}, {jobs} jobs: {_words(pair[0])}; transformers {_words(pair[1])}", file=sys.stderr)
    return _summary(rates, size)


def _summary(rates: Mapping[int, Sequence[tuple[_Rate, _Rate]]], size: Size) -> Cpu:
    """Medians over the rounds."""
    clock: dict[str, float] = {}
    processor: dict[str, float] = {}
    ours: dict[str, float] = {}
    theirs: dict[str, float] = {}
    for jobs, pairs in rates.items():
        clock[str(jobs)] = round(median(our.tok_s / other.tok_s for our, other in pairs), 3)
        processor[str(jobs)] = round(median(our.per_processor_s / other.per_processor_s for our, other in pairs), 3)
        ours[str(jobs)] = round(median(our.tok_s for our, _ in pairs), 1)
        theirs[str(jobs)] = round(median(other.tok_s for _, other in pairs), 1)
    return Cpu(clock, processor, ours, theirs, size.runs, size.tokens)


def _words(rate: _Rate) -> str:
    return f"{rate.tok_s:.1f} tok/s, {rate.per_processor_s:.1f} a second of processor time"


def _wanted(jobs: int, tokens: int, size: Size, seed: int) -> BareRun:
    """Prompts of their own for each round, so that no prefix cache answers for the arithmetic."""
    load = Load(streams=jobs, requests=jobs, tokens=tokens, prompt_tokens=size.prompt, seed=seed)
    return BareRun([client.prompt_text(load, number) for number in range(jobs)], jobs, tokens)


async def _round(ours: Bare, theirs: Bare, wanted: BareRun, *, ours_first: bool) -> tuple[_Rate, _Rate]:
    """Both, one after the other."""
    order: Sequence[Bare] = (ours, theirs) if ours_first else (theirs, ours)
    rates = {side.pid: await _rate(side, wanted) for side in order}
    return rates[ours.pid], rates[theirs.pid]


async def _rate(side: Bare, wanted: BareRun) -> _Rate:
    before = cpu_seconds(side.pid)
    result = await side.run(wanted)
    worked = cpu_seconds(side.pid) - before
    expected = len(wanted.prompts) * wanted.tokens
    if result.tokens != expected:
        raise BenchFailed(f"{result.tokens} tokens were made of {expected}")
    return _Rate(result.tokens / result.seconds, result.tokens / worked)
