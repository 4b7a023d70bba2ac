"""Norms against the plain formula in float64."""

import pytest
import torch
from torch import Tensor

from daemon.engine.cpu import norms

EPSILON = 1e-5


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def expected(x: Tensor, w: Tensor) -> Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + EPSILON).sqrt() * w.double()


@pytest.mark.parametrize("dtype", [torch.half, torch.float])
def test_rms_norm_equals_formula(dtype: torch.dtype) -> None:
    x, w, y = values(3, 128).to(dtype), values(128, seed=1).half(), torch.empty(3, 128)
    norms.rms_norm(x, w, y, EPSILON, 0.0, 1.0, span_heads=False, add_residual=False)
    assert torch.allclose(y.double(), expected(x, w), rtol=1e-5, atol=1e-6)


def test_weight_offset_and_scale_are_applied() -> None:
    """Qwen3.5 keeps its weights minus one; some models scale the result."""
    x, w, y = values(3, 128), values(128, seed=1).bfloat16(), torch.empty(3, 128)
    norms.rms_norm(x, w, y, EPSILON, 1.0, 0.5, span_heads=False, add_residual=False)
    assert torch.allclose(y.double(), expected(x, w.double() + 1) * 0.5, rtol=1e-5, atol=1e-6)


def test_without_a_weight_only_the_length_changes() -> None:
    x, y = values(3, 128), torch.empty(3, 128)
    norms.rms_norm(x, None, y, EPSILON, 0.0, 1.0, span_heads=False, add_residual=False)
    assert torch.allclose(y.double(), expected(x, torch.ones(128)), rtol=1e-5, atol=1e-6)


def test_spanning_heads_norms_them_together() -> None:
    x, w, y = values(2, 3, 4, 32), values(128, seed=1).half(), torch.empty(2, 3, 4, 32)
    norms.rms_norm(x, w, y, EPSILON, 0.0, 1.0, span_heads=True, add_residual=False)
    assert torch.allclose(y.flatten(-2).double(), expected(x.flatten(-2), w), rtol=1e-5, atol=1e-6)


def test_groups_take_turns_over_the_rows() -> None:
    x, w, y = values(6, 32), values(2, 32, seed=1).half(), torch.empty(6, 32)
    norms.rms_norm(x, w, y, EPSILON, 0.0, 1.0, span_heads=False, add_residual=False, w_groups=2)
    assert torch.allclose(y.double(), expected(x, w.repeat(3, 1)), rtol=1e-5, atol=1e-6)


def test_result_is_added_to_the_residual() -> None:
    x, w, y = values(3, 128).half(), values(128, seed=1).half(), values(3, 128, seed=2)
    before = y.clone()
    norms.rms_norm(x, w, y, EPSILON, 0.0, 1.0, span_heads=False, add_residual=True)
    assert torch.allclose(y.double(), before.double() + expected(x, w), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.half, torch.float])
def test_fused_residual_is_rounded_before_the_norm(dtype: torch.dtype) -> None:
    x, r, w, y = values(3, 128).half(), values(3, 128, seed=2).to(dtype), values(128, seed=1).half(), torch.empty(3, 128)
    total = (r.float() + x.float()).to(dtype)
    norms.rms_norm_res_in(x, w, y, r, EPSILON, 0.0, 1.0)
    assert torch.equal(r, total)
    assert torch.allclose(y.double(), expected(total, w), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("act", [0, norms.GATE_SIGMOID])
def test_gated_norm_equals_formula(act: int, gate_first: bool) -> None:
    x, g, w, y = values(2, 5, 4, 64), values(2, 5, 4, 64, seed=3), values(64, seed=1).bfloat16(), torch.empty(2, 5, 4, 64)
    norms.gated_rms_norm(x, w, y, g, EPSILON, 0.0, 1, gate_first, act)
    sigmoid = 1 / (1 + (-g.double()).exp())
    gate = sigmoid if act == norms.GATE_SIGMOID else g.double() * sigmoid
    wanted = expected(x.double() * gate, w) if gate_first else expected(x, w) * gate
    assert torch.allclose(y.double(), wanted, rtol=1e-5, atol=1e-6)


def test_gated_norm_of_groups_uses_each_groups_weight() -> None:
    x, g, w, y = values(6, 32), values(6, 32, seed=3), values(64, seed=1).bfloat16(), torch.empty(6, 32)
    norms.gated_rms_norm(x, w, y, g, EPSILON, 0.0, 2)
    gate = g.double() / (1 + (-g.double()).exp())
    assert torch.allclose(y.double(), expected(x, w.view(2, 32).repeat(3, 1)) * gate, rtol=1e-5, atol=1e-6)
