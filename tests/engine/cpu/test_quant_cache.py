"""The quantised cache against a decoder of a different make, and its error by rate."""

import numpy as np
import pytest
import torch

from daemon.engine.cpu import quant_cache
from tests.engine.cpu import reference_quant_cache as reference

RATES = [2, 3, 4, 5, 6, 7, 8]
UNSIGNED = 0xFFFFFFFF


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half()


def quantized(source: torch.Tensor, bits: int, compand: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    groups = source.shape[-1] // 32
    words = torch.zeros(*source.shape[:-1], groups * bits, dtype=torch.int32)
    scales = torch.zeros(*source.shape[:-1], groups, dtype=torch.half)
    quant_cache.quant_cache_cont(source, words, scales, compand)
    return words, scales


@pytest.mark.parametrize("compand", [0.0, 0.65])
@pytest.mark.parametrize("bits", RATES)
def test_words_decode_as_the_reference_decodes_them(bits: int, compand: float) -> None:
    words = torch.randint(
        -(1 << 31), 1 << 31, (4, 2 * bits), dtype=torch.int64, generator=torch.Generator().manual_seed(bits)
    ).int()
    scales = values(4, 2).abs()
    out = torch.empty(4, 64, dtype=torch.half)
    quant_cache.dequant_cache_cont(words, scales, out, compand)
    packed = (words.long() & UNSIGNED).view(4, 2, bits).numpy().tolist()
    for row in range(4):
        for group in range(2):
            expected = reference.decode_group(packed[row][group], float(scales[row, group]), bits, compand)
            found = out[row, group * 32 : group * 32 + 32].double().numpy()
            assert np.abs(found - expected).max() < 2e-3 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("compand", [0.0, 0.65])
@pytest.mark.parametrize("bits", RATES)
def test_values_are_packed_as_the_reference_packs_them(bits: int, compand: float) -> None:
    """Up to a value on the border of two cells, where fp32 may fall to the other side."""
    source = values(6, 32, seed=bits)
    words, scales = quantized(source, bits, compand)
    out = torch.empty(6, 32, dtype=torch.half)
    quant_cache.dequant_cache_cont(words, scales, out, compand)
    for row in range(6):
        expected_words, expected_scale = reference.encode_group(source[row].double().numpy(), bits, compand)
        assert float(scales[row, 0]) == pytest.approx(expected_scale, rel=1e-3)
        found = [word & UNSIGNED for word in words[row].numpy().tolist()]
        if found != expected_words:
            cell = 2.0 * expected_scale / (1 << bits)
            again = reference.decode_group(expected_words, expected_scale, bits, compand)
            assert np.abs(out[row].double().numpy() - again).max() < cell


@pytest.mark.parametrize(("bits", "bound"), [(2, 0.4), (3, 0.18), (4, 0.09), (5, 0.045), (6, 0.023), (7, 0.012), (8, 0.006)])
def test_round_trip_error_halves_with_every_bit(bits: int, bound: float) -> None:
    """Root mean square error of normal values, relative to theirs."""
    source = values(64, 256, seed=7)
    words, scales = quantized(source, bits)
    out = torch.empty_like(source)
    quant_cache.dequant_cache_cont(words, scales, out, 0.0)
    error = (out.float() - source.float()).square().mean().sqrt() / source.float().square().mean().sqrt()
    assert bound / 2.2 < float(error) < bound


def test_zeros_stay_zeros() -> None:
    words, scales = quantized(torch.zeros(2, 64, dtype=torch.half), 4)
    out = torch.ones(2, 64, dtype=torch.half)
    quant_cache.dequant_cache_cont(words, scales, out, 0.0)
    assert float(out.abs().max()) < 1e-6


@pytest.mark.parametrize(("k_bits", "v_bits"), [(4, 4), (4, 2), (8, 3)])
def test_paged_rows_land_where_the_block_table_says(k_bits: int, v_bits: int) -> None:
    pages, page, heads, dim = 6, 256, 2, 64
    groups = heads * dim // 32
    qk, qv = (torch.zeros(pages, page, groups * bits, dtype=torch.int32) for bits in (k_bits, v_bits))
    sk, sv = (torch.zeros(pages, page, groups, dtype=torch.half) for _ in range(2))
    table = torch.tensor([[3, 1, 0], [5, 4, 0]], dtype=torch.int32)
    lengths = torch.tensor([250, 3], dtype=torch.int32)
    k, v = values(2, 10, heads, dim, seed=1), values(2, 10, heads, dim, seed=2)
    quant_cache.quant_cache_paged(k, qk, sk, v, qv, sv, lengths, table, page, 10, 0.0, in_contiguous=True)
    full_k, full_v = (torch.zeros(pages, page, heads, dim, dtype=torch.half) for _ in range(2))
    quant_cache.dequant_cache_paged(qk, sk, full_k, qv, sv, full_v, lengths + 10, table, page, -1, 0.0)
    for found, source, bits in ((full_k, k, k_bits), (full_v, v, v_bits)):
        words, scales = quantized(source.flatten(2), bits)
        expected = torch.empty(2, 10, heads * dim, dtype=torch.half)
        quant_cache.dequant_cache_cont(words, scales, expected, 0.0)
        expected = expected.view(2, 10, heads, dim)
        # the first row crosses from page 3 into page 1
        assert torch.equal(found[3, 250:256], expected[0, :6])
        assert torch.equal(found[1, :4], expected[0, 6:])
        assert torch.equal(found[5, 3:13], expected[1])
        assert not found[2].any()


def test_whole_caches_as_input_give_the_same_words() -> None:
    """exllamav3's older path hands over the whole fp16 cache instead of the new rows."""
    page, groups = 256, 4
    table, lengths = torch.tensor([[1]], dtype=torch.int32), torch.tensor([5], dtype=torch.int32)
    new = values(1, 7, 2, 64, seed=3)
    whole = torch.zeros(2, page, 2, 64, dtype=torch.half)
    whole[1, 5:12] = new[0]
    caches: list[torch.Tensor] = []
    for source, contiguous in ((new, True), (whole, False)):
        words, scales = torch.zeros(2, page, groups * 4, dtype=torch.int32), torch.zeros(2, page, groups, dtype=torch.half)
        quant_cache.quant_cache_paged(
            source, words, scales, source, words.clone(), scales.clone(), lengths, table, page, 7, 0.0, contiguous
        )
        caches.append(words)
    assert caches[0].any()
    assert torch.equal(*caches)
