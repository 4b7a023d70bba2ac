"""Activations and gates. All compute in fp32 and round once; where a GPU kernel clamps to half's range, so do these."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

_HALF_MAX = 65504.0
_OAI_SLOPE = 1.702
_XIELU_BETA = 0.5
_XIELU_EPSILON = -9.9838e-07
"""-1e-6 rounded to bf16, as the model was trained with."""


def _store(out: Tensor, values: Tensor) -> None:
    out.copy_(values.clamp(-_HALF_MAX, _HALF_MAX))


def _gate(activated: Tensor, y: Tensor, z: Tensor, act_limit: float) -> None:
    """Write z = activated·y, both limited first when there is a limit: the gate from above, the other on both sides."""
    other = y.float()
    if act_limit:
        activated, other = activated.clamp(max=act_limit), other.clamp(-act_limit, act_limit)
    _store(z, activated * other)


def silu_mul(x: Tensor, y: Tensor, z: Tensor, act_limit: float) -> None:
    """Write z = silu(x)·y."""
    _gate(F.silu(x.float()), y, z, act_limit)


def gelu_mul(x: Tensor, y: Tensor, z: Tensor, act_limit: float) -> None:
    """Write z = gelu(x)·y, with the tanh approximation."""
    _gate(F.gelu(x.float(), approximate="tanh"), y, z, act_limit)


def relu_mul(x: Tensor, y: Tensor, z: Tensor, act_limit: float) -> None:
    """Write z = relu(x)·y."""
    _gate(F.relu(x.float()), y, z, act_limit)


def relu2_mul(x: Tensor, y: Tensor, z: Tensor, act_limit: float) -> None:
    """Write z = relu(x)²·y."""
    _gate(F.relu(x.float()).square(), y, z, act_limit)


def silu_oai_mul(x: Tensor, y: Tensor, z: Tensor, act_limit: float) -> None:
    """Write z = (y + 1)·x·sigmoid(1.702·x): gpt-oss, which limits before the activation."""
    gate, other = x.float(), y.float()
    if act_limit:
        gate, other = gate.clamp(max=act_limit), other.clamp(-act_limit, act_limit)
    _store(z, (other + 1.0) * gate * torch.sigmoid(_OAI_SLOPE * gate))


def xielu(x: Tensor, y: Tensor, alpha_p: float, alpha_n: float) -> None:
    """Write y = alpha_p·x² + x/2 for positive x, else alpha_n·(exp(x) - 1 - x) + x/2."""
    v = x.float()
    positive = alpha_p * v * v
    negative = alpha_n * (torch.expm1(v.clamp(max=_XIELU_EPSILON)) - v)
    _store(y, torch.where(v > 0, positive, negative) + _XIELU_BETA * v)


def softcap(x: Tensor, y: Tensor, scale: float) -> None:
    """Write y = scale·tanh(x / scale)."""
    y.copy_(torch.tanh(x.float() / scale) * scale)


def mul_sigmoid_(x: Tensor, y: Tensor) -> None:
    """Do x *= sigmoid(y), same number of elements."""
    x.copy_(x.float() * torch.sigmoid(y.float().view(x.shape)))


def mul_sigmoid_broadcast_(x: Tensor, y: Tensor) -> None:
    """Do x (..., dim) *= sigmoid(y) (...): one gate a head."""
    x.copy_(x.float() * torch.sigmoid(y.float()).view(*x.shape[:-1], 1))


def mul_softplus_broadcast_(x: Tensor, y: Tensor) -> None:
    """Do x (..., dim) *= softplus(y) (...): one gate a head."""
    x.copy_(x.float() * F.softplus(y.float()).view(*x.shape[:-1], 1))


def add_sigmoid_gate(x: Tensor, y: Tensor, z: Tensor) -> None:
    """Do z (..., dim) += x·sigmoid(y), one gate y a row."""
    z.add_((x.float() * torch.sigmoid(y.float()).view(*x.shape[:-1], 1)).view(z.shape))


def add_sigmoid_gate_proj(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> None:
    """Do z += x·sigmoid(y·w): the gate's own projection `w` (dim, 1) included. x, y, z (..., dim)."""
    gate = torch.sigmoid(y.float().view(-1, y.shape[-1]) @ w.float().view(-1, 1))
    z.add_((x.float().view(gate.shape[0], -1) * gate).view(z.shape))


def add(x: Tensor, y: Tensor, z: Tensor) -> None:
    """Write z = x + y."""
    z.copy_(x.float() + y.float())


def deinterleave_qg(qg: Tensor, q: Tensor, g: Tensor, head_dim: int) -> None:
    """Split a projection whose heads hold [query, gate] into queries and gates."""
    heads = qg.view(*qg.shape[:-1], -1, 2, head_dim)
    q.copy_(heads[..., 0, :].reshape(q.shape))
    g.copy_(heads[..., 1, :].reshape(g.shape))
