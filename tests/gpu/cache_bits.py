"""Quantised KV caches: a prompt's answer over 16, 8 and 4 bits, first computed, then read back from the cache."""

from statistics import mean

import msgspec

from daemon.core.settings import EngineSettings
from daemon.core.wire import Sampler, Started, Tokens
from tests.engine.workbench import Workbench, ask, text
from tests.gpu.models import served
from tests.gpu.report import PartFailed, Place

_BITS = ((16, 16), (8, 8), (8, 4), (4, 4))
_PROMPTS = 4
_PROMPT = 700
_ANSWER = 24
_NEAR = {8: 0.15, 4: 0.8}
"""Most that the log-probability of the first token may differ on average from that over fp16, by the smaller bits; measured on
the CPU path with the tiny model: 0.01 and 0.35.
"""


class BitsNumbers(msgspec.Struct, frozen=True):
    """One precision against fp16."""

    k_bits: int
    v_bits: int
    logprob_shift: float
    """Mean difference of the first token's log-probability from that over fp16."""
    same_tokens: float
    """Share of an answer's tokens that equal those over fp16, up to the first that differs."""
    cached: int
    """Tokens of a prompt found in the cache when it is asked again."""
    repeated: float
    """Share of tokens that are the same when answered from the cache."""


class CacheNumbers(msgspec.Struct, frozen=True):
    """All of them."""

    model: str
    precisions: list[BitsNumbers]


def run(place: Place) -> CacheNumbers:
    """See the module."""
    model = served(place) if place.on_gpu else place.dense
    prompts = [text(_PROMPT, seed=seed) for seed in range(_PROMPTS if place.on_gpu else 2)]
    rows: list[BitsNumbers] = []
    full: list[tuple[list[int], float]] = []
    for k_bits, v_bits in _BITS:
        settings = EngineSettings(
            backend=place.device, cache_tokens=8192, k_bits=k_bits, v_bits=v_bits, max_batch=4, chunk_tokens=512, threads=1
        )
        bench = Workbench(model, settings)
        answers = [_answer(bench, number, prompt) for number, prompt in enumerate(prompts, start=1)]
        full = full or answers
        again = [_answer(bench, 100 + number, prompt)[0] for number, prompt in enumerate(prompts)]
        rows.append(
            BitsNumbers(
                k_bits=k_bits,
                v_bits=v_bits,
                logprob_shift=round(mean(abs(one[1] - two[1]) for one, two in zip(answers, full, strict=True)), 4),
                same_tokens=round(mean(_same(one[0], two[0]) for one, two in zip(answers, full, strict=True)), 3),
                cached=min(_cached(bench, 100 + number) for number in range(len(prompts))),
                repeated=round(mean(_same(one[0], two) for one, two in zip(answers, again, strict=True)), 3),
            )
        )
    numbers = CacheNumbers(str(model), rows)
    _judge(numbers)
    return numbers


def _answer(bench: Workbench, number: int, prompt: list[int]) -> tuple[list[int], float]:
    request = msgspec.structs.replace(ask(number, prompt, _ANSWER, sampler=Sampler(temperature=0.0)), logprobs=1)
    ids = bench.run(request)[number]
    first = next(event for event in bench.of(number) if isinstance(event, Tokens))
    return ids, first.logprobs[0].top[0][1]


def _cached(bench: Workbench, number: int) -> int:
    return next(event.cached for event in bench.of(number) if isinstance(event, Started))


def _same(one: list[int], two: list[int]) -> float:
    longest = max(len(one), len(two), 1)
    return next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two))) / longest


def _judge(numbers: CacheNumbers) -> None:
    for row in numbers.precisions:
        bits = min(row.k_bits, row.v_bits)
        if row.cached < _PROMPT // 256 * 256:
            raise PartFailed(f"{row.k_bits}/{row.v_bits} bits: only {row.cached} of {_PROMPT} tokens were found again", numbers)
        if bits in _NEAR and row.logprob_shift > _NEAR[bits]:
            raise PartFailed(f"{row.k_bits}/{row.v_bits} bits: log-probabilities move by {row.logprob_shift}", numbers)
