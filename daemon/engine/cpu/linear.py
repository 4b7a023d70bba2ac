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
    """The fp32 copy of one layer's weight, made on first use because the half weight is filled after this is built.

    Trailing inputs and outputs whose weights are all zero are left out of the product: exllamav3 wants widths in multiples
    of 128, and models that have others are padded with zeros.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        del weight, bias  # the layer hands them over with each call, since it may replace them
        self._source: Tensor | None = None
        self._rows = torch.empty(0)

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """Compute x (..., k) times `weight` (k, n), in fp32."""
        if self._source is not weight:
            self._rows = _without_padding(weight.t().float())
            self._source = weight
        outputs, inputs = self._rows.shape
        used = x if inputs == x.shape[-1] else x[..., :inputs]
        out = F.linear(used.float(), self._rows)
        missing = weight.shape[1] - outputs
        return F.pad(out, (0, missing)) if missing else out


def _without_padding(rows: Tensor) -> Tensor:
    """Drop all-zero rows at the end and all-zero columns at the right; at least one of each stays.

    A few rows are kept all the same: putting their zeros back costs more than multiplying by them.
    """
    used = rows != 0
    bottom, right = (used.any(axis).nonzero() for axis in (1, 0))
    outputs, inputs = (int(ends[-1]) + 1 if ends.numel() else 1 for ends in (bottom, right))
    if rows.shape[0] - outputs < rows.shape[0] // 8:
        outputs = rows.shape[0]
    # one output's inputs side by side, which a single row of activations reads fastest
    return rows[:outputs, :inputs].contiguous()


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
    out = self.bc.multiply(x, self.weight)
    if self.bias is not None:
        out = out + self.bias.float()
    return out.to(out_dtype or self.out_dtype or torch.half)
