"""Choosing experts, against transformers' router."""

import torch
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from daemon.engine.cpu.moe import routing_std

EXPERTS, CHOSEN = 8, 3


def test_experts_and_weights_equal_softmax_then_choice_then_normalising() -> None:
    """Softmax over all, best k, weights divided by their sum: Qwen's order, the same as softmax over the chosen."""
    hidden = torch.randn(5, 16, generator=torch.Generator().manual_seed(0)).half()
    gate = torch.randn(16, EXPERTS, generator=torch.Generator().manual_seed(1)).half()
    scores, indices = torch.empty(5, EXPERTS, dtype=torch.half), torch.empty(5, CHOSEN, dtype=torch.long)
    weights = torch.empty(5, CHOSEN, dtype=torch.half)
    routing_std(hidden, gate, scores, indices, weights, None, None, None, None, None)
    logits = F.linear(hidden.double(), gate.double().t())
    wanted, chosen = logits.softmax(-1).topk(CHOSEN, -1)
    assert torch.allclose(scores.double(), logits, rtol=1e-2, atol=1e-2)
    assert torch.equal(indices, chosen)
    assert torch.allclose(weights.double(), wanted / wanted.sum(-1, keepdim=True), atol=1e-3)


def test_bias_takes_part_in_the_choice_and_a_scale_comes_last() -> None:
    hidden, gate = torch.ones(1, 4).half(), torch.zeros(4, EXPERTS).half()
    bias = torch.tensor([0, 0, 0, 5, 0, 4, 0, 0]).half()
    scale = torch.arange(EXPERTS).bfloat16()
    indices, weights = torch.empty(1, 2, dtype=torch.long), torch.empty(1, 2)
    routing_std(hidden, gate, torch.empty(1, EXPERTS), indices, weights, scale, None, bias, None, None)
    share = 1 / (1 + torch.tensor(-1.0).exp())
    assert indices.numpy().tolist() == [[3, 5]]
    assert torch.allclose(weights, torch.tensor([[3 * share, 5 * (1 - share)]]), rtol=1e-4)
