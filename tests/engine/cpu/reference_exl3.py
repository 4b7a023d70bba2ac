"""A second decoder of EXL3 weights, in numpy, written from the CUDA sources alone: exl3_dq.cuh, codebook.cuh, reconstruct.cu.

It works on single bits and follows the kernel's lanes and fragments step by step, where the product looks up whole tables.
"""

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


def _bits(tile: NDArray[np.uint16]) -> list[int]:
    """The ring of bits of one tile: uint32 words of two shorts, most significant bit first."""
    words = tile.astype(np.uint32).reshape(-1, 2)
    return [(int(low) | int(high) << 16) >> (31 - bit) & 1 for low, high in words for bit in range(32)]


def _tile(tile: NDArray[np.uint16], mcg: bool, mul1: bool) -> Floats:
    """One 16 by 16 tile. Position t ends after the bits of 0..t; odd positions carry the extra bit of a half-integer rate."""
    ring = _bits(tile)
    whole, extra = divmod(len(ring), 256)
    steps = [whole + (1 if extra and t % 2 else 0) for t in range(256)]
    values: list[float] = []
    end = 0
    for step in steps:
        end += step
        index = 0
        for at in range(end - 16, end):
            index = index << 1 | ring[at % len(ring)]
        values.append(codebook_value(index, mcg, mul1))
    out = np.zeros((16, 16))
    for lane in range(32):
        fragment = values[lane * 8 : lane * 8 + 8]
        # the four lanes without bit 2 store half2 pairs: their own value left, that of the lane four further right
        column, right = 2 * (lane // 8), (lane & 4) != 0
        row = (lane % 4) * 2
        for i, (down, across) in enumerate(((0, 0), (1, 0), (8, 0), (9, 0), (0, 8), (1, 8), (8, 8), (9, 8))):
            out[row + down, column + right + across] = fragment[i]
    return out


def decode(trellis: NDArray[np.int16], mcg: bool, mul1: bool) -> Floats:
    """(k/16, n/16, 16·rate) → the inner weight (k, n)."""
    rows, columns, _ = trellis.shape
    unsigned = trellis.view(np.uint16)
    return np.block([[_tile(unsigned[i, j], mcg, mul1) for j in range(columns)] for i in range(rows)])


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
