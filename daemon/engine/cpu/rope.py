"""Rotary position embedding, fused with the per-head q and k norms as exllamav3 fuses them."""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from daemon.engine.cpu.norms import unit_rms


class _Style(IntEnum):
    """exllamav3's RopeStyle: which two components of a head form a pair."""

    NONE = 0
    GPTJ = 1
    """Neighbours."""
    NEOX = 2
    """Component i of the first half with component i of the second."""


def _positions(q: Tensor, position: int, positions: Tensor | None, position_ids: Tensor | None) -> Tensor:
    """Positions as int64 (1 or batch, length)."""
    length = q.shape[1]
    if position_ids is not None:
        if position_ids.dim() != 2:  # noqa: PLR2004 - (batch, length); a third dimension would be rotate_dims
            raise NotImplementedError("rope: position ids of more than one dimension have no CPU version")
        return position_ids.long()
    steps = torch.arange(length)
    return positions.long().view(-1, 1) + steps if positions is not None else (steps + position).view(1, -1)


def _angles(positions: Tensor, inv_freq: Tensor, batch: int) -> Tensor:
    """Angles fp32 (1 or batch, length, rotated/2). A table of 2 or 3 dimensions already holds angles by position."""
    if inv_freq.dim() == 1:
        return positions.unsqueeze(-1).float() * inv_freq
    table = inv_freq if inv_freq.dim() == 3 else inv_freq.unsqueeze(0)  # noqa: PLR2004 - (batch, position, rotated/2)
    rows = torch.arange(batch).view(-1, 1)
    return table.expand(batch, -1, -1)[rows, positions.expand(batch, -1)]


@dataclass(frozen=True, slots=True)
class _Turn:
    """Cosines and sines for one forward pass, in the shape they are multiplied in, and what they were computed from."""

    inv_freq: Tensor
    position: int
    given: Tensor | None
    shape: tuple[int, int]
    style: _Style
    attn_factor: float
    cos: Tensor
    sin: Tensor

    def serves(
        self, inv_freq: Tensor, position: int, given: Tensor | None, shape: tuple[int, int], style: _Style, factor: float
    ) -> bool:
        """Whether these are the ones for the inputs given; tensors are compared by value, since their memory is used again."""
        if (self.position, self.shape, self.style, self.attn_factor) != (position, shape, style, factor):
            return False
        if (self.given is None) != (given is None) or not torch.equal(self.inv_freq, inv_freq):
            return False
        return self.given is None or given is None or torch.equal(self.given, given)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, style: _Style) -> Tensor:
    """Rotate the first components of every head of `x` fp32 (batch, length, heads, dim), as many as cos and sin cover."""
    width = cos.shape[-1] if style is _Style.NEOX else 2 * cos.shape[-1]
    whole = width == x.shape[-1]
    turned = x if whole else x[..., :width]
    match style:
        case _Style.NEOX:
            partners = turned.roll(width // 2, -1)
            turned = (turned * cos).addcmul_(partners, sin)
        case _Style.GPTJ:
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        case _Style.NONE:
            pass
    return turned if whole else torch.cat((turned, x[..., width:]), -1)


class Rope:
    """The operation, which remembers the angles of the last call: every layer of a model asks for the same ones."""

    def __init__(self) -> None:
        self._last: _Turn | None = None

    def _turn(
        self,
        q: Tensor,
        inv_freq: Tensor,
        position: int,
        positions: Tensor | None,
        position_ids: Tensor | None,
        style: _Style,
        factor: float,
    ) -> _Turn:
        given, shape = positions if position_ids is None else position_ids, (q.shape[0], q.shape[1])
        last = self._last
        if last is None or not last.serves(inv_freq, position, given, shape, style, factor):
            angles = _angles(_positions(q, position, positions, position_ids), inv_freq, q.shape[0]).unsqueeze(2)
            cos, sin = angles.cos() * factor, angles.sin() * factor
            if style is _Style.NEOX:
                cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
            kept = None if given is None else given.clone()
            last = self._last = _Turn(inv_freq.clone(), position, kept, shape, style, factor, cos, sin)
        return last

    def rope(  # noqa: PLR0917 - the operation's own signature
        self,
        q: Tensor,
        out_q: Tensor,
        k: Tensor | None,
        out_k: Tensor | None,
        inv_freq: Tensor,
        position: int,
        positions: Tensor | None,
        position_ids: Tensor | None,
        rope_mode: int,
        attn_factor: float,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        norm_eps: float,
        norm_constant_bias: float,
        llama_4_scaling_beta: float,
        llama_4_scaling_original: int,
        rotate_dims: int,
        rotate_offset: int,
    ) -> None:
        """Norm (where weights are given) and rotate q and k, half (batch, length, heads, dim), into out_q and out_k."""
        if rotate_dims != 1 or rotate_offset:
            raise NotImplementedError("rope: rotating in more than one dimension has no CPU version")
        style = _Style(rope_mode)
        turn = self._turn(q, inv_freq, position, positions, position_ids, style, attn_factor)

        def turned(x: Tensor, norm: Tensor | None) -> Tensor:
            values = x.float()
            if norm is not None:
                # the GPU keeps a normed head in half before rotating it
                values = (unit_rms(values, norm_eps) * (norm.float() + norm_constant_bias)).half().float()
            return _rotate(values, turn.cos, turn.sin, style)

        if llama_4_scaling_beta > 0.0:
            # queries only; keys enter the cache unscaled
            at = _positions(q, position, positions, position_ids)
            scale = 1.0 + llama_4_scaling_beta * torch.log1p((at // llama_4_scaling_original).float())
            out_q.copy_(turned(q, q_norm) * scale.unsqueeze(-1).unsqueeze(-1))
        elif k is not None and out_k is not None and q_norm is None:
            # nothing tells queries from keys: turn them together
            both = turned(torch.cat((q, k), 2), None)
            out_q.copy_(both[:, :, : q.shape[2]])
            out_k.copy_(both[:, :, q.shape[2] :])
            return
        else:
            out_q.copy_(turned(q, q_norm))
        if k is not None and out_k is not None:
            out_k.copy_(turned(k, k_norm))
