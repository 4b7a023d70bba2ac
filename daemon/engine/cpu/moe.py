"""Mixture of experts: choosing experts for each token."""

import torch
from torch import Tensor

HAS_DET_GEMM = False
"""exllamav3's bit-reproducible router projection, which needs its int8 kernel. Without it the router is a plain product."""


def routing_std(  # noqa: PLR0917 - the operation's own signature
    hidden: Tensor,
    gate: Tensor,
    scores: Tensor,
    topk_indices: Tensor,
    topk_weights: Tensor,
    per_expert_scale: Tensor | None,
    gate_t: Tensor | None,
    bias: Tensor | None,
    gate_i8: Tensor | None,
    gate_sb: Tensor | None,
) -> None:
    """The k experts of largest score and the softmax over just these. hidden (rows, dim), gate (dim, experts).

    Writes scores half (rows, experts), indices int64 and weights half (rows, k), best first.
    """
    del gate_t, gate_i8, gate_sb
    logits = hidden.float().view(-1, hidden.shape[-1]) @ gate.float()
    scores.copy_(logits)
    if bias is not None:
        logits = logits + bias.float()
    best = logits.topk(topk_indices.shape[1], -1)
    weights = torch.softmax(best.values, -1)
    if per_expert_scale is not None:
        weights = weights * per_expert_scale.float()[best.indices]
    topk_indices.copy_(best.indices)
    topk_weights.copy_(weights)
