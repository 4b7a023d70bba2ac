"""Penalties against loops written from rep_pen.cu and dry.cu."""

import pytest
import torch
from torch import Tensor

from daemon.engine.cpu import penalties

VOCABULARY = 32
ALL = 10**8
"""A range that reaches over any text, as exllamav3's default."""


def logits(seed: int = 0) -> Tensor:
    return torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def history(length: int, seed: int = 1, top: int = VOCABULARY) -> Tensor:
    return torch.randint(0, top, (1, length), generator=torch.Generator().manual_seed(seed))


def kernel_weights(past: list[int], sustain: int, decay: int) -> list[tuple[int, float]]:
    """(token, factor) of each past token, as the kernels compute them."""
    out: list[tuple[int, float]] = []
    for i, token in enumerate(past):
        if i < len(past) - sustain - decay or not 0 <= token < VOCABULARY:
            continue
        distance = len(past) - i
        factor = 1.0 - (distance - sustain) / decay if decay > 0 else 1.0
        out.append((token, min(max(factor, 0.0), 1.0)))
    return out


RANGES = [(ALL, 0), (5, 0), (5, 10), (0, 10), (3, 100)]


@pytest.mark.parametrize(("sustain", "decay"), RANGES)
@pytest.mark.parametrize("factor", [1.3, 0.8])
def test_repetition_penalty_equals_kernel(factor: float, sustain: int, decay: int) -> None:
    given, past = logits(), history(20)
    out = torch.empty_like(given)
    penalties.apply_rep_pens(given, out, past, factor, sustain, decay)
    greatest = [0.0] * VOCABULARY
    for token, weight in kernel_weights(past[0].numpy().tolist(), sustain, decay):
        greatest[token] = max(greatest[token], weight)
    wanted = [
        (v / factor if v > 0 else v * factor) * w + v * (1 - w) for v, w in zip(given[0].numpy().tolist(), greatest, strict=True)
    ]
    assert torch.allclose(out[0], torch.tensor(wanted), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("sustain", "decay"), RANGES)
def test_presence_and_frequency_penalties_equal_kernel(sustain: int, decay: int) -> None:
    given, past = logits().half(), history(20)
    out = torch.empty(1, VOCABULARY)
    penalties.apply_pres_freq_pens(given, out, past, 0.7, 0.2, sustain, decay)
    greatest, sums = [0.0] * VOCABULARY, [0.0] * VOCABULARY
    for token, weight in kernel_weights(past[0].numpy().tolist(), sustain, decay):
        greatest[token] = max(greatest[token], weight)
        sums[token] += weight
    wanted = [v - 0.2 * s - 0.7 * g for v, s, g in zip(given[0].numpy().tolist(), sums, greatest, strict=True)]
    assert torch.allclose(out[0], torch.tensor(wanted), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("penalise", [penalties.apply_rep_pens, penalties.apply_pres_freq_pens])
def test_forbidden_tokens_stay_forbidden_and_foreign_ids_are_ignored(penalise: object) -> None:
    """Masks are -inf, seen or not; ids of images lie far beyond the vocabulary."""
    given, past = logits(), torch.tensor([[3, 10**9, 3, 4]])
    given[0, 3] = given[0, 5] = float("-inf")
    out = torch.empty_like(given)
    assert callable(penalise)
    penalise(given, out, past, *((1.2,) if penalise is penalties.apply_rep_pens else (0.5, 0.5)), ALL, 0)
    assert out[0, 3] == out[0, 5] == float("-inf")
    assert not out.isnan().any()


def test_nothing_seen_changes_nothing() -> None:
    given, out = logits(), torch.empty(1, VOCABULARY)
    penalties.apply_rep_pens(given, out, torch.empty(1, 0, dtype=torch.long), 1.5, ALL, 0)
    assert torch.allclose(out, given)


def test_several_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="one row"):
        penalties.apply_rep_pens(torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(2, 1, dtype=torch.long), 1.1, ALL, 0)


def dry_by_loops(
    past: list[int], breakers: set[int], multiplier: float, base: float, allowed: int, span: int, limit: int, cap: int
) -> dict[int, float]:
    """Penalty by token, as dry_penalty_kernel computes it."""
    window = past[-span:] if span > 0 else past
    recent = window[::-1]
    reach = next((i for i, token in enumerate(recent) if token in breakers), len(recent))
    if len(recent) <= allowed or reach < allowed:
        return {}
    longest: dict[int, int] = {}
    most = min(allowed + limit if limit > 0 else cap, reach)
    for k in range(1, len(recent)):
        length = 0
        while length < min(most, len(recent) - k) and recent[length] == recent[length + k]:
            length += 1
        if length >= allowed:
            longest[recent[k - 1]] = max(longest.get(recent[k - 1], -1), length)
    return {
        token: multiplier * base ** (min(length - allowed, limit) if limit > 0 else length - allowed)
        for token, length in longest.items()
        if token not in breakers
    }


@pytest.mark.parametrize("breakers", [set[int](), {2}, {0, 1, 2}])
@pytest.mark.parametrize(("span", "limit", "cap"), [(0, 0, 2048), (12, 0, 2048), (0, 3, 2048), (0, 0, 4)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_dry_penalty_equals_kernel(seed: int, span: int, limit: int, cap: int, breakers: set[int]) -> None:
    """Three different tokens over forty places repeat each other at every length."""
    past, given, out = history(40, seed, top=3), logits(), torch.empty(1, VOCABULARY)
    mask = torch.zeros(VOCABULARY, dtype=torch.bool)
    mask[list(breakers)] = True
    scratch = torch.full((VOCABULARY,), -1, dtype=torch.int32)
    penalties.dry_penalty(given, out, past, mask if breakers else None, scratch, scratch[:1], 0.8, 1.75, 2, span, limit, cap)
    charges = dry_by_loops(past[0].numpy().tolist(), breakers, 0.8, 1.75, 2, span, limit, cap)
    wanted = torch.tensor([v - charges.get(i, 0.0) for i, v in enumerate(given[0].numpy().tolist())])
    assert torch.allclose(out[0], wanted, rtol=1e-5, atol=1e-5)


def test_dry_charges_what_would_continue_a_verbatim_repeat() -> None:
    past = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7]])
    given, out = torch.zeros(1, VOCABULARY), torch.empty(1, VOCABULARY)
    scratch = torch.full((VOCABULARY,), -1, dtype=torch.int32)
    penalties.dry_penalty(given, out, past, None, scratch, scratch[:1], 1.0, 2.0, 2, 0, 0, 2048)
    assert out[0, 8] == -2.0
    assert out.sum() == -2.0
