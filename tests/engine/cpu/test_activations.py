"""Activations and gates against plain formulas in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from daemon.engine.cpu import activations

Gate = Callable[[Tensor, Tensor, Tensor, float], None]


def values(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def gelu(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu(x: float) -> float:
    return max(x, 0.0)


def relu2(x: float) -> float:
    return max(x, 0.0) ** 2


GATES = [(activations.silu_mul, silu), (activations.gelu_mul, gelu), (activations.relu_mul, relu), (activations.relu2_mul, relu2)]


def each(x: Tensor, function: Callable[[float], float]) -> Tensor:
    return torch.tensor([function(v) for v in x.double().flatten().numpy().tolist()], dtype=torch.float64).view(x.shape)


@pytest.mark.parametrize(("gate", "formula"), GATES)
@pytest.mark.parametrize("limit", [0.0, 1.5])
def test_gated_activation_equals_formula(gate: Gate, formula: Callable[[float], float], limit: float) -> None:
    x, y, z = values(4, 32).half(), values(4, 32, seed=1).half(), torch.empty(4, 32)
    gate(x, y, z, limit)
    a, b = each(x, formula), y.double()
    if limit:
        a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    assert torch.allclose(z.double(), a * b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gate", [gate for gate, _ in GATES])
def test_result_beyond_half_is_clamped(gate: Gate) -> None:
    z = torch.empty(1, 2, dtype=torch.half)
    gate(torch.full((1, 2), 3000.0), torch.tensor([[3000.0, -3000.0]]), z, 0.0)
    assert z.numpy().tolist() == [[65504.0, -65504.0]]


def test_gpt_oss_gate_equals_formula() -> None:
    x, y, z = values(4, 32, scale=5), values(4, 32, seed=1, scale=5), torch.empty(4, 32)
    activations.silu_oai_mul(x, y, z, 7.0)
    a, b = x.double().clamp(max=7), y.double().clamp(-7, 7)
    assert torch.allclose(z.double(), (b + 1) * a / (1 + (-1.702 * a).exp()), rtol=1e-5, atol=1e-5)


def test_xielu_equals_formula() -> None:
    x, y = values(4, 32), torch.empty(4, 32)
    activations.xielu(x, y, 0.8, 0.3)
    wanted = each(x, lambda v: 0.8 * v * v + 0.5 * v if v > 0 else (math.expm1(v) - v) * 0.3 + 0.5 * v)
    assert torch.allclose(y.double(), wanted, rtol=1e-5, atol=1e-5)


def test_softcap_equals_formula() -> None:
    x = values(2, 16, scale=40)
    wanted = each(x, lambda v: 30 * math.tanh(v / 30))
    activations.softcap(x, x, 30.0)
    assert torch.allclose(x.double(), wanted, rtol=1e-5, atol=1e-5)


def test_gates_in_place_equal_formula() -> None:
    x, y = values(2, 3, 4, 8), values(2, 3, 32, seed=1)
    out = x.clone()
    activations.mul_sigmoid_(out, y)
    assert torch.allclose(
        out.double(), x.double() * each(y, lambda v: 1 / (1 + math.exp(-v))).view(x.shape), rtol=1e-5, atol=1e-6
    )


BROADCAST: list[tuple[Callable[[Tensor, Tensor], None], Callable[[float], float]]] = [
    (activations.mul_sigmoid_broadcast_, lambda v: 1 / (1 + math.exp(-v))),
    (activations.mul_softplus_broadcast_, lambda v: math.log1p(math.exp(v))),
]


@pytest.mark.parametrize(("gate", "formula"), BROADCAST)
def test_one_gate_a_head_equals_formula(gate: Callable[[Tensor, Tensor], None], formula: Callable[[float], float]) -> None:
    x, heads = values(2, 3, 4, 8), values(2, 3, 4, seed=2)
    out = x.clone()
    gate(out, heads)
    assert torch.allclose(out.double(), x.double() * each(heads, formula).unsqueeze(-1), rtol=1e-5, atol=1e-6)


def test_shared_expert_gates_agree_with_and_without_their_projection() -> None:
    y, hidden, w = values(3, 32), values(3, 16, seed=1), values(16, 1, seed=2)
    added, projected = values(3, 32, seed=3), values(3, 32, seed=3)
    before = added.clone()
    activations.add_sigmoid_gate(y, hidden @ w, added)
    gate = 1 / (1 + (-(hidden.double() @ w.double())).exp())
    assert torch.allclose(added.double(), before.double() + y.double() * gate, rtol=1e-5, atol=1e-5)
    activations.add_sigmoid_gate_proj(y, hidden, projected, w)
    assert torch.allclose(projected, added, rtol=1e-5, atol=1e-5)


def test_queries_and_gates_are_told_apart() -> None:
    qg = torch.arange(2 * 3 * 2 * 4).view(1, 2, 24).half()
    q, g = torch.empty(1, 2, 3, 4, dtype=torch.half), torch.empty(1, 2, 12, dtype=torch.half)
    activations.deinterleave_qg(qg, q, g, 4)
    assert q[0, 0].numpy().tolist() == [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18, 19]]
    assert g[0, 0].numpy().tolist() == [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23]


def test_sum_is_rounded_once() -> None:
    x, y, z = torch.tensor([2048.0]).half(), torch.tensor([1.0]).half(), torch.empty(1)
    activations.add(x, y, z)
    assert z.item() == 2049.0
