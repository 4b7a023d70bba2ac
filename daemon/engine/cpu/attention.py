"""Attention over dense or paged keys and values: the one backend of exllamav3's attention dispatcher on a CPU.

1. New keys and values go into the cache first, as on a GPU.
2. A few new tokens a row, or a short prompt: all rows run as one batch, padded to the longest and masked.
3. Many new tokens: row by row, in slices of queries, so that no mask grows with the square of the context.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from daemon.engine.cpu.kv_cache import Step, Steps, write_rows
from daemon.engine.cpu.quant_cache import dequantize_groups

_MASK_ELEMENTS = 1 << 22
"""Largest mask of one prefill slice: 16 MiB as fp32."""


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


def _windowed(call: AttentionCall) -> bool:
    return call.window_size is not None and call.window_size >= 0


def _bias(call: AttentionCall, queries: Tensor, keys: int) -> Tensor | None:
    """0 where a query sees a key and -inf elsewhere, fp32 (batch, 1, n, keys); None: all see all. queries (batch, n)."""
    at, key = queries.unsqueeze(-1), torch.arange(keys)
    seen = key <= at if call.causal else None
    if call.window_size is not None and call.window_size >= 0:
        near = (key >= at - call.window_size) & (key <= at + call.window_right)
        seen = near if seen is None else seen & near
    if seen is None or bool(seen.all()):
        return None
    return torch.zeros(seen.shape).masked_fill_(~seen, float("-inf")).unsqueeze(1)


def _attend(call: AttentionCall, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Attend with q (batch, n, q heads, dim) over k, v (batch, t, kv heads, dim), fp32; bias (1 or batch, 1, n, t).

    Query heads of one key head are laid side by side as further queries, so keys are never repeated.
    """
    batch, n, _, dim = q.shape
    group = call.num_q_heads // call.num_kv_heads
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    if n == 1:
        grouped = q.view(batch, call.num_kv_heads, group, dim)
    else:
        grouped = q.view(batch, n, call.num_kv_heads, group, dim).permute(0, 2, 3, 1, 4).reshape(batch, -1, group * n, dim)
        bias = None if bias is None else bias.repeat(1, 1, group, 1)
    if call.softcap or call.sinks is not None:
        out = _attend_openly(call, grouped, keys, values, bias)
    else:
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=bias, scale=call.sm_scale)
    if n == 1:
        return out.reshape(batch, 1, call.num_q_heads, dim)
    return out.view(batch, call.num_kv_heads, group, n, dim).permute(0, 3, 1, 2, 4).reshape(batch, n, call.num_q_heads, dim)


def _attend_openly(call: AttentionCall, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """`_attend` with the scores in the open, for soft caps and sinks. q (batch, kv heads, group·n, dim)."""
    scores = q @ k.transpose(-1, -2) * call.sm_scale
    if call.softcap:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if bias is not None:
        scores = scores + bias
    if call.sinks is None:
        return scores.softmax(-1) @ v
    # a sink is one more logit a query head, whose share of the softmax goes nowhere
    group = call.num_q_heads // call.num_kv_heads
    sinks = call.sinks.float().view(call.num_kv_heads, group, 1).expand(-1, -1, q.shape[2] // group)
    column = sinks.reshape(1, call.num_kv_heads, -1, 1).expand(q.shape[0], -1, -1, -1)
    weights = torch.cat((scores, column), -1).softmax(-1)
    return weights[..., :-1] @ v


class _Keys(Protocol):
    """Where the keys and values of a call come from."""

    def all_rows(self, step: Step) -> tuple[Tensor, Tensor]:
        """Keys and values of every row, fp32 (batch, total, kv heads, dim)."""
        ...

    def one_row(self, step: Step, row: int, count: int) -> tuple[Tensor, Tensor]:
        """The first `count` keys and values of one row, fp32 (1, count, kv heads, dim)."""
        ...


class _Half:
    """Keys and values in a half cache."""

    def __init__(self, k_cache: Tensor, v_cache: Tensor) -> None:
        self._shape = k_cache.shape[2:]
        width = k_cache.shape[2] * k_cache.shape[3]
        self._caches = (k_cache.view(-1, width), v_cache.view(-1, width))

    def all_rows(self, step: Step) -> tuple[Tensor, Tensor]:
        if len(step.past) == 1:
            return self.one_row(step, 0, step.total)
        rows = step.rows.flatten()
        k, v = (cache.index_select(0, rows).float().view(*step.rows.shape, *self._shape) for cache in self._caches)
        return k, v

    def one_row(self, step: Step, row: int, count: int) -> tuple[Tensor, Tensor]:
        run = step.run(row, count)
        rows = step.rows[row, :count]
        k, v = (
            (cache[run] if run is not None else cache.index_select(0, rows)).float().view(1, count, *self._shape)
            for cache in self._caches
        )
        return k, v


class _Quantized:
    """Keys and values in a quantised cache: only the rows read are ever decoded."""

    def __init__(self, q_cache: tuple[Tensor, Tensor, Tensor, Tensor, int, int], heads: int, dim: int) -> None:
        qk, sk, qv, sv, k_bits, v_bits = q_cache
        self._caches = ((qk, sk, k_bits), (qv, sv, v_bits))
        self._shape = (heads, dim)

    def _decode(self, words: Tensor, scales: Tensor, bits: int, rows: Tensor) -> Tensor:
        groups = scales.shape[-1]
        packed = words.view(-1, groups * bits).index_select(0, rows).view(-1, groups, bits)
        # through half, as in a GPU's staging buffer
        return dequantize_groups(packed, scales.view(-1, groups).index_select(0, rows), 0.0).half().float()

    def _read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        k, v = (self._decode(*cache, rows.flatten()).view(*rows.shape, *self._shape) for cache in self._caches)
        return k, v

    def all_rows(self, step: Step) -> tuple[Tensor, Tensor]:
        return self._read(step.rows)

    def one_row(self, step: Step, row: int, count: int) -> tuple[Tensor, Tensor]:
        return self._read(step.rows[row : row + 1, :count])


def _few_queries(call: AttentionCall, keys: _Keys, step: Step) -> Tensor:
    """All rows in one batch, for causal attention without a window."""
    k, v = keys.all_rows(step)
    return _attend(call, call.q.float(), k, v, step.unseen).to(call.q.dtype)


def _many_queries(call: AttentionCall, row: int, k: Tensor, v: Tensor, start: int, out: Tensor) -> None:
    """One row, a slice of queries at a time. k, v (1, start + new, kv heads, dim); out (1, new, q heads, dim)."""
    total = k.shape[1]
    q = call.q[row : row + 1].float()
    size = max(16, _MASK_ELEMENTS // (total * (call.num_q_heads // call.num_kv_heads)))
    for begin in range(0, call.q_len, size):
        end = min(begin + size, call.q_len)
        last = start + end if call.causal else total
        bias = _bias(call, torch.arange(start + begin, start + end).view(1, -1), last)
        out[:, begin:end] = _attend(call, q[:, begin:end], k[:, :last], v[:, :last], bias)


def _paged(call: AttentionCall, keys: _Keys, step: Step) -> Tensor:
    if step.together and call.causal and not _windowed(call):
        return _few_queries(call, keys, step)
    out = torch.empty_like(call.q)
    for row, start in enumerate(step.past):
        k, v = keys.one_row(step, row, start + call.q_len)
        _many_queries(call, row, k, v, start, out[row : row + 1])
    return out


def _dense(call: AttentionCall) -> Tensor:
    """Without a cache: over the call's own keys, the last of which belong to the queries."""
    out = torch.empty_like(call.q)
    for row in range(call.bsz):
        k, v = call.k[row : row + 1].float(), call.v[row : row + 1].float()
        _many_queries(call, row, k, v, k.shape[1] - call.q_len, out[row : row + 1])
    return out


class Attention:
    """The backend, one for the process; it remembers where the tokens of the present step lie."""

    def __init__(self) -> None:
        self._steps = Steps()

    def plain(self, call: AttentionCall) -> Tensor | None:
        """Attention over the call's own keys or a half cache; None where this backend does not serve the call."""
        if not _served(call) or call.q_cache is not None:
            return None
        if call.k_cache is None or call.v_cache is None or call.block_table is None or call.cache_seqlens is None:
            return _dense(call)
        step = self._steps.find(call.block_table, call.cache_seqlens, call.q_len, call.k_cache.shape[1])
        write_rows(call.k, call.v, call.k_cache, call.v_cache, step.added)
        return _paged(call, _Half(call.k_cache, call.v_cache), step)

    def quantized(self, call: AttentionCall) -> Tensor | None:
        """Attention over a quantised cache, into which exllamav3 has already put the new rows."""
        if not _served(call) or call.q_cache is None or call.block_table is None or call.cache_seqlens is None:
            return None
        step = self._steps.find(call.block_table, call.cache_seqlens, call.q_len, call.q_cache[0].shape[1])
        return _paged(call, _Quantized(call.q_cache, call.num_kv_heads, call.dim), step)
