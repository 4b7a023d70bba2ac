"""A second coder of quantised cache groups, in numpy, one value at a time, from q_cache_kernels.cuh and lmq.cuh."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def _hadamard(values: list[float]) -> list[float]:
    """H32 without its scale, by sign of the number of common bits."""
    return [sum(v if (i & j).bit_count() % 2 == 0 else -v for j, v in enumerate(values)) for i in range(32)]


def _planes(bits: int) -> list[int]:
    return [width for width in (8, 4, 2, 1) if bits & width]


def decode_group(words: list[int], scale: float, bits: int, compand: float) -> Floats:
    """32 values from `bits` words of 32 bits."""
    grid: list[float] = []
    for j in range(32):
        index, word = 0, 0
        for width in _planes(bits):
            at = j * width
            field = words[word + at // 32] >> (at % 32) & ((1 << width) - 1)
            index = index << width | field
            word += width
        t = (2 * index + 1) / (1 << bits) - 1
        grid.append(t * (compand + (1 - compand) * t * t) if compand else t)
    return np.array(_hadamard(grid)) * scale / math.sqrt(32)


def encode_group(values: Floats, bits: int, compand: float) -> tuple[list[int], float]:
    """Words and scale of 32 values: each goes to the cell it falls into."""
    rotated = [v / math.sqrt(32) for v in _hadamard([float(v) for v in values])]
    scale = max(abs(v) for v in rotated) + 1e-10
    words = [0] * bits
    for j, v in enumerate(rotated):
        t = _solve(v / scale, compand) if compand else v / scale
        index = min(max(math.floor((t + 1) * (1 << (bits - 1))), 0), (1 << bits) - 1)
        word, left = 0, bits
        for width in _planes(bits):
            left -= width
            words[word + j * width // 32] |= (index >> left & ((1 << width) - 1)) << (j * width % 32)
            word += width
    return words, scale


def _solve(x: float, a: float) -> float:
    """The t in [-1, 1] with a·t + (1 - a)·t³ = x, by bisection."""
    low, high = -1.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * (a + (1 - a) * middle * middle) < x else (low, middle)
    return (low + high) / 2
