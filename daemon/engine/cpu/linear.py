"""Linear layers with half weights: computed in fp32 on kept copies of the weight, or in half where that is faster."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from daemon.engine.cpu.matrix import HALF_ROWS, Matrix


def hgemm(x: Tensor, w: Tensor, y: Tensor) -> None:
    """Write y = x·w. x (rows, k), w (k, n), y (rows, n) half or fp32."""
    y.copy_(x.float() @ w.float())


def hgemm_recon(x: Tensor, w: Tensor, y: Tensor) -> None:
    """`hgemm` for a weight decoded a moment ago; the GPU has its own kernel for it."""
    hgemm(x, w, y)


class BC_LinearFP16:  # noqa: N801 - exllamav3's name
    """One layer's weight as it is multiplied by, made on first use because the half weight is filled after this is built.

    Trailing inputs and outputs whose weights are all zero are left out of the product: exllamav3 wants widths in multiples
    of 128, and models that have others are padded with zeros.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        del weight, bias  # the layer hands them over with each call, since it may replace them
        self._source: Tensor | None = None
        self._used = (0, 0)
        self._matrix = Matrix([torch.empty(0, 0)])

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Compute x (rows, k) times `weight` (k, n), plus bias (n), rounded to `dtype`: (rows, n), contiguous."""
        if self._source is not weight:
            self._used = without_padding(weight)
            self._matrix = Matrix([weight[: self._used[0], : self._used[1]]])
            self._source = weight
        inputs, outputs = self._used
        used = x if inputs == x.shape[1] else x[:, :inputs]
        if bias is not None:
            return widened(self._matrix.times(used), weight.shape[1], torch.float).add_(bias).to(dtype)
        if x.shape[0] <= HALF_ROWS and dtype == x.dtype == torch.half:
            product = self._matrix.in_half(used)
        else:
            product = self._matrix.times(used)
        if outputs == weight.shape[1] and product.dtype == dtype and product.is_contiguous():
            return product
        return widened(product, weight.shape[1], dtype)


def widened(product: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
    """A product (rows, n) copied and rounded to `dtype`, with zeros behind it up to `outputs` columns."""
    missing = outputs - product.shape[1]
    if missing:
        return torch.constant_pad_nd(product.to(dtype), (0, missing))
    return product.new_empty(product.shape, dtype=dtype).copy_(product)


def without_padding(weight: Tensor) -> tuple[int, int]:
    """How many inputs and outputs of a weight (k, n) come before the first from which on all are zero; at least one of each."""
    used = weight != 0
    inputs, outputs = (int(ends[-1]) + 1 if ends.numel() else 1 for ends in (used.any(axis).nonzero() for axis in (1, 0)))
    return inputs, outputs


class _HalfLinear(Protocol):
    """What this room reads of exllamav3's LinearFP16."""

    weight: Tensor
    bias: Tensor | None
    bc: BC_LinearFP16
    out_dtype: torch.dtype | None
    out_features: int


def half_linear_forward(
    self: _HalfLinear, x: Tensor, params: Mapping[str, object], out_dtype: torch.dtype | None = None
) -> Tensor:
    """Stands in for `LinearFP16.forward`: x (..., k) → (..., n), rounded to the type asked for."""
    del params
    dtype = out_dtype or self.out_dtype or torch.half
    out = self.bc.multiply(x.reshape(-1, x.shape[-1]), self.weight, self.bias, dtype)
    return out.view(*x.shape[:-1], self.out_features)
