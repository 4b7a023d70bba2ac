"""The quantised key-value cache: groups of 32 values, rotated, scaled by their largest magnitude and cut to 2 to 8 bits.

Format of a group: H32 (Sylvester, over √32) times the values, divided by the largest magnitude s (stored as half), and
a grid of 2^bits midpoints in [-1, 1]. The bits of a value are spread over planes of 8, 4, 2 and 1 bits, highest first,
whose widths add up to `bits`; a plane of w bits takes w int32 words, value j at bit j·w.
"""

from functools import cache

import torch
from torch import Tensor

from daemon.engine.cpu.hadamard import hadamard
from daemon.engine.cpu.kv_cache import cache_rows

GROUP = 32
_TINY = 1e-10
"""Added to the largest magnitude, so that a group of zeros divides by something."""
_WORD = 0xFFFFFFFF


@cache
def _planes(bits: int) -> tuple[int, ...]:
    """Widths of the planes of `bits`, highest first."""
    return tuple(width for width in (8, 4, 2, 1) if bits & width)


def _compand(t: Tensor, a: float) -> Tensor:
    """a·t + (1 - a)·t³, the grid's spacing where companding is on."""
    return t * (a + (1.0 - a) * t * t)


def _expand(x: Tensor, a: float) -> Tensor:
    """Solve `_compand` for t (Cardano; one real root, since a / (1 - a) > 0)."""
    b = 1.0 - a
    third = a / b / 3.0
    half = x / b * 0.5
    root = torch.sqrt(half * half + third**3)

    def cube_root(v: Tensor) -> Tensor:
        return v.sign() * v.abs().pow(1.0 / 3.0)

    return cube_root(half + root) + cube_root(half - root)


def quantize_groups(values: Tensor, bits: int, compand_a: float) -> tuple[Tensor, Tensor]:
    """Quantise: values (..., dim) → words int32 (..., dim/32, bits), scales half (..., dim/32)."""
    groups = values.float().view(*values.shape[:-1], -1, GROUP) @ hadamard(GROUP)
    scale = groups.abs().amax(-1) + _TINY
    unit = groups / scale.unsqueeze(-1)
    if compand_a > 0.0:
        unit = _expand(unit, compand_a)
    middle = float(1 << (bits - 1))
    index = torch.floor(unit * middle + middle).clamp_(0, (1 << bits) - 1).to(torch.int64)
    words: list[Tensor] = []
    left = bits
    for width in _planes(bits):
        left -= width
        field = (index >> left) & ((1 << width) - 1)
        per_word = GROUP // width
        packed = (field.view(*field.shape[:-1], width, per_word) << (torch.arange(per_word) * width)).sum(-1)
        words.append(packed)
    packed = torch.cat(words, -1)
    signed = torch.where(packed > _WORD >> 1, packed - _WORD - 1, packed).to(torch.int32)
    return signed, scale.half()


def dequantize_groups(words: Tensor, scales: Tensor, compand_a: float) -> Tensor:
    """Decode: words int32 (..., groups, bits), scales half (..., groups) → values fp32 (..., groups·32)."""
    bits = words.shape[-1]
    index = torch.zeros(*words.shape[:-1], GROUP, dtype=torch.int32)
    at = 0
    for width in _planes(bits):
        per_word = GROUP // width
        plane = words[..., at : at + width].unsqueeze(-1) >> (torch.arange(per_word, dtype=torch.int32) * width)
        index = (index << width) | (plane & ((1 << width) - 1)).flatten(-2)
        at += width
    middle = float(1 << (bits - 1))
    unit = (index.float() - (middle - 0.5)) / middle
    if compand_a > 0.0:
        unit = _compand(unit, compand_a)
    return ((unit * scales.float().unsqueeze(-1)) @ hadamard(GROUP)).flatten(-2)


def quant_cache_cont(values: Tensor, out: Tensor, out_scales: Tensor, compand_a: float) -> None:
    """Quantise half (..., dim) into int32 (..., dim/32·bits) and half (..., dim/32); the rate follows from the shapes."""
    groups = values.shape[-1] // GROUP
    words, scales = quantize_groups(values, out.shape[-1] // groups, compand_a)
    out.copy_(words.flatten(-2))
    out_scales.copy_(scales)


def dequant_cache_cont(words: Tensor, scales: Tensor, out: Tensor, compand_a: float) -> None:
    """Inverse of `quant_cache_cont`."""
    out.copy_(dequantize_groups(words.view(*scales.shape, -1), scales, compand_a).view(out.shape))


def quant_cache_paged(  # noqa: PLR0917 - the operation's own signature
    k: Tensor,
    k_out: Tensor,
    k_scales: Tensor,
    v: Tensor,
    v_out: Tensor,
    v_scales: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    page_size: int,
    seq_len: int,
    compand_a: float,
    in_contiguous: bool,
) -> None:
    """Quantise `seq_len` tokens a sequence, from `cache_seqlens` on, into paged caches (pages, page, dim/32·bits).

    `in_contiguous`: k and v are the new tokens (batch, seq_len, heads, dim); else they are whole caches, read at the same rows.
    """
    rows = cache_rows(block_table, cache_seqlens, seq_len, page_size).flatten()
    for source, words, scales in ((k, k_out, k_scales), (v, v_out, v_scales)):
        tokens = source.reshape(-1, scales.shape[-1] * GROUP)
        packed, magnitudes = quantize_groups(
            tokens if in_contiguous else tokens[rows], words.shape[-1] // scales.shape[-1], compand_a
        )
        words.view(-1, words.shape[-1])[rows] = packed.flatten(-2)
        scales.view(-1, scales.shape[-1])[rows] = magnitudes


def dequant_cache_paged(  # noqa: PLR0917 - the operation's own signature
    k: Tensor,
    k_scales: Tensor,
    k_out: Tensor,
    v: Tensor,
    v_scales: Tensor,
    v_out: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    page_size: int,
    sliding_window: int,
    compand_a: float,
) -> None:
    """Decode every sequence's `cache_seqlens` tokens (all that a window still reaches) into half caches of the same pages."""
    lengths: list[int] = cache_seqlens.numpy().tolist()
    for row, length in enumerate(lengths):
        first = max(0, length - sliding_window) if sliding_window > 0 else 0
        rows = cache_rows(block_table[row : row + 1], torch.tensor([first]), length - first, page_size).flatten()
        for words, scales, out in ((k, k_scales, k_out), (v, v_scales, v_out)):
            groups = scales.shape[-1]
            packed = words.view(-1, groups, words.shape[-1] // groups)[rows]
            values = dequantize_groups(packed, scales.view(-1, groups)[rows], compand_a)
            out.view(-1, groups * GROUP)[rows] = values.half()
