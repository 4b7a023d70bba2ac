"""Linear layers with half weights, which are kept in fp32 too: torch's half GEMM is many times slower on a CPU."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses


def hgemm(x: Tensor, w: Tensor, y: Tensor) -> None:
    """Write y = x·w. x (rows, k), w (k, n), y (rows, n) half or fp32."""
    y.copy_(x.float() @ w.float())


def hgemm_recon(x: Tensor, w: Tensor, y: Tensor) -> None:
    """`hgemm` for a weight decoded a moment ago; the GPU has its own kernel for it."""
    hgemm(x, w, y)


class BC_LinearFP16:  # noqa: N801 - exllamav3's name
    """The fp32 copy of one layer's weight, made on first use because the half weight is filled after this is built."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        del weight, bias  # the layer hands them over with each call, since it may replace them
        self._source: Tensor | None = None
        self._rows = torch.empty(0)

    def rows(self, weight: Tensor) -> Tensor:
        """`weight` (k, n) as fp32 (n, k): one output's inputs side by side, which a single row of activations reads fastest."""
        if self._source is not weight:
            self._rows = weight.t().float().contiguous()
            self._source = weight
        return self._rows


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
    """Stands in for `LinearFP16.forward`: x (..., k) → (..., n), computed in fp32, rounded to the type asked for."""
    del params
    bias = None if self.bias is None else self.bias.float()
    out = F.linear(x.float(), self.bc.rows(self.weight), bias)
    return out.to(out_dtype or self.out_dtype or torch.half)
