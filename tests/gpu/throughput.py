"""Many streams through the daemon against exllamav3's generator alone, in turns, on the model that is served."""

import asyncio
from statistics import median

import msgspec

from daemon.core.bare_run import BareRun
from ops.bench import client
from ops.bench.processes import Bare, RunningDaemon, Setup, bare, daemon
from ops.bench.summary import summarise
from ops.bench.values import Endpoint, Load, Target
from tests.gpu.models import served
from tests.gpu.report import PartFailed, Place

_PROMPT = 32
"""Words."""


class LevelNumbers(msgspec.Struct, frozen=True):
    """One number of streams, in tokens a second, all streams together; medians of the runs."""

    streams: int
    daemon: float
    bare: float
    ratio: float
    """Daemon over bare generator, run by run: 1 is as fast."""


class ThroughputNumbers(msgspec.Struct, frozen=True):
    """All levels."""

    model: str
    tokens: int
    """Of each answer."""
    levels: list[LevelNumbers]


def run(place: Place) -> ThroughputNumbers:
    """See the module."""
    return asyncio.run(_measure(place))


async def _measure(place: Place) -> ThroughputNumbers:
    model = served(place)
    levels, tokens, runs = ((1, 8, 32, 64), 128, 3) if place.on_gpu else ((1, 4), 4, 1)
    setup = Setup(model, place.device.value, cache_tokens=256 * 2 * max(levels), max_batch=max(levels))
    measured: list[LevelNumbers] = []
    async with bare(setup) as alone, daemon(setup) as served_here:
        for streams in levels:
            await _turn(alone, served_here, _load(streams, min(8, tokens)))
            turns = [await _turn(alone, served_here, _load(streams, tokens)) for _ in range(runs)]
            measured.append(
                LevelNumbers(
                    streams,
                    daemon=round(median(through for through, _ in turns), 1),
                    bare=round(median(by_itself for _, by_itself in turns), 1),
                    ratio=round(median(through / by_itself for through, by_itself in turns), 3),
                )
            )
    return ThroughputNumbers(model.name, tokens, measured)


def _load(streams: int, tokens: int) -> Load:
    return Load(streams=streams, requests=streams, tokens=tokens, prompt_tokens=_PROMPT, temperature=0.0)


async def _turn(alone: Bare, here: RunningDaemon, load: Load) -> tuple[float, float]:
    """Tokens a second through the daemon and without it. Every token must come: fewer would look faster."""
    expected = load.requests * load.tokens
    prompts = [client.prompt_text(load, number) for number in range(load.requests)]
    by_itself = await alone.run(BareRun(prompts, load.streams, load.tokens))
    level = summarise(load, await client.run(Target(here.base_url, here.model, endpoint=Endpoint.COMPLETIONS), load))
    if by_itself.tokens != expected or level.failed or level.completion_tokens != expected:
        raise PartFailed(
            f"{load.streams} streams: of {expected} tokens the generator made {by_itself.tokens}, the daemon"
            f" {level.completion_tokens}; failures: {level.problems}"
        )
    return level.tok_s, by_itself.tokens / by_itself.seconds
