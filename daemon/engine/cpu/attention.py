"""Attention over dense or paged keys and values: the one backend of exllamav3's attention dispatcher on a CPU.

1. New keys and values go into the cache first, as on a GPU.
2. A decode step runs as one batch: rows are padded to the longest and masked.
3. A prefill runs row by row in slices of queries, so that no mask grows with the square of the context.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from daemon.engine.cpu.kv_cache import cache_rows, paged_kv_cache_update
from daemon.engine.cpu.quant_cache import dequantize_groups

_MASK_ELEMENTS = 1 << 22
"""Largest mask of one prefill slice: 16 MiB as fp32."""
_DECODE_QUERIES = 8
"""Up to so many new tokens a row, rows are batched; above, padding costs more than it saves."""


class AttentionCall(Protocol):
    """What this room reads of exllamav3's AttnArgs. q (batch, new, q heads, dim), k and v (batch, new, kv heads, dim), half."""

    bsz: int
    q_len: int
    num_q_heads: int
    dim: int
    num_kv_heads: int
    q: Tensor
    k: Tensor
    v: Tensor
    k_cache: Tensor | None
    v_cache: Tensor | None
    causal: bool
    sm_scale: float
    cu_seqlens: Tensor | None
    window_size: int | None
    window_right: int
    softcap: float
    block_table: Tensor | None
    cache_seqlens: Tensor | None
    non_causal_spans: list[object] | None
    q_cache: tuple[Tensor, Tensor, Tensor, Tensor, int, int] | None
    sinks: Tensor | None
    sink_key0: bool


def _served(call: AttentionCall) -> bool:
    """Whether this backend can serve the call: packed images and non-causal spans, both of vision, it cannot."""
    return call.cu_seqlens is None and not call.non_causal_spans and not call.sink_key0


def _visible(call: AttentionCall, queries: Tensor, keys: Tensor) -> Tensor | None:
    """Which keys a query may see, by position; None: all. queries (..., n, 1), keys (t)."""
    window = call.window_size if call.window_size is not None and call.window_size >= 0 else None
    seen = keys <= queries if call.causal else None
    if window is not None:
        near = (keys >= queries - window) & (keys <= queries + call.window_right)
        seen = near if seen is None else seen & near
    return seen


def _attend(call: AttentionCall, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    """Attend with q (batch, n, q heads, dim) over k, v (batch, t, kv heads, dim), fp32, where `seen` (1 or batch, n, t) allows.

    Query heads of one key head are laid side by side as further queries, so keys are never repeated.
    """
    batch, n, _, dim = q.shape
    group = call.num_q_heads // call.num_kv_heads
    grouped = (
        q.view(batch, n, call.num_kv_heads, group, dim).permute(0, 2, 3, 1, 4).reshape(batch, call.num_kv_heads, group * n, dim)
    )
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    mask = None if seen is None else seen.repeat(1, group, 1).unsqueeze(1)
    if call.softcap or call.sinks is not None:
        out = _attend_openly(call, grouped, keys, values, mask)
    else:
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=call.sm_scale)
    return out.view(batch, call.num_kv_heads, group, n, dim).permute(0, 3, 1, 2, 4).reshape(batch, n, call.num_q_heads, dim)


def _attend_openly(call: AttentionCall, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """`_attend` with the scores in the open, for soft caps and sinks. q (batch, kv heads, group·n, dim)."""
    scores = q @ k.transpose(-1, -2) * call.sm_scale
    if call.softcap:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if call.sinks is None:
        return scores.softmax(-1) @ v
    # a sink is one more logit a query head, whose share of the softmax goes nowhere
    group = call.num_q_heads // call.num_kv_heads
    sinks = (
        call.sinks.float()
        .view(call.num_kv_heads, group, 1)
        .expand(-1, -1, q.shape[2] // group)
        .reshape(1, call.num_kv_heads, -1, 1)
    )
    weights = torch.cat((scores, sinks.expand(q.shape[0], -1, -1, -1)), -1).softmax(-1)
    return weights[..., :-1] @ v


class _Keys(Protocol):
    """Where the keys and values of a call come from."""

    def read(self, rows: slice, count: int) -> tuple[Tensor, Tensor]:
        """The first `count` keys and values of some sequences, fp32 (rows, count, kv heads, dim)."""
        ...


class _Dense:
    """Keys and values given with the call."""

    def __init__(self, call: AttentionCall) -> None:
        self._k, self._v = call.k.float(), call.v.float()

    def read(self, rows: slice, count: int) -> tuple[Tensor, Tensor]:
        return self._k[rows, :count], self._v[rows, :count]


class _Paged:
    """Keys and values in a half cache."""

    def __init__(self, k_cache: Tensor, v_cache: Tensor, block_table: Tensor) -> None:
        self._page, self._heads, self._dim = k_cache.shape[1:]
        self._k, self._v = k_cache.view(-1, self._heads * self._dim), v_cache.view(-1, self._heads * self._dim)
        self._table = block_table

    def read(self, rows: slice, count: int) -> tuple[Tensor, Tensor]:
        table = self._table[rows]
        at = cache_rows(table, torch.zeros(table.shape[0], dtype=torch.long), count, self._page)
        shape = (*at.shape, self._heads, self._dim)
        return self._k[at.flatten()].float().view(shape), self._v[at.flatten()].float().view(shape)


class _PagedQuantized:
    """Keys and values in a quantised cache: only the rows read are ever decoded."""

    def __init__(
        self, q_cache: tuple[Tensor, Tensor, Tensor, Tensor, int, int], block_table: Tensor, heads: int, dim: int
    ) -> None:
        self._qk, self._sk, self._qv, self._sv, self._k_bits, self._v_bits = q_cache
        self._page = self._qk.shape[1]
        self._table = block_table
        self._heads, self._dim = heads, dim

    def _decode(self, words: Tensor, scales: Tensor, at: Tensor, bits: int) -> Tensor:
        groups = scales.shape[-1]
        packed = words.view(-1, groups, bits)[at.flatten()]
        # through half, as the rows of a GPU's staging buffer
        values = dequantize_groups(packed, scales.view(-1, groups)[at.flatten()], 0.0).half().float()
        return values.view(*at.shape, self._heads, self._dim)

    def read(self, rows: slice, count: int) -> tuple[Tensor, Tensor]:
        table = self._table[rows]
        at = cache_rows(table, torch.zeros(table.shape[0], dtype=torch.long), count, self._page)
        return self._decode(self._qk, self._sk, at, self._k_bits), self._decode(self._qv, self._sv, at, self._v_bits)


def _decode_step(call: AttentionCall, keys: _Keys, past: Tensor, out: Tensor) -> None:
    """All rows in one batch. past int64 (batch)."""
    total = int(past.max()) + call.q_len
    k, v = keys.read(slice(None), total)
    queries = past.view(-1, 1, 1) + torch.arange(call.q_len).view(1, -1, 1)
    positions = torch.arange(total)
    seen = _visible(call, queries, positions)
    if seen is None:
        seen = (positions < past.view(-1, 1, 1) + call.q_len).expand(-1, call.q_len, -1)
    if call.bsz == 1 and call.q_len == 1 and bool(seen.all()):
        seen = None
    out.copy_(_attend(call, call.q.float(), k, v, seen))


def _prefill(call: AttentionCall, keys: _Keys, past: Tensor, out: Tensor) -> None:
    """Row by row, a slice of queries at a time."""
    starts: list[int] = past.numpy().tolist()
    group = call.num_q_heads // call.num_kv_heads
    for row, start in enumerate(starts):
        total = start + call.q_len
        k, v = keys.read(slice(row, row + 1), total)
        q = call.q[row : row + 1].float()
        step = max(16, _MASK_ELEMENTS // (total * group))
        for begin in range(0, call.q_len, step):
            end = min(begin + step, call.q_len)
            last = start + end if call.causal else total
            queries = torch.arange(start + begin, start + end).view(1, -1, 1)
            seen = _visible(call, queries, torch.arange(last))
            out[row : row + 1, begin:end] = _attend(call, q[:, begin:end], k[:, :last], v[:, :last], seen)


def _run(call: AttentionCall, keys: _Keys, past: Tensor) -> Tensor:
    out = torch.empty_like(call.q)
    if call.q_len <= _DECODE_QUERIES:
        _decode_step(call, keys, past, out)
    else:
        _prefill(call, keys, past, out)
    return out


def attention(call: AttentionCall) -> Tensor | None:
    """Attention over the call's own keys or a half cache; None where this backend does not serve the call."""
    if not _served(call) or call.q_cache is not None:
        return None
    if call.k_cache is None or call.v_cache is None or call.block_table is None or call.cache_seqlens is None:
        past = torch.full((call.bsz,), call.k.shape[1] - call.q_len, dtype=torch.long)
        return _run(call, _Dense(call), past)
    paged_kv_cache_update(call.k, call.v, call.k_cache, call.v_cache, call.block_table, call.cache_seqlens)
    return _run(call, _Paged(call.k_cache, call.v_cache, call.block_table), call.cache_seqlens.long())


def quantized_attention(call: AttentionCall) -> Tensor | None:
    """Attention over a quantised cache, into which exllamav3 has already put the new rows."""
    if not _served(call) or call.q_cache is None or call.block_table is None or call.cache_seqlens is None:
        return None
    keys = _PagedQuantized(call.q_cache, call.block_table, call.num_kv_heads, call.dim)
    return _run(call, keys, call.cache_seqlens.long())
