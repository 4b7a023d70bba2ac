"""A second decoder of EXL3 weights, in numpy, written from the CUDA sources alone: exl3_dq.cuh, codebook.cuh, reconstruct.cu.

It works on single bits and follows the kernel's lanes and fragments step by step, where the product looks up whole tables.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_U32 = 0xFFFFFFFF


def _halves(word: int) -> tuple[float, float]:
    low, high = np.array([word & 0xFFFF, word >> 16], dtype=np.uint16).view(np.float16)
    return float(low), float(high)


def codebook_value(index: int, mcg: bool, mul1: bool) -> float:
    """decode_3inst<cb>: one entry, as the half it is."""
    if mul1:
        x = (index * 0x83DCD12D) & _U32
        total = 0x6400 + sum(x.to_bytes(4, "little"))
        scale, bias = np.array([0x1EEE, 0xC931], dtype=np.uint16).view(np.float16).astype(np.float64)
        whole = float(np.array([total], dtype=np.uint16).view(np.float16)[0])
        return float(np.float16(whole * scale + bias))
    x = (index * 0xCBAC1FED) & _U32 if mcg else (index * 89226354 + 64248484) & _U32
    low, high = _halves((x & 0x8FFF8FFF) ^ 0x3B603B60)
    return float(np.float16(low + high))


@cache
def _table(mcg: bool, mul1: bool) -> Floats:
    return np.array([codebook_value(index, mcg, mul1) for index in range(1 << 16)])


def _ring(tiles: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """The ring of bits of each tile: uint32 words of two shorts, low one first, most significant bit first."""
    words = tiles[..., 0::2].astype(np.uint32) | tiles[..., 1::2].astype(np.uint32) << 16
    return np.unpackbits(words.astype(">u4").view(np.uint8), axis=-1)


def _values(tiles: NDArray[np.uint16], mcg: bool, mul1: bool) -> Floats:
    """The 256 values of each tile, in the order of the ring. Value t ends after the bits of 0..t, odd ones having the extra bit
    of a half-integer rate, and looks back over 16 bits.
    """
    ring = _ring(tiles)
    whole, extra = divmod(ring.shape[-1], 256)
    out = np.zeros((*tiles.shape[:-1], 256))
    end = 0
    for t in range(256):
        end += whole + (1 if extra and t % 2 else 0)
        index = np.zeros(tiles.shape[:-1], dtype=np.int64)
        for at in range(end - 16, end):
            index = index << 1 | ring[..., at % ring.shape[-1]]
        out[..., t] = _table(mcg, mul1)[index]
    return out


def decode(trellis: NDArray[np.int16], mcg: bool, mul1: bool) -> Floats:
    """(k/16, n/16, 16·rate) → the inner weight (k, n)."""
    values = _values(trellis.view(np.uint16), mcg, mul1)
    tiles = np.zeros((*trellis.shape[:2], 16, 16))
    for lane in range(32):
        fragment = values[..., lane * 8 : lane * 8 + 8]
        # the four lanes without bit 2 store half2 pairs: their own value left, that of the lane four further right
        column, right = 2 * (lane // 8), (lane & 4) != 0
        row = (lane % 4) * 2
        for i, (down, across) in enumerate(((0, 0), (1, 0), (8, 0), (9, 0), (0, 8), (1, 8), (8, 8), (9, 8))):
            tiles[..., row + down, column + right + across] = fragment[..., i]
    return tiles.transpose(0, 2, 1, 3).reshape(trellis.shape[0] * 16, trellis.shape[1] * 16)


def _hadamard(x: Floats) -> Floats:
    """Butterflies over the first axis in blocks of 128, times 1/√128."""
    blocks = x.reshape(-1, 128, x.shape[1]).copy()
    step = 1
    while step < 128:
        for first in range(0, 128, 2 * step):
            a, b = blocks[:, first : first + step].copy(), blocks[:, first + step : first + 2 * step].copy()
            blocks[:, first : first + step], blocks[:, first + step : first + 2 * step] = a + b, a - b
        step *= 2
    return (blocks / np.sqrt(128.0)).reshape(x.shape)


def weight(trellis: NDArray[np.int16], suh: Floats, svh: Floats, mcg: bool, mul1: bool) -> Floats:
    """The weight (k, n) in the basis of the activations."""
    left = _hadamard(decode(trellis, mcg, mul1)) * suh[:, None]
    return _hadamard(left.T).T * svh
