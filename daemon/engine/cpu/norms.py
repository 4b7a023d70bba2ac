"""RMS norms. All compute in fp32 and round once, into the output given."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

GATE_SIGMOID = 1


def unit_rms(x: Tensor, epsilon: float) -> Tensor:
    """`x` (fp32) scaled so that the mean square of its last dimension is 1."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True).add_(epsilon))


def _weight_rows(w: Tensor, bias: float, rows: int, groups: int) -> Tensor:
    """The weight as fp32, plus `bias`, either (dim,) or one row for each of `rows` rows, cycling through the groups."""
    weight = w.float() + bias if bias else w.float()
    return weight.view(groups, -1).repeat(rows // groups, 1) if groups > 1 else weight


def rms_norm(  # noqa: PLR0917 - the operation's own signature
    x: Tensor,
    w: Tensor | None,
    y: Tensor,
    epsilon: float,
    constant_bias: float,
    constant_scale: float,
    span_heads: bool,
    add_residual: bool,
    w_groups: int = 1,
) -> None:
    """Write y = norm(x)·(w + constant_bias)·constant_scale, or add it if `add_residual`.

    `span_heads`: the norm is over the last two dimensions. `w_groups`: w holds so many rows, which the rows of x cycle through.
    """
    rows = (x.flatten(-2) if span_heads else x).float()
    if w_groups > 1 and w is not None:
        out = unit_rms(rows, epsilon) * _weight_rows(w, constant_bias, rows.shape[0], w_groups)
    else:
        weight = None if w is None else _weight_rows(w, constant_bias, 1, 1)
        out = F.rms_norm(rows, rows.shape[-1:], weight, epsilon)
    if constant_scale != 1.0:
        out = out * constant_scale
    y.copy_(out.view(x.shape).add_(y) if add_residual else out.view(x.shape))


def rms_norm_res_in(
    x: Tensor, w: Tensor | None, y: Tensor, r: Tensor, epsilon: float, constant_bias: float, constant_scale: float
) -> None:
    """Do r += x, then y = norm(r)·(w + constant_bias)·constant_scale. The sum is rounded to r's type before the norm."""
    r.add_(x)
    if r.dtype == torch.float and w is not None and constant_bias == 0.0 and constant_scale == 1.0:
        # what nearly every layer asks for, twice, without the detours
        y.copy_(torch.rms_norm(r, r.shape[-1:], w.float(), epsilon))
        return
    rms_norm(r, w, y, epsilon, constant_bias, constant_scale, span_heads=False, add_residual=False)


def gated_rms_norm(  # noqa: PLR0917 - the operation's own signature
    x: Tensor,
    w: Tensor,
    y: Tensor,
    g: Tensor,
    epsilon: float,
    constant_bias: float,
    w_groups: int = 1,
    gate_first: bool = False,
    gate_act: int = 0,
) -> None:
    """Write y = norm(x)·(w + constant_bias)·act(g), or norm(x·act(g))·(w + constant_bias) if `gate_first`. x (..., dim)."""
    gate = torch.sigmoid(g.float()) if gate_act == GATE_SIGMOID else F.silu(g.float())
    values = x.float()
    out = unit_rms(values * gate if gate_first else values, epsilon)
    flat = out.view(-1, out.shape[-1])
    out = (flat * _weight_rows(w, constant_bias, flat.shape[0], w_groups)).view(out.shape)
    y.copy_((out if gate_first else out * gate).view(y.shape))


class BC_GatedRMSNorm:  # noqa: N801 - exllamav3's name
    """Holds the place of exllamav3's graph-captured gated norm, which only its GPU decode graphs call."""

    def __init__(self, *_settings: object) -> None:
        pass
