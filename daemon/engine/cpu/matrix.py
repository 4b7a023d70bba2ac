"""Products with the weights of layers, in the layout and by the call that reads them fastest for the number of rows at hand.

What torch does for `F.linear` is the best choice for many rows only. With few, nearly all the time goes into reading the weight:

1. One row: a weight with more outputs than inputs is read nearly twice as fast with its outputs side by side.
2. One or two rows whose result is to be half anyway: the half weight is half as much to read, and torch's product of one or two
   half rows sums in fp32. For more rows torch's half products are many times slower than those in fp32.
3. Two to eight rows: weight times rows, not rows times weight, is another path through the BLAS and up to twice as fast.
4. More: `F.linear`.

Each layout is made when it is first needed. `docs/PERFORMANCE.md` has the times.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

_FEW = 8
"""Rows up to which the weight goes first."""
HALF_ROWS = 2
"""Rows up to which `Matrix.in_half` is the fastest."""


class Matrix:
    """Weights (k, n) of one or more layers with the same input, half or fp32, side by side: one weight (k, sum of n).

    They stay where they are and are copied into the layouts, so nothing may change them afterwards.
    """

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self._wide = sum(part.shape[1] for part in parts) >= parts[0].shape[0]
        self._rows: Tensor | None = None
        self._columns: Tensor | None = None
        self._halves: Tensor | None = None
        if parts[0].dtype == torch.float and not self._wide:
            # nobody else holds an fp32 weight, and this one is not needed in its own layout
            self._rows = _outputs_first(parts)
            parts = [self._rows.t()]
        self._parts = tuple(parts)

    def times(self, x: Tensor) -> Tensor:
        """Compute x (rows, k) times the weight, in fp32: (rows, n), whose memory may lie the other way round."""
        values = x.float()
        if x.shape[0] == 1 and self._wide:
            if self._columns is None:
                self._columns = (self._parts[0] if len(self._parts) == 1 else torch.cat(self._parts, 1)).float().contiguous()
            return torch.mm(values, self._columns)
        if self._rows is None:
            self._rows = _outputs_first(self._parts).float()
        if 1 < x.shape[0] <= _FEW:
            return torch.mm(self._rows, values.t()).t()
        return F.linear(values, self._rows)

    def in_half(self, x: Tensor) -> Tensor:
        """`times` for at most `HALF_ROWS` half rows and a half weight, summed in fp32 and rounded to half."""
        if self._halves is None:
            self._halves = _outputs_first(self._parts)
        return F.linear(x, self._halves)


def _outputs_first(parts: Sequence[Tensor]) -> Tensor:
    """The weight (n, k): one output's inputs side by side."""
    return torch.cat([part.t() for part in parts]).contiguous()
