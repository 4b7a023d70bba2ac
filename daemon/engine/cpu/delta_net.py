"""Gated DeltaNet, the recurrent layer of the Qwen3.5 hybrids: its gates, its short convolution and the delta rule.

The rule, for one head with state S (k dim, v dim), in the order of the tokens:
    S ← exp(g)·S,   d = beta·(v - Sᵀk),   S ← S + k·dᵀ,   out = Sᵀq
with q and k scaled to length 1, and q then by 1/√(k dim).
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

_EPSILON = 1e-6
_CHUNK = 64
_solve: Callable[..., Tensor] = torch.linalg.solve_triangular  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - untyped in torch


def gated_delta_net_fused_op_2(
    b: Tensor, a: Tensor, dt_bias: Tensor, a_log: Tensor, beta: Tensor, g: Tensor, beta_scale: float
) -> None:
    """Write beta = sigmoid(b)·beta_scale and g = -exp(a_log)·softplus(a + dt_bias), all (batch, length, heads) or (heads)."""
    beta.copy_(torch.sigmoid(b.float()) * beta_scale)
    g.copy_(-F.softplus(a.float() + dt_bias.float()) * a_log.float().exp())


def causal_conv1d_update_slotted(  # noqa: PLR0917 - the operation's own signature
    x: Tensor,
    conv_state: Tensor,
    slots: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    transpose_output: bool = False,
    history: bool = False,
    token_major: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Stands in for the Triton kernel of the same name: silu of a causal depthwise convolution, window kept between calls.

    x (batch, dim, length), or (batch, length, dim) if `token_major`; conv_state (slots, dim, at least the kernel's width);
    the result is (batch, length, dim) if `transpose_output`. `history`: keep every window of this call, newest last, so
    that exllamav3 can go back a few tokens.
    """
    values = x.transpose(1, 2) if token_major else x
    width, length = weight.shape[-1], values.shape[-1]
    rows = slots.long()
    joined = torch.cat((conv_state[rows][:, :, :width].float(), values.float()), -1)
    if history:
        kept = min(conv_state.shape[-1], joined.shape[-1])
        conv_state[rows, :, conv_state.shape[-1] - kept :] = joined[:, :, -kept:].to(conv_state.dtype)
    else:
        conv_state[rows, :, :width] = joined[:, :, -width:].to(conv_state.dtype)
    out = F.conv1d(joined, weight.float().unsqueeze(1), None if bias is None else bias.float(), groups=values.shape[1])
    out = F.silu(out[:, :, -length:])
    return (out.transpose(1, 2).contiguous() if transpose_output else out).to(out_dtype or x.dtype)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPSILON)


def _heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k (batch, length, k heads, dim), v (batch, length, v heads, dim) → fp32, normed, all with v's heads."""
    repeat = v.shape[2] // k.shape[2]
    query = _unit(q.float()) * q.shape[-1] ** -0.5
    return query.repeat_interleave(repeat, 2), _unit(k.float()).repeat_interleave(repeat, 2), v.float()


def delta_rule_steps(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The rule token by token, every row and head at once.

    q, k (batch, length, k heads, k dim), v (batch, length, v heads, v dim), g and beta (batch, length, v heads), state fp32
    (batch, v heads, k dim, v dim) → out fp32 (batch, length, v heads, v dim), new state.
    """
    query, key, value = _heads(q, k, v)
    decay, share = g.float().exp(), beta.float()
    out = torch.empty_like(value)
    for t in range(value.shape[1]):
        state = state * decay[:, t, :, None, None]
        seen = (key[:, t].unsqueeze(-2) @ state).squeeze(-2)
        change = (value[:, t] - seen) * share[:, t].unsqueeze(-1)
        state = state + key[:, t].unsqueeze(-1) * change.unsqueeze(-2)
        out[:, t] = (query[:, t].unsqueeze(-2) @ state).squeeze(-2)
    return out, state


def _chunk(query: Tensor, key: Tensor, value: Tensor, g: Tensor, share: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The rule for one chunk at once. All fp32 (heads, length, ...), state (heads, k dim, v dim).

    With G the running sum of g, the changes d solve a unit lower triangular system:
        d_t + beta_t · Σ_{j<t} exp(G_t - G_j)(k_j·k_t) d_j = beta_t (v_t - exp(G_t) Sᵀk_t)
    """
    length = query.shape[1]
    total = g.cumsum(-1)
    between = total.unsqueeze(-1) - total.unsqueeze(-2)
    lower = torch.ones(length, length, dtype=torch.bool).tril()
    decay = between.masked_fill(~lower, float("-inf")).exp()
    grown = total.exp().unsqueeze(-1)
    system = share.unsqueeze(-1) * (key @ key.transpose(-1, -2)) * decay
    right = share.unsqueeze(-1) * (value - grown * (key @ state))
    change = _solve(system, right, upper=False, unitriangular=True)
    out = grown * (query @ state) + ((query @ key.transpose(-1, -2)) * decay) @ change
    left = (total[:, -1:] - total).exp().unsqueeze(-1)
    state = total[:, -1, None, None].exp() * state + (key * left).transpose(-1, -2) @ change
    return out, state


def chunk_gated_delta_rule(  # noqa: PLR0917 - the operation's own signature
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Stands in for `exllamav3.vendor.fla.chunk_gated_delta_rule` (Triton), for one row, as exllamav3 calls it.

    Shapes as in `delta_rule_steps`, with a batch of 1; the state is fp32 in and out.
    """
    if not use_qk_l2norm_in_kernel or scale is not None or q.shape[0] != 1:
        raise NotImplementedError("chunk_gated_delta_rule: only one row, with q and k normed inside, has a CPU version")
    query, key, value = (x[0].transpose(0, 1) for x in _heads(q, k, v))
    decays, shares = g[0].float().t(), beta[0].float().t()
    state = torch.zeros(v.shape[2], k.shape[3], v.shape[3]) if initial_state is None else initial_state[0].float()
    outs: list[Tensor] = []
    for begin in range(0, value.shape[1], _CHUNK):
        part = slice(begin, begin + _CHUNK)
        out, state = _chunk(query[:, part], key[:, part], value[:, part], decays[:, part], shares[:, part], state)
        outs.append(out)
    joined = torch.cat(outs, 1).transpose(0, 1).unsqueeze(0).to(q.dtype)
    return joined, state.unsqueeze(0) if output_final_state else None


def _split(mixed_qkv: Tensor, k_heads: int, v_heads: int, k_dim: int, v_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    keys = k_heads * k_dim
    q, k, v = mixed_qkv[..., :keys], mixed_qkv[..., keys : 2 * keys], mixed_qkv[..., 2 * keys :]
    shape = mixed_qkv.shape[:-1]
    return q.reshape(*shape, k_heads, k_dim), k.reshape(*shape, k_heads, k_dim), v.reshape(*shape, v_heads, v_dim)


def cuda_recurrent_gated_delta_rule(  # noqa: PLR0917 - the operation's own signature
    mixed_qkv: Tensor,
    g: Tensor,
    beta: Tensor,
    recurrent_state: Tensor,
    core_attn_out: Tensor,
    num_k_heads: int,
    num_v_heads: int,
    k_head_dim: int,
    v_head_dim: int,
    slots: Tensor | None,
    history: bool,
    slots_in: Tensor | None = None,
) -> None:
    """The rule over a few tokens a row, on states kept in a pool (rows, 1, v heads, k dim, v dim), half or fp32.

    `slots` (batch) are the pool's rows written, and read unless `history` gives others to read from in `slots_in`.
    """
    if g.dim() != 3:  # noqa: PLR2004 - (batch, length, heads); a fourth dimension would be KDA's decay by channel
        raise NotImplementedError("cuda_recurrent_gated_delta_rule: a decay for each channel has no CPU version")
    rows = torch.arange(mixed_qkv.shape[0]) if slots is None else slots.long()
    source = slots_in.long() if history and slots_in is not None else rows
    q, k, v = _split(mixed_qkv, num_k_heads, num_v_heads, k_head_dim, v_head_dim)
    out, state = delta_rule_steps(q, k, v, g, beta, recurrent_state[source, 0].float())
    core_attn_out.copy_(out)
    recurrent_state[rows, 0] = state.to(recurrent_state.dtype)
