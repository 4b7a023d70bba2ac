"""EXL3 weights: the trellis, its three codebooks, and linear layers over them.

A weight (k, n) is diag(suh)·H·T·H·diag(svh), H being blocks of 128 of the orthonormal Hadamard matrix. T is stored in tiles of
16 by 16 values, each tile a ring of 256·K bits (int16 words, pairs of them one uint32, most significant bit first). Value t of a
tile is codebook[16 bits ending where its own bits end]: K bits each, or at a half-integer rate alternately K - 1/2 and K + 1/2.
"""

from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from daemon.engine.cpu.hadamard import hadamard, rotate
from daemon.engine.cpu.matrix import Matrix

BLOCK = 128
_TILE = 16
_VALUES = _TILE * _TILE
_WINDOW = 16
_U32 = 0xFFFFFFFF
_SIGNED = 0x7FFF
"""Largest int16."""
_MASK, _FLIP = 0x8FFF8FFF, 0x3B603B60
_ROWS_AT_ONCE = 16
"""Rows of tiles decoded together, which bounds the int64 intermediates."""


def _halves(bits: Tensor) -> Tensor:
    """int64 values of 16 bits as the halves they encode, in fp32."""
    return torch.where(bits > _SIGNED, bits - 0x10000, bits).to(torch.int16).view(torch.half).float()


@cache
def codebook(mcg: bool, mul1: bool) -> Tensor:
    """All 65,536 entries, half. With neither flag, the default codebook."""
    x = torch.arange(1 << _WINDOW, dtype=torch.int64)
    if mul1:
        x = (x * 0x83DCD12D) & _U32
        total = 0x6400 + sum(((x >> shift) & 0xFF for shift in (0, 8, 16, 24)), torch.zeros((), dtype=torch.int64))
        slope, offset = _halves(torch.tensor([0x1EEE, 0xC931]))
        return (_halves(total) * slope + offset).half()
    x = (x * 0xCBAC1FED if mcg else x * 89226354 + 64248484) & _U32
    x = (x & _MASK) ^ _FLIP
    return (_halves(x & 0xFFFF) + _halves(x >> 16)).half()


@cache
def _tile_order() -> Tensor:
    """Place in a row-major tile of each value, in the order of the ring: that of a tensor core's fragments."""
    t = torch.arange(_VALUES)
    lane, i = t // 8, t % 8
    row = (lane % 4) * 2 + (i & 1) + 8 * ((i >> 1) & 1)
    column = lane // 4 + 8 * (i >> 2)
    return row * _TILE + column


@cache
def _windows(words: int) -> tuple[Tensor, Tensor, Tensor]:
    """For a tile of so many uint32: of each value's 16 bits, the word they begin in, the word they end in, and the shift."""
    t = torch.arange(_VALUES)
    rate2 = words // 4
    """Bits of two neighbouring values together."""
    ends = (t // 2) * rate2 + torch.where(t % 2 == 0, rate2 // 2, rate2) + words * 32
    last = (ends - 1) // 32
    return ((ends - _WINDOW) // 32) % words, last % words, (last + 1) * 32 - ends


def decode_trellis(trellis: Tensor, mcg: bool, mul1: bool) -> Tensor:
    """Decode: trellis int16 (k/16, n/16, 16·K) → T half (k, n). The rate follows from the shape."""
    tiles_k, tiles_n, shorts = trellis.shape
    first, last, shift = _windows(shorts // 2)
    table = codebook(mcg, mul1)
    out = torch.empty(tiles_k, tiles_n, _VALUES, dtype=torch.half)
    order = _tile_order()
    for begin in range(0, tiles_k, _ROWS_AT_ONCE):
        part = slice(begin, begin + _ROWS_AT_ONCE)
        unsigned = trellis[part].to(torch.int64) & 0xFFFF
        words = unsigned[..., 0::2] | (unsigned[..., 1::2] << 16)
        state = (((words[..., first] << 32) | words[..., last]) >> shift) & 0xFFFF
        out[part, :, order] = table[state]
    return out.view(tiles_k, tiles_n, _TILE, _TILE).permute(0, 2, 1, 3).reshape(tiles_k * _TILE, tiles_n * _TILE)


def decode_weight(trellis: Tensor, suh: Tensor, svh: Tensor, mcg: bool, mul1: bool) -> Tensor:
    """The weight (k, n) in fp32. suh half (k), svh half (n)."""
    inner = decode_trellis(trellis, mcg, mul1).float()
    k, n = inner.shape
    left = (hadamard(BLOCK) @ inner.view(k // BLOCK, BLOCK, n)).view(k, n)
    return rotate(left * suh.float().unsqueeze(1), BLOCK) * svh.float()


def reconstruct(unpacked: Tensor, packed: Tensor, rate: float, mcg: bool, mul1: bool) -> None:
    """T into `unpacked` half (k, n)."""
    del rate
    unpacked.copy_(decode_trellis(packed, mcg, mul1))


def reconstruct_slice(unpacked: Tensor, packed: Tensor, rate: float, mcg: bool, mul1: bool, n_offset: int) -> None:
    """Columns of T from `n_offset` on, as many as `unpacked` has."""
    del rate
    columns = slice(n_offset // _TILE, (n_offset + unpacked.shape[1]) // _TILE)
    unpacked.copy_(decode_trellis(packed[:, columns], mcg, mul1))


def reconstruct_had_slice(
    unpacked: Tensor, packed: Tensor, suh: Tensor, svh: Tensor, rate: float, mcg: bool, mul1: bool, n_offset: int
) -> None:
    """Columns of the weight from `n_offset` on; svh is given from there on too."""
    del rate
    width = unpacked.shape[1]
    columns = slice(n_offset // _TILE, (n_offset + width) // _TILE)
    unpacked.copy_(decode_weight(packed[:, columns], suh, svh[:width], mcg, mul1))


def had_r_128(x: Tensor, y: Tensor, pre_scale: Tensor | None, post_scale: Tensor | None, scale: float) -> None:
    """Write y = ((x·pre_scale)·H)·scale·post_scale, in blocks of 128 of the last dimension."""
    values = x.float()
    if pre_scale is not None:
        values = values * pre_scale.float()
    values = rotate(values, BLOCK)
    if scale != 1.0:
        values = values * scale
    y.copy_(values if post_scale is None else values * post_scale.float())


def exl3_gemv_int8_max_k(*_device: object) -> int:
    """Highest rate for which the GPU multiplies by int8 activations: none here."""
    return 0


class BC_LinearEXL3:  # noqa: N801 - exllamav3's name
    """One EXL3 layer, decoded to fp32 on first use and kept: four bytes a weight in each layout that `Matrix` makes."""

    def __init__(
        self,
        trellis: Tensor,
        suh: Tensor,
        svh: Tensor,
        rate: float,
        bias: Tensor | None,
        mcg: bool,
        mul1: bool,
        xh: Tensor | None,
    ) -> None:
        del rate, xh
        self._packed = (trellis, suh, svh, mcg, mul1)
        self._bias = bias
        self._matrix: Matrix | None = None

    def run_alloc(self, x: Tensor, out_features: int, fp32: bool) -> Tensor:
        """Compute x (..., k) times the weight, plus bias: (..., n), fp32 or half."""
        if self._matrix is None:
            self._matrix = Matrix([decode_weight(*self._packed)])
        out = self._matrix.times(x.reshape(-1, x.shape[-1]))
        if self._bias is not None:
            out = out + self._bias
        dtype = torch.float if fp32 else torch.half
        return out.new_empty(out.shape, dtype=dtype).copy_(out).view(*x.shape[:-1], out_features)


class _Exl3Linear(Protocol):
    """What this room reads of exllamav3's LinearEXL3."""

    bc: BC_LinearEXL3
    out_features: int
    default_out_dtype: torch.dtype


def exl3_many_rows(self: _Exl3Linear, x: Tensor, out_dtype: torch.dtype | None) -> Tensor:
    """Stands in for `LinearEXL3.reconstruct_hgemm`, which decodes the weight anew on every call with many rows."""
    return self.bc.run_alloc(x, self.out_features, (out_dtype or self.default_out_dtype) == torch.float)
