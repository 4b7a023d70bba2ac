"""What the daemon costs for each token, over exllamav3's generator alone.

1. Null-arithmetic: the model costs nothing, so what remains is scheduling and serving. For 1, 8 and 64 streams the bare
   generator and the daemon take turns; CPU time is read from the scheduler for front, engine and bare process.
2. The demo model: real arithmetic on the CPU, 1 and 8 streams, tokens a second through the daemon over those of the generator.
Everything is the median of its runs.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from daemon.core.bare_run import BareRun
from ops.bench import client
from ops.bench.processes import Bare, RunningDaemon, Setup, bare, cpu_seconds, daemon
from ops.bench.summary import summarise
from ops.bench.values import Endpoint, Load, Target
from ops.errors import BenchFailed

_PROMPT = 32
"""Words a prompt: too few to matter beside what is generated."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    runs: int = 5
    null_tokens: int = 20480
    """Generated tokens a run at each level of the null backend."""
    null_streams: tuple[int, ...] = (1, 8, 64)
    demo_tokens: int = 96
    """Generated tokens a stream of the demo model."""
    demo_streams: tuple[int, ...] = (1, 8)
    longest: int = 2048
    """Most tokens one request of the null backend generates."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of a level on both sides, in microseconds of CPU time a token and tokens a second."""

    front: float
    engine: float
    bare: float
    tok_s: float
    bare_tok_s: float


class Overhead(msgspec.Struct, frozen=True):
    """The figures, as `make bench NAME=overhead` prints them last. CPU times are those at the most streams."""

    front_us_per_token: float
    engine_us_per_token: float
    bare_us_per_token: float
    tok_s: dict[str, float]
    """Through the daemon on the null backend, by streams."""
    demo: dict[str, float]
    """Daemon over bare generator on the demo model, by streams: 1 is as fast."""


async def measure(model: Path, size: Size) -> Overhead:
    """Run the whole comparison. Raises BenchFailed."""
    widest = max(size.null_streams)
    null = await _compare(
        Setup(model, "null", cache_tokens=65536, max_batch=widest),
        [_null_load(streams, size) for streams in size.null_streams],
        size.runs,
    )
    demo = await _compare(
        Setup(model, "cpu", cache_tokens=8192, max_batch=16),
        [_load(streams, streams, size.demo_tokens) for streams in size.demo_streams],
        size.runs,
    )
    most = null[widest]
    return Overhead(
        front_us_per_token=round(median(turn.front for turn in most), 2),
        engine_us_per_token=round(median(turn.engine for turn in most), 2),
        bare_us_per_token=round(median(turn.bare for turn in most), 2),
        tok_s={str(streams): round(median(turn.tok_s for turn in turns), 1) for streams, turns in null.items()},
        demo={str(streams): round(median(turn.tok_s / turn.bare_tok_s for turn in turns), 3) for streams, turns in demo.items()},
    )


def _null_load(streams: int, size: Size) -> Load:
    """Enough requests for the tokens of a run, none longer than a context holds."""
    tokens = min(size.longest, -(-size.null_tokens // streams))
    rounds = -(-size.null_tokens // (streams * tokens))
    return _load(streams, streams * rounds, tokens)


def _load(streams: int, requests: int, tokens: int) -> Load:
    return Load(streams=streams, requests=requests, tokens=tokens, prompt_tokens=_PROMPT, temperature=0.0)


async def _compare(setup: Setup, loads: Sequence[Load], runs: int) -> dict[int, list[Turn]]:
    """Both sides in turns, so that a machine that slows down slows both."""
    turns: dict[int, list[Turn]] = {load.streams: [] for load in loads}
    if not loads:
        return turns
    async with bare(setup) as alone, daemon(setup) as served:
        for load in loads:
            await _turn(alone, served, _warm_up(load))
        for number in range(1, runs + 1):
            for load in loads:
                turn = await _turn(alone, served, load)
                turns[load.streams].append(turn)
                _tell(setup.backend, number, load, turn)
    return turns


def _warm_up(load: Load) -> Load:
    """A short run before the first that counts: pools of threads, connections and buffers are made by it."""
    return _load(load.streams, load.streams, min(load.tokens, 16))


async def _turn(alone: Bare, served: RunningDaemon, load: Load) -> Turn:
    prompts = [client.prompt_text(load, number) for number in range(load.requests)]
    before = cpu_seconds(alone.pid)
    result = await alone.run(BareRun(prompts, load.streams, load.tokens))
    bare_cpu = cpu_seconds(alone.pid) - before
    expected = load.requests * load.tokens
    if result.tokens != expected:
        raise BenchFailed(f"the bare generator made {result.tokens} tokens of {expected}")
    before_front, before_engine = cpu_seconds(served.front), cpu_seconds(served.engine)
    target = Target(served.base_url, served.model, endpoint=Endpoint.COMPLETIONS)
    level = summarise(load, await client.run(target, load))
    front, engine = cpu_seconds(served.front) - before_front, cpu_seconds(served.engine) - before_engine
    if level.failed or level.completion_tokens != expected:
        raise BenchFailed(f"the daemon made {level.completion_tokens} tokens of {expected}; failures: {level.problems}")
    return Turn(
        front=front / expected * 1e6,
        engine=engine / expected * 1e6,
        bare=bare_cpu / expected * 1e6,
        tok_s=level.tok_s,
        bare_tok_s=result.tokens / result.seconds,
    )


def _tell(backend: str, number: int, load: Load, turn: Turn) -> None:
    print(
        f"{backend:>4} run {number}, {load.streams:>2} streams: front {turn.front:.1f}, engine {turn.engine:.1f},"
        f" bare {turn.bare:.1f} us/token; daemon {turn.tok_s:,.0f}, bare {turn.bare_tok_s:,.0f} tok/s",
        file=sys.stderr,
    )
