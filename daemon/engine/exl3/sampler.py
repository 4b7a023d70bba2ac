"""Sampling parameters as exllamav3 samplers, and the probabilities that go with a token.

Seeds: the library draws one number a token from the job's generator; a resumed request skips as many as were delivered.
Penalties see tokens from `Submit.origin` on: `job.py` hands the sampler that part of the sequence alone.
"""

import random

import torch
from exllamav3 import ComboSampler, CustomSampler, Tokenizer
from exllamav3.generator.sampler.custom import (
    SS_DRY,
    SS_XTC,
    SS_Argmax,
    SS_Base,
    SS_LogitBias,
    SS_MinP,
    SS_PresFreqP,
    SS_RepP,
    SS_Sample,
    SS_Temperature,
    SS_TopK,
    SS_TopP,
    dry_sequence_breaker_tokens,
)

from daemon.core.wire import Sampler, TokenLogprob
from daemon.engine.tensors import floats, integers

DRAW_LIMIT = (1 << 32) - 1
"""The largest number a draw can give, as in exllamav3's own job."""


def build_sampler(wanted: Sampler, tokenizer: Tokenizer) -> CustomSampler:
    """The sampler for one request. Raises ValueError or AssertionError where a value is out of range."""
    if wanted.temperature < 0 or wanted.top_k < 0 or not 0 <= wanted.top_p <= 1 or not 0 <= wanted.min_p <= 1:
        raise ValueError("temperature and top_k must not be negative, top_p and min_p must lie between 0 and 1")
    if not wanted.logit_bias and wanted.dry is None and wanted.xtc is None:
        return ComboSampler(
            rep_p=wanted.repetition_penalty,
            freq_p=wanted.frequency_penalty,
            pres_p=wanted.presence_penalty,
            temperature=wanted.temperature,
            min_p=wanted.min_p,
            top_k=wanted.top_k,
            top_p=wanted.top_p,
            temp_last=wanted.temperature_last,
        )
    return CustomSampler([*_before(wanted, tokenizer), *_choice(wanted, tokenizer)])


def _before(wanted: Sampler, tokenizer: Tokenizer) -> list[SS_Base]:
    steps: list[SS_Base] = [
        SS_LogitBias(dict(wanted.logit_bias)),
        SS_RepP(wanted.repetition_penalty),
        SS_PresFreqP(wanted.presence_penalty, wanted.frequency_penalty),
    ]
    if wanted.dry is not None:
        breakers = dry_sequence_breaker_tokens(tokenizer, tuple(wanted.dry.breakers)) if wanted.dry.breakers else None
        steps.append(SS_DRY(wanted.dry.multiplier, wanted.dry.base, wanted.dry.allowed_length, wanted.dry.range, breakers))
    return steps


def _choice(wanted: Sampler, tokenizer: Tokenizer) -> list[SS_Base]:
    if wanted.temperature == 0 or wanted.top_k == 1:
        return [SS_Argmax()]
    first, last = (1.0, wanted.temperature) if wanted.temperature_last else (wanted.temperature, 1.0)
    steps: list[SS_Base] = [SS_Temperature(first), SS_MinP(wanted.min_p), SS_TopK(wanted.top_k), SS_TopP(wanted.top_p)]
    if wanted.xtc is not None:
        steps.append(SS_XTC(wanted.xtc.probability, wanted.xtc.threshold, tokenizer=tokenizer))
    return [*steps, SS_Temperature(last), SS_Sample()]


def seeded(seed: int | None, draws: int) -> random.Random:
    """The generator a job draws from, after `draws` draws."""
    numbers = random.Random(seed)  # noqa: S311 - sampling text, not secrets
    if seed is not None:
        for _ in range(draws):
            numbers.randint(0, DRAW_LIMIT)
    return numbers


class Probabilities:
    """Log-probabilities from raw logits, computed where the logits are and read after the step's one synchronisation."""

    def __init__(self, logits: torch.Tensor, vocabulary: int, top: int) -> None:
        row = torch.log_softmax(logits.reshape(-1)[:vocabulary].float(), dim=-1)
        self._row = row
        self._top = torch.topk(row, min(top, vocabulary)) if top > 0 else None

    def of(self, token: int) -> TokenLogprob:
        """Those of a chosen token, with the most likely alternatives."""
        chosen = float(self._row[token])
        if self._top is None:
            return TokenLogprob(chosen)
        return TokenLogprob(chosen, list(zip(integers(self._top.indices), floats(self._top.values), strict=True)))
