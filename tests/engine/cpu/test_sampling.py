"""Draws: which tokens can be drawn at all, in what proportions, and that a seed repeats."""

import math

import pytest
import torch
from torch import Tensor

from daemon.engine.cpu import sampling

GREEDY, TEMPERATURE, MIN_P, FILTERS = 0, 1, 2, 3
TOP_K, TOP_P, MIN_P_FILTER = 1, 2, 4
DRAWS = 4000


def draw(
    logits: Tensor,
    mode: int,
    *,
    seed: int = 0,
    mask: Tensor | None = None,
    bits: Tensor | None = None,
    size: int | None = None,
    temperature: float = 1.0,
    min_p: float = 1.0,
    filters: int = 0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> list[int]:
    out = torch.empty(logits.shape[0], 1, dtype=torch.long)
    width = logits.shape[-1] if size is None else size
    space = torch.empty(8)
    sampling.fused_sampler(
        logits, mask, bits, out, space, width, 1 / temperature, math.log(min_p), seed, mode, filters, top_k, top_p, 1.0, space
    )
    return out.flatten().numpy().tolist()


def shares(probabilities: list[float], mode: int, **options: float) -> Tensor:
    """How often each token was drawn, over many seeds at once: each row of a batch draws for itself."""
    rows = torch.tensor(probabilities).log().repeat(DRAWS, 1)
    drawn = draw(rows, mode, seed=11, **options)  # pyright: ignore[reportArgumentType] - options of several types, each as draw has it
    return torch.bincount(torch.tensor(drawn), minlength=len(probabilities)).float() / DRAWS


def test_greedy_takes_the_first_of_the_largest() -> None:
    assert draw(torch.tensor([[0.0, 3.0, 3.0, 1.0]]), GREEDY) == [1]


def test_draws_follow_the_softmax() -> None:
    found = shares([0.5, 0.3, 0.15, 0.05], TEMPERATURE)
    assert torch.allclose(found, torch.tensor([0.5, 0.3, 0.15, 0.05]), atol=0.03)


def test_temperature_sharpens() -> None:
    squares = torch.tensor([0.5, 0.3, 0.15, 0.05]).square()
    assert torch.allclose(shares([0.5, 0.3, 0.15, 0.05], TEMPERATURE, temperature=0.5), squares / squares.sum(), atol=0.03)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"filters": TOP_K, "top_k": 2}, [0.5, 0.3, 0, 0]),
        ({"filters": TOP_P, "top_p": 0.75}, [0.5, 0.3, 0, 0]),
        ({"filters": TOP_P, "top_p": 0.85}, [0.5, 0.3, 0.15, 0]),
        ({"filters": TOP_P, "top_p": 0.01}, [0.5, 0, 0, 0]),
        ({"filters": MIN_P_FILTER, "min_p": 0.25}, [0.5, 0.3, 0.15, 0]),
        ({"filters": TOP_K | TOP_P, "top_k": 3, "top_p": 0.6}, [0.5, 0.3, 0, 0]),
        ({"filters": TOP_K | TOP_P | MIN_P_FILTER, "top_k": 3, "top_p": 0.99, "min_p": 0.5}, [0.5, 0.3, 0, 0]),
    ],
)
def test_filters_keep_what_they_should(options: dict[str, float], kept: list[float]) -> None:
    found = shares([0.5, 0.3, 0.15, 0.05], FILTERS, **options)
    assert torch.allclose(found, torch.tensor(kept) / sum(kept), atol=0.03)


def test_top_k_keeps_all_that_tie_with_the_last() -> None:
    found = shares([0.4, 0.2, 0.2, 0.2], FILTERS, filters=TOP_K, top_k=2)
    assert torch.allclose(found, torch.tensor([0.4, 0.2, 0.2, 0.2]), atol=0.03)


def test_min_p_mode_is_relative_to_the_largest() -> None:
    found = shares([0.5, 0.3, 0.15, 0.05], MIN_P, min_p=0.5)
    assert torch.allclose(found, torch.tensor([0.625, 0.375, 0, 0]), atol=0.03)


def test_masks_forbid() -> None:
    rows = torch.zeros(200, 40)
    forbidden = torch.zeros(1, 40, dtype=torch.half)
    forbidden[0, 3:] = float("-inf")
    assert set(draw(rows, TEMPERATURE, mask=forbidden)) == {0, 1, 2}
    bits = torch.tensor([[1 << 5 | -(1 << 31), 1 << 2]], dtype=torch.int32)
    assert set(draw(rows, TEMPERATURE, bits=bits)) == {5, 31, 34}
    assert set(draw(rows, TEMPERATURE, size=2)) == {0, 1}


def test_bit_masks_are_applied_to_a_copy() -> None:
    logits, out = torch.arange(70.0).view(1, 70), torch.empty(1, 70)
    sampling.apply_logit_bitmask(logits, out, torch.tensor([[0b101, -1]], dtype=torch.int32))
    allowed = torch.isfinite(out[0]).nonzero().flatten().numpy().tolist()
    assert allowed == [0, 2, *range(32, 64)]
    assert out[0, 40] == 40


def test_seed_repeats_and_another_differs() -> None:
    rows = torch.zeros(64, 50)
    assert draw(rows, TEMPERATURE, seed=2**32 - 1) == draw(rows, TEMPERATURE, seed=2**32 - 1)
    assert draw(rows, TEMPERATURE, seed=1) != draw(rows, TEMPERATURE, seed=2)


def test_noise_is_gumbel_noise() -> None:
    """Mean: Euler's constant; variance: π²/6."""
    out = torch.empty(200_000)
    sampling.gumbel_noise_f32(torch.zeros(200_000), out, 5)
    assert out.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert out.var().item() == pytest.approx(math.pi**2 / 6, abs=0.04)
    half = torch.empty(200_000, dtype=torch.half)
    sampling.gumbel_noise_f16(torch.zeros(200_000, dtype=torch.half), half, 5)
    assert torch.allclose(half.float(), out, atol=2e-2)
    logs = torch.empty(200_000)
    sampling.gumbel_noise_log(torch.full((200_000,), 0.5), logs, 5)
    assert torch.allclose(logs, out + math.log(0.5), atol=1e-5)


def test_adaptive_p_equals_kernel_but_for_the_noise() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 1e-9, 0.2]])
    out, noise = torch.empty(1, 4), torch.empty(1, 4)
    sampling.adaptivep_gumbel_noise_f32(probabilities, out, 3, 0.4, 1 / 0.3, 5.0, 10.0)
    sampling.gumbel_noise_f32(torch.zeros(1, 4), noise, 3)
    for i, p in enumerate(probabilities[0].numpy().tolist()):
        distance = abs(p - 0.4) / 0.3
        wanted = 5.0 - 10.0 * distance * distance / (distance + 1) + float(noise[0, i]) if p >= 1e-8 else float("-inf")
        assert out[0, i].item() == pytest.approx(wanted, abs=1e-4)


def test_infinities_and_nans_are_counted_on() -> None:
    counts = torch.tensor([1, 1])
    sampling.count_inf_nan(torch.tensor([1.0, math.inf, -math.inf, math.nan]), counts)
    assert counts.numpy().tolist() == [3, 2]
