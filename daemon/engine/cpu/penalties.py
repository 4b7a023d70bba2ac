"""Penalties on tokens seen before. Logits fp32 or half (1, vocabulary) in, fp32 out; past ids int64 (1, n), oldest first."""

import torch
from torch import Tensor

_EPSILON = 1e-30
"""Keeps a logit of -inf at -inf where a weight is exactly 0 or 1, as in the kernel."""


def _weights(count: int, sustain: int, decay: int) -> Tensor:
    """Weight of each past token, oldest first: 1 for the last `sustain`, fading to 0 over the `decay` before them."""
    distance = torch.arange(count, 0, -1).float()
    faded = 1.0 - (distance - sustain) / decay if decay > 0 else (distance <= sustain).float()
    return faded.clamp_(0.0, 1.0)


def _recent(past_ids: Tensor, vocabulary: int, sustain: int, decay: int) -> tuple[Tensor, Tensor]:
    """Ids of the window that are in the vocabulary, and their weights."""
    ids = past_ids.view(-1)
    ids = ids[-(sustain + decay) :] if sustain + decay < ids.numel() else ids
    weights = _weights(ids.numel(), sustain, decay)
    known = (ids >= 0) & (ids < vocabulary)
    return ids[known], weights[known]


def _one_row(logits: Tensor) -> int:
    if logits.shape[0] != 1:
        raise ValueError(f"penalties apply to one row of logits at a time, not {logits.shape[0]}")
    return logits.shape[1]


def apply_rep_pens(
    in_logits: Tensor, out_logits: Tensor, past_ids: Tensor, rep_p: float, sustain_range: int, decay_range: int
) -> None:
    """Repetition: a seen token's logit is divided by `rep_p` if positive, else multiplied, as far as its greatest weight says."""
    vocabulary = _one_row(in_logits)
    ids, weights = _recent(past_ids, vocabulary, sustain_range, decay_range)
    share = torch.zeros(vocabulary).scatter_reduce_(0, ids, weights, "amax") + _EPSILON
    logits = in_logits.view(-1).float()
    penalised = torch.where(logits > 0, logits / rep_p, logits * rep_p)
    out_logits.view(-1).copy_(logits * ((1.0 - share) + _EPSILON) + penalised * share)


def apply_pres_freq_pens(
    in_logits: Tensor, out_logits: Tensor, past_ids: Tensor, pres_p: float, freq_p: float, sustain_range: int, decay_range: int
) -> None:
    """Presence and frequency: minus pres_p times a token's greatest weight, minus freq_p times the sum of its weights."""
    vocabulary = _one_row(in_logits)
    ids, weights = _recent(past_ids, vocabulary, sustain_range, decay_range)
    frequency = torch.zeros(vocabulary).scatter_add_(0, ids, weights)
    presence = torch.zeros(vocabulary).scatter_reduce_(0, ids, weights, "amax")
    out_logits.view(-1).copy_(in_logits.view(-1).float() - frequency * freq_p - presence * pres_p)


def _repeats(recent: Tensor, allowed: int, cap: int) -> tuple[Tensor, Tensor]:
    """For every earlier place whose tokens repeat the end of `recent` (newest first): the token that followed, and the length.

    Lengths stop at `cap`; places with fewer than `allowed` tokens in common are left out.
    """
    n = recent.numel()
    lengths = torch.zeros(n, dtype=torch.int64)
    back = torch.arange(1, n)
    for length in range(cap):
        back = back[back + length < n]
        back = back[recent[back + length] == recent[length]]
        if not back.numel():
            break
        lengths[back] = length + 1
    places = torch.arange(1, n)
    places = places[lengths[1:] >= allowed]
    return recent[places - 1], lengths[places]


def dry_penalty(  # noqa: PLR0917 - the operation's own signature
    in_logits: Tensor,
    out_logits: Tensor,
    past_ids: Tensor,
    breakers: Tensor | None,
    workspace: Tensor,
    counters: Tensor,
    multiplier: float,
    base: float,
    allowed_length: int,
    range_: int,
    max_exponent: int,
    match_cap: int,
) -> None:
    """DRY: minus multiplier·base^(length - allowed_length) for a token that would continue a repeat of `length` tokens.

    `breakers` bool (vocabulary): tokens no repeat reaches across and that are never penalised. max_exponent 0: no limit.
    """
    del workspace, counters
    for row, ids, out in zip(in_logits, past_ids, out_logits, strict=True):
        out.copy_(row.float())
        recent = ids[-range_:].flip(0) if range_ > 0 else ids.flip(0)
        limit = recent.numel()
        if breakers is not None:
            known = (recent >= 0) & (recent < row.numel())
            stops = (breakers[recent.clamp(0, row.numel() - 1)] & known).nonzero()
            limit = int(stops[0]) if stops.numel() else limit
        if recent.numel() <= allowed_length or limit < allowed_length:
            continue
        cap = allowed_length + max_exponent if max_exponent > 0 else match_cap
        followers, lengths = _repeats(recent, allowed_length, min(cap, limit))
        known = (followers >= 0) & (followers < row.numel())
        longest = torch.full((row.numel(),), -1, dtype=torch.int64).scatter_reduce_(0, followers[known], lengths[known], "amax")
        charged = longest >= allowed_length
        if breakers is not None:
            charged &= ~breakers
        exponent = longest - allowed_length
        if max_exponent > 0:
            exponent = exponent.clamp(max=max_exponent)
        penalty = (multiplier * torch.pow(torch.tensor(base, dtype=torch.float64), exponent.double())).float()
        out.sub_(torch.where(charged, penalty, torch.zeros(())))
