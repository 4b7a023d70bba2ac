"""The delta rule, its gates and its convolution, against transformers and against plain loops."""

import importlib

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from daemon.engine.cpu import delta_net

K_HEADS, V_HEADS, K_DIM, V_DIM = 2, 4, 16, 24


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def inputs(batch: int, length: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, k = values(batch, length, K_HEADS, K_DIM), values(batch, length, K_HEADS, K_DIM, seed=1)
    v = values(batch, length, V_HEADS, V_DIM, seed=2)
    g = -values(batch, length, V_HEADS, seed=3).abs() * 0.3
    beta = torch.sigmoid(values(batch, length, V_HEADS, seed=4))
    return q, k, v, g, beta, values(batch, V_HEADS, K_DIM, V_DIM, seed=5)


def by_definition(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The module docstring's four lines, in float64, for one row and head after the other."""
    out = torch.empty(v.shape, dtype=torch.float64)
    final = state.double().clone()
    for row in range(v.shape[0]):
        for head in range(V_HEADS):
            source = head // (V_HEADS // K_HEADS)
            s = final[row, head]
            for t in range(v.shape[1]):
                key, query = k[row, t, source].double(), q[row, t, source].double()
                key = key / (key.square().sum() + 1e-6).sqrt()
                query = query / (query.square().sum() + 1e-6).sqrt() * K_DIM**-0.5
                s = s * g[row, t, head].double().exp()
                change = beta[row, t, head].double() * (v[row, t, head].double() - s.t() @ key)
                s = s + torch.outer(key, change)
                out[row, t, head] = s.t() @ query
            final[row, head] = s
    return out, final


def test_steps_equal_the_definition() -> None:
    given = inputs(2, 7)
    out, state = delta_net.delta_rule_steps(*given)
    wanted, final = by_definition(*given)
    assert torch.allclose(out.double(), wanted, rtol=1e-4, atol=1e-5)
    assert torch.allclose(state.double(), final, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_chunks_equal_steps(length: int) -> None:
    q, k, v, g, beta, state = inputs(1, length)
    out, final = delta_net.chunk_gated_delta_rule(
        q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    wanted, wanted_final = delta_net.delta_rule_steps(q, k, v, g, beta, state)
    assert final is not None
    assert torch.allclose(out, wanted, rtol=1e-3, atol=1e-4)
    assert torch.allclose(final, wanted_final, rtol=1e-3, atol=1e-4)


def test_chunks_survive_strong_decay() -> None:
    """Gates near zero make exp of a sum of hundreds: no overflow, no NaN."""
    q, k, v, g, beta, _ = inputs(1, 130)
    out, _ = delta_net.chunk_gated_delta_rule(q, k, v, g=g * 100, beta=beta, use_qk_l2norm_in_kernel=True)
    wanted, _ = delta_net.delta_rule_steps(q, k, v, g * 100, beta, torch.zeros(1, V_HEADS, K_DIM, V_DIM))
    assert torch.allclose(out, wanted, rtol=1e-3, atol=1e-4)


def test_without_a_state_the_rule_starts_from_zero() -> None:
    q, k, v, g, beta, state = inputs(1, 70)
    out, final = delta_net.chunk_gated_delta_rule(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)
    wanted, _ = delta_net.delta_rule_steps(q, k, v, g, beta, torch.zeros_like(state))
    assert final is None
    assert torch.allclose(out, wanted, rtol=1e-3, atol=1e-4)


def test_chunks_equal_transformers() -> None:
    qwen = importlib.import_module("transformers.models.qwen3_5.modeling_qwen3_5")
    q, k, v, g, beta, state = inputs(1, 100)
    repeat = V_HEADS // K_HEADS
    wanted, wanted_final = qwen.torch_chunk_gated_delta_rule(
        q.repeat_interleave(repeat, 2),
        k.repeat_interleave(repeat, 2),
        v,
        g=g,
        beta=beta,
        initial_state=state,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    out, final = delta_net.chunk_gated_delta_rule(
        q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    assert final is not None
    assert torch.allclose(out, wanted, rtol=1e-3, atol=1e-4)
    assert torch.allclose(final, wanted_final, rtol=1e-3, atol=1e-4)


def test_pool_rows_are_read_and_written_by_slot() -> None:
    q, k, v, g, beta, state = inputs(2, 3)
    pool = torch.zeros(6, 1, V_HEADS, K_DIM, V_DIM)
    slots = torch.tensor([4, 1])
    pool[slots, 0] = state
    mixed = torch.cat((q.flatten(2), k.flatten(2), v.flatten(2)), -1)
    out = torch.empty_like(v)
    delta_net.cuda_recurrent_gated_delta_rule(mixed, g, beta, pool, out, K_HEADS, V_HEADS, K_DIM, V_DIM, slots, history=False)
    wanted, final = by_definition(q, k, v, g, beta, state)
    assert torch.allclose(out.double(), wanted, rtol=1e-4, atol=1e-5)
    assert torch.allclose(pool[slots, 0].double(), final, rtol=1e-4, atol=1e-5)
    assert not pool[[0, 2, 3, 5]].any()


def test_speculative_pass_leaves_the_row_it_read_alone() -> None:
    q, k, v, g, beta, state = inputs(1, 2)
    pool = torch.zeros(2, 1, V_HEADS, K_DIM, V_DIM)
    pool[0, 0] = state[0]
    mixed, out = torch.cat((q.flatten(2), k.flatten(2), v.flatten(2)), -1), torch.empty_like(v)
    base, scratch = torch.tensor([0]), torch.tensor([1])
    delta_net.cuda_recurrent_gated_delta_rule(
        mixed, g, beta, pool, out, K_HEADS, V_HEADS, K_DIM, V_DIM, scratch, history=True, slots_in=base
    )
    _, final = by_definition(q, k, v, g, beta, state)
    assert torch.equal(pool[0, 0], state[0])
    assert torch.allclose(pool[1, 0].double(), final[0], rtol=1e-4, atol=1e-5)


def test_gates_equal_formula() -> None:
    b, a, bias, log = values(2, 3, 4), values(2, 3, 4, seed=1), values(4, seed=2), values(4, seed=3)
    beta, g = torch.empty(2, 3, 4), torch.empty(2, 3, 4)
    delta_net.gated_delta_net_fused_op_2(b, a, bias, log, beta, g, 2.0)
    assert torch.allclose(beta.double(), 2 / (1 + (-b.double()).exp()), rtol=1e-5)
    wanted = -(1 + (a.double() + bias.double()).exp()).log() * log.double().exp()
    assert torch.allclose(g.double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("token_major", [False, True])
def test_convolution_in_pieces_equals_one_over_the_whole(token_major: bool) -> None:
    dim, width = 8, 4
    x, weight, bias = values(1, dim, 23), values(dim, width, seed=1), values(dim, seed=2)
    whole = F.silu(F.conv1d(F.pad(x, (width - 1, 0)), weight.unsqueeze(1), bias, groups=dim))
    state, slots = torch.zeros(3, dim, width), torch.tensor([2])
    parts: list[Tensor] = []
    for begin, end in ((0, 10), (10, 11), (11, 23)):
        piece = x[:, :, begin:end]
        parts.append(
            delta_net.causal_conv1d_update_slotted(
                piece.transpose(1, 2) if token_major else piece,
                state,
                slots,
                weight,
                bias,
                transpose_output=True,
                token_major=token_major,
            )
        )
    assert torch.allclose(torch.cat(parts, 1).transpose(1, 2), whole, atol=1e-5)
    assert torch.allclose(state[2], x[0, :, -width:])
    assert not state[:2].any()


def test_history_keeps_every_window_of_the_pass() -> None:
    """State columns: the window before the pass, then its tokens, so that going back n tokens is a shift by n."""
    dim, width, history = 4, 4, 3
    x, weight = values(1, dim, 3), values(dim, width, seed=1)
    state = torch.zeros(1, dim, width + history)
    state[0, :, :width] = values(dim, width, seed=2)
    before = state[0, :, :width].clone()
    delta_net.causal_conv1d_update_slotted(x, state, torch.tensor([0]), weight, history=True)
    assert torch.equal(state[0], torch.cat((before, x[0]), -1))


def test_channelwise_decay_is_refused() -> None:
    q, k, v, _, beta, state = inputs(1, 2)
    mixed = torch.cat((q.flatten(2), k.flatten(2), v.flatten(2)), -1)
    with pytest.raises(NotImplementedError, match="each channel"):
        delta_net.cuda_recurrent_gated_delta_rule(
            mixed,
            values(1, 2, V_HEADS, K_DIM),
            beta,
            state.unsqueeze(1),
            torch.empty_like(v),
            K_HEADS,
            V_HEADS,
            K_DIM,
            V_DIM,
            None,
            history=False,
        )
