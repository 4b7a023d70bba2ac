"""Rotary embedding against complex multiplication, and against transformers."""

import importlib

import pytest
import torch
from torch import Tensor

from daemon.engine.cpu.rope import Rope

GPTJ, NEOX = 1, 2


def heads(batch: int, length: int, count: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(batch, length, count, dim, generator=torch.Generator().manual_seed(seed)).half()


def frequencies(dim: int) -> Tensor:
    return 10000.0 ** (-torch.arange(0, dim, 2).float() / dim)


def turned(x: Tensor, positions: Tensor, inv_freq: Tensor, style: int) -> Tensor:
    """x·exp(i·position·frequency) over pairs, in float64. positions (batch, length)."""
    width = 2 * inv_freq.numel()
    part = x[..., :width].double()
    a, b = (part[..., 0::2], part[..., 1::2]) if style == GPTJ else (part[..., : width // 2], part[..., width // 2 :])
    angle = positions.double().unsqueeze(-1) * inv_freq.double()
    z = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle).unsqueeze(2)
    out = torch.stack((z.real, z.imag), -1).flatten(-2) if style == GPTJ else torch.cat((z.real, z.imag), -1)
    return torch.cat((out, x[..., width:].double()), -1)


def run(
    q: Tensor,
    k: Tensor | None,
    inv_freq: Tensor,
    style: int,
    *,
    position: int = 0,
    positions: Tensor | None = None,
    ids: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    out_q, out_k = torch.empty_like(q), None if k is None else torch.empty_like(k)
    Rope().rope(q, out_q, k, out_k, inv_freq, position, positions, ids, style, 1.0, None, None, 1e-6, 0.0, 0.0, 8192, 1, 0)
    return out_q, out_k


@pytest.mark.parametrize("style", [GPTJ, NEOX])
@pytest.mark.parametrize("rotated", [64, 16])
def test_rotation_equals_complex_product(style: int, rotated: int) -> None:
    """All of a head, or its first quarter as in Qwen3.5."""
    q, k, inv_freq = heads(2, 5, 4, 64), heads(2, 5, 2, 64, seed=1), frequencies(rotated)
    start = torch.tensor([7, 300], dtype=torch.int32)
    out_q, out_k = run(q, k, inv_freq, style, positions=start)
    assert out_k is not None
    places = start.view(-1, 1) + torch.arange(5)
    assert torch.allclose(out_q.double(), turned(q, places, inv_freq, style), atol=4e-3)
    assert torch.allclose(out_k.double(), turned(k, places, inv_freq, style), atol=4e-3)


def test_neox_rotation_equals_transformers() -> None:
    q, k, inv_freq = heads(1, 6, 4, 64), heads(1, 6, 2, 64, seed=1), frequencies(64)
    angle = torch.arange(6).view(1, -1, 1).float() * inv_freq
    both = torch.cat((angle, angle), -1)
    llama = importlib.import_module("transformers.models.llama.modeling_llama")
    wanted_q, wanted_k = llama.apply_rotary_pos_emb(q.float().transpose(1, 2), k.float().transpose(1, 2), both.cos(), both.sin())
    out_q, out_k = run(q, k, inv_freq, NEOX)
    assert out_k is not None
    assert torch.allclose(out_q.float(), wanted_q.transpose(1, 2), atol=4e-3)
    assert torch.allclose(out_k.float(), wanted_k.transpose(1, 2), atol=4e-3)


def test_position_sources_agree() -> None:
    q, inv_freq = heads(1, 4, 2, 64), frequencies(64)
    by_offset, _ = run(q, None, inv_freq, NEOX, position=9)
    by_start, _ = run(q, None, inv_freq, NEOX, positions=torch.tensor([9], dtype=torch.int32))
    by_id, _ = run(q, None, inv_freq, NEOX, ids=torch.tensor([[9, 10, 11, 12]], dtype=torch.int32))
    table = torch.arange(20).view(-1, 1).float() * inv_freq
    by_table, _ = run(q, None, table, NEOX, position=9)
    assert torch.equal(by_offset, by_start)
    assert torch.equal(by_offset, by_id)
    assert torch.equal(by_offset, by_table)


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_heads_are_normed_before_they_are_rotated(bias: float) -> None:
    q, k, inv_freq = heads(1, 3, 4, 64), heads(1, 3, 2, 64, seed=1), frequencies(64)
    wq, wk = (torch.randn(64, generator=torch.Generator().manual_seed(seed)).bfloat16() for seed in (2, 3))
    out_q, out_k = torch.empty_like(q), torch.empty_like(k)
    Rope().rope(q, out_q, k, out_k, inv_freq, 5, None, None, NEOX, 1.0, wq, wk, 1e-6, bias, 0.0, 8192, 1, 0)
    places = torch.arange(5, 8).view(1, -1)
    for x, w, out in ((q, wq, out_q), (k, wk, out_k)):
        normed = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * (w.double() + bias)
        assert torch.allclose(out.double(), turned(normed, places, inv_freq, NEOX), rtol=3e-3, atol=6e-3)


def test_attention_factor_and_llama_4_scaling_touch_what_they_should() -> None:
    """YaRN's factor scales what is rotated; the other scale is for queries alone, by position."""
    q, k, inv_freq = heads(1, 1, 1, 64), heads(1, 1, 1, 64, seed=1), frequencies(64)
    out_q, out_k = torch.empty_like(q), torch.empty_like(k)
    Rope().rope(q, out_q, k, out_k, inv_freq, 20000, None, None, NEOX, 1.5, None, None, 1e-6, 0.0, 0.1, 8192, 1, 0)
    place = torch.tensor([[20000]])
    scale = 1.0 + 0.1 * torch.log(torch.tensor(3.0)).item()
    assert torch.allclose(out_q.double(), turned(q, place, inv_freq, NEOX) * 1.5 * scale, atol=2e-2)
    assert torch.allclose(out_k.double(), turned(k, place, inv_freq, NEOX) * 1.5, atol=2e-2)


def test_rotation_in_several_dimensions_is_refused() -> None:
    q = heads(1, 1, 1, 64)
    with pytest.raises(NotImplementedError, match="more than one dimension"):
        Rope().rope(q, q, None, None, frequencies(16), 0, None, None, NEOX, 1.0, None, None, 1e-6, 0.0, 0.0, 1, 2, 0)


def test_angles_are_remembered_until_positions_change_even_in_place() -> None:
    """One object serves all layers and steps; its answers equal those of a fresh one."""
    inv_freq, kept = frequencies(64), Rope()
    start = torch.tensor([3], dtype=torch.int32)
    for step in range(3):
        q, k = heads(1, 2, 4, 64, seed=step), heads(1, 2, 2, 64, seed=step + 9)
        for style in (NEOX, NEOX, GPTJ):
            found_q, found_k = torch.empty_like(q), torch.empty_like(k)
            kept.rope(q, found_q, k, found_k, inv_freq, 0, start, None, style, 1.0, None, None, 1e-6, 0.0, 0.0, 8192, 1, 0)
            wanted_q, wanted_k = run(q, k, inv_freq, style, positions=start)
            assert wanted_k is not None
            assert torch.equal(found_q, wanted_q)
            assert torch.equal(found_k, wanted_k)
        start += 1
        inv_freq = inv_freq * 1.01
