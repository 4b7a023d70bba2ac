"""The orthonormal Hadamard matrix that EXL3 weights and quantised caches are rotated by."""

from functools import cache

import torch
from torch import Tensor


@cache
def hadamard(size: int) -> Tensor:
    """Sylvester's matrix of `size` (a power of two) over √size, fp32: symmetric and its own inverse."""
    h = torch.ones(1, 1)
    while h.shape[0] < size:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)), 0)
    if h.shape[0] != size:
        raise ValueError(f"{size} is not a power of two")
    return h / size**0.5


def rotate(x: Tensor, size: int) -> Tensor:
    """Rotate x fp32 (..., n·size): each block of `size` times the matrix."""
    return (x.view(*x.shape[:-1], -1, size) @ hadamard(size)).view(x.shape)
