"""From samples to figures. Pure."""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from ops.bench.values import Load, Sample


class Spread(msgspec.Struct, frozen=True):
    """How a time is distributed, in milliseconds."""

    p50: float
    p90: float
    p99: float
    highest: float


class Level(msgspec.Struct, frozen=True):
    """One level of a ladder."""

    streams: int
    requests: int
    failed: int
    seconds: float
    """From the first request sent to the last answer complete."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tok_s: float
    """Generated tokens a second, all streams together."""
    tok_s_stream: float
    """Generated tokens a second of the median stream, after its first."""
    ttft_ms: Spread | None
    """From sending to the first text."""
    itl_ms: Spread | None
    """From one text event to the next. A server that joins tokens into one event has longer gaps."""
    e2e_ms: Spread | None
    """From sending to the last text."""
    problems: dict[str, int] = {}
    """How often requests failed for which reason."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of sorted values lie, interpolated between neighbours."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(seconds: Sequence[float]) -> Spread | None:
    """The distribution of times given in seconds; None of no times."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    p50, p90, p99 = (round(percentile(ordered, share) * 1000, 3) for share in (0.5, 0.9, 0.99))
    return Spread(p50, p90, p99, round(ordered[-1] * 1000, 3))


def summarise(load: Load, samples: Sequence[Sample]) -> Level:
    """Figures of one level. Failed requests are counted and left out of everything else."""
    good = [sample for sample in samples if sample.problem is None]
    seconds = max((sample.last for sample in good), default=0.0) - min((sample.sent for sample in good), default=0.0)
    completion = sum(sample.completion_tokens for sample in good)
    rates = sorted(
        (sample.completion_tokens - 1) / (sample.last - sample.first)
        for sample in good
        if sample.first is not None and sample.last > sample.first
    )
    return Level(
        streams=load.streams,
        requests=len(samples),
        failed=len(samples) - len(good),
        seconds=round(seconds, 3),
        prompt_tokens=sum(sample.prompt_tokens for sample in good),
        cached_tokens=sum(sample.cached_tokens for sample in good),
        completion_tokens=completion,
        tok_s=round(completion / seconds, 2) if seconds > 0 else 0.0,
        tok_s_stream=round(percentile(rates, 0.5), 2) if rates else 0.0,
        ttft_ms=spread([sample.first - sample.sent for sample in good if sample.first is not None]),
        itl_ms=spread([gap for sample in good for gap in sample.gaps]),
        e2e_ms=spread([sample.last - sample.sent for sample in good]),
        problems=dict(Counter(sample.problem for sample in samples if sample.problem is not None)),
    )
