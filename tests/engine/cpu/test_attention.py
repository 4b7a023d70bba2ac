"""The attention backend against the plain formula in float64, query by query."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from daemon.engine.cpu import attention, kv_cache, quant_cache

PAGE, HEADS, KV_HEADS, DIM = 256, 4, 2, 32


@dataclass
class Call:
    """The parts of exllamav3's AttnArgs that are read."""

    q: Tensor
    k: Tensor
    v: Tensor
    k_cache: Tensor | None = None
    v_cache: Tensor | None = None
    block_table: Tensor | None = None
    cache_seqlens: Tensor | None = None
    causal: bool = True
    sm_scale: float = DIM**-0.5
    cu_seqlens: Tensor | None = None
    window_size: int | None = None
    window_right: int = 0
    softcap: float = 0.0
    non_causal_spans: list[object] | None = None
    q_cache: tuple[Tensor, Tensor, Tensor, Tensor, int, int] | None = None
    sinks: Tensor | None = None
    sink_key0: bool = False
    num_q_heads: int = HEADS
    num_kv_heads: int = KV_HEADS
    dim: int = DIM

    bsz: int = 0
    q_len: int = 0

    def __post_init__(self) -> None:
        self.bsz, self.q_len = self.q.shape[:2]


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half()


def by_formula(call: Call, row: int, k: Tensor, v: Tensor) -> Tensor:
    """One row's output (new, heads, dim) over keys k, v (total, kv heads, dim), the last of which are the new tokens'."""
    total, out = k.shape[0], torch.zeros(call.q_len, HEADS, DIM, dtype=torch.float64)
    for i in range(call.q_len):
        at = total - call.q_len + i
        first = 0 if call.window_size is None or call.window_size < 0 else max(0, at - call.window_size)
        last = at + 1 if call.causal else total
        for head in range(HEADS):
            source = head // (HEADS // KV_HEADS)
            scores = k[first:last, source].double() @ call.q[row, i, head].double() * call.sm_scale
            if call.softcap:
                scores = torch.tanh(scores / call.softcap) * call.softcap
            weights = scores.exp()
            total_weight = weights.sum() + (0.0 if call.sinks is None else math.exp(float(call.sinks[head])))
            out[i, head] = (weights / total_weight) @ v[first:last, source].double()
    return out


def paged(past: list[int], new: int, table: list[list[int]], seed: int = 0) -> tuple[Call, list[Tensor], list[Tensor]]:
    """A call over a cache whose pages lie as `table` says, and each row's keys and values as they should be read."""
    pages = max(max(row) for row in table) + 1
    k_cache, v_cache = values(pages, PAGE, KV_HEADS, DIM, seed=seed + 1), values(pages, PAGE, KV_HEADS, DIM, seed=seed + 2)
    batch = len(past)
    q, k, v = (values(batch, new, heads, DIM, seed=seed + 3 + i) for i, heads in enumerate((HEADS, KV_HEADS, KV_HEADS)))
    keys, contents = (
        [torch.cat((cache[row].flatten(0, 1)[:count], fresh[i])) for i, (row, count) in enumerate(zip(table, past, strict=True))]
        for cache, fresh in ((k_cache, k), (v_cache, v))
    )
    call = Call(q, k, v, k_cache, v_cache, torch.tensor(table, dtype=torch.int32), torch.tensor(past, dtype=torch.int32))
    return call, keys, contents


def check(out: Tensor | None, call: Call, keys: list[Tensor], contents: list[Tensor]) -> None:
    assert out is not None
    assert out.dtype == torch.half
    for row in range(call.bsz):
        wanted = by_formula(call, row, keys[row], contents[row])
        assert torch.allclose(out[row].double(), wanted, atol=2e-3), f"row {row}"


@pytest.mark.parametrize("new", [1, 3, 20])
@pytest.mark.parametrize("table", [[[0, 1], [2, 3], [4, 5]], [[5, 0], [1, 4], [3, 2]]])
def test_rows_of_different_lengths_in_one_batch(new: int, table: list[list[int]]) -> None:
    call, keys, contents = paged([0, 300, 37], new, table)
    check(attention.Attention().plain(call), call, keys, contents)
    assert call.k_cache is not None
    assert torch.equal(call.k_cache[table[1][1], 300 - PAGE : 300 - PAGE + new], call.k[1])


@pytest.mark.parametrize("new", [1, 40])
def test_single_row(new: int) -> None:
    call, keys, contents = paged([290], new, [[2, 0]])
    check(attention.Attention().plain(call), call, keys, contents)


@pytest.mark.parametrize("new", [2, 30])
def test_window_softcap_and_sinks(new: int) -> None:
    call, keys, contents = paged([50, 7], new, [[0], [1]])
    call.window_size, call.softcap, call.sinks = 12, 5.0, values(HEADS, seed=9)
    check(attention.Attention().plain(call), call, keys, contents)


@pytest.mark.parametrize("new", [2, 30])
def test_without_causality_all_keys_of_the_row_are_seen(new: int) -> None:
    call, keys, contents = paged([50, 7], new, [[0], [1]])
    call.causal = False
    check(attention.Attention().plain(call), call, keys, contents)


@pytest.mark.parametrize("causal", [True, False])
def test_without_a_cache(causal: bool) -> None:
    q, k, v = values(2, 33, HEADS, DIM), values(2, 33, KV_HEADS, DIM, seed=1), values(2, 33, KV_HEADS, DIM, seed=2)
    call = Call(q, k, v, causal=causal)
    check(attention.Attention().plain(call), call, list(k), list(v))


def test_a_long_prefill_is_cut_into_slices_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_MASK_ELEMENTS", 1 << 13)
    monkeypatch.setattr(kv_cache, "SHORT", 0)
    call, keys, contents = paged([100], 130, [[0]])
    check(attention.Attention().plain(call), call, keys, contents)


def test_one_rows_nan_stays_with_it() -> None:
    """A shorter row is padded with tokens of its own, so another row's NaN, or page 0's, cannot reach it."""
    call, keys, contents = paged([5, 200], 1, [[1], [0]])
    assert call.k_cache is not None
    assert call.v_cache is not None
    call.k_cache[0], call.v_cache[0] = math.nan, math.nan
    out = attention.Attention().plain(call)
    assert out is not None
    assert out[1].isnan().all()
    assert torch.allclose(out[0].double(), by_formula(call, 0, keys[0], contents[0]), atol=2e-3)


@pytest.mark.parametrize("new", [1, 20])
@pytest.mark.parametrize(("k_bits", "v_bits"), [(8, 8), (4, 2)])
def test_quantized_cache_is_read_as_its_decoder_reads_it(new: int, k_bits: int, v_bits: int) -> None:
    call, keys, contents = paged([30, 300], new, [[0, 3], [2, 1]])
    assert call.block_table is not None
    assert call.cache_seqlens is not None
    groups = KV_HEADS * DIM // 32
    words = [torch.zeros(4, PAGE, groups * bits, dtype=torch.int32) for bits in (k_bits, v_bits)]
    scales = [torch.zeros(4, PAGE, groups, dtype=torch.half) for _ in range(2)]
    both = [(words[0], scales[0], keys), (words[1], scales[1], contents)]
    expected: list[list[Tensor]] = []
    for packed, magnitudes, rows in both:
        decoded: list[Tensor] = []
        for row, tokens in enumerate(rows):
            start, table = torch.zeros(1, dtype=torch.int32), call.block_table[row : row + 1]
            given = tokens.unsqueeze(0)
            spare = (torch.zeros_like(packed), torch.zeros_like(magnitudes))
            quant_cache.quant_cache_paged(
                given, packed, magnitudes, given, *spare, start, table, PAGE, given.shape[1], 0.0, in_contiguous=True
            )
            out = torch.zeros(4, PAGE, KV_HEADS, DIM, dtype=torch.half)
            ends = torch.tensor([given.shape[1]], dtype=torch.int32)
            quant_cache.dequant_cache_paged(packed, magnitudes, out, packed, magnitudes, out.clone(), ends, table, PAGE, -1, 0.0)
            decoded.append(out[table[0].long()].flatten(0, 1)[: given.shape[1]])
        expected.append(decoded)
    call.k_cache = call.v_cache = None
    call.q_cache = (words[0], scales[0], words[1], scales[1], k_bits, v_bits)
    check(attention.Attention().quantized(call), call, *expected)


def test_calls_of_vision_are_declined() -> None:
    call = Call(values(1, 2, HEADS, DIM), values(1, 2, KV_HEADS, DIM), values(1, 2, KV_HEADS, DIM))
    call.cu_seqlens = torch.tensor([0, 2])
    assert attention.Attention().plain(call) is None
    call.cu_seqlens, call.non_causal_spans = None, [(0, 1, True)]
    assert attention.Attention().plain(call) is None
    assert attention.Attention().quantized(call) is None
