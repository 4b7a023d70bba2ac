"""Drawing tokens. A draw adds Gumbel noise to the logits and takes the largest, which samples from their softmax.

The noise comes from torch's generator, seeded with the number exllamav3 drew for the step, so a seed gives the same text
on every run on a CPU; not the same as on a GPU, whose kernels use curand.
"""

from enum import IntEnum, IntFlag

import torch
from torch import Tensor

FUSED_SAMPLER_MAX_BLOCKS = 1
FUSED_SAMPLER_HIST_STRIDE = 1
"""Sizes of workspaces that exllamav3 allocates for its kernels and torch has no use for."""

_SEED_BITS = 0xFFFFFFFF
_LIKELY = 256
"""Tokens that top-p looks at before it sorts the whole vocabulary."""
_ADAPTIVE_P_FLOOR = 1e-8
_LEAST = float("-inf")


class _Mode(IntEnum):
    GREEDY = 0
    TEMPERATURE = 1
    MIN_P = 2
    FILTERS = 3


class _Filters(IntFlag):
    TOP_K = 1
    TOP_P = 2
    MIN_P = 4


def _gumbel(shape: torch.Size, seed: int) -> Tensor:
    """Standard Gumbel noise: minus the logarithm of exponential noise."""
    generator = torch.Generator()
    generator.manual_seed(seed & _SEED_BITS)
    return torch.empty(shape).exponential_(generator=generator).log_().neg_()


def gumbel_noise_f16(logits_in: Tensor, logits: Tensor, random: int) -> None:
    """Write logits = logits_in + noise."""
    logits.copy_(logits_in.float() + _gumbel(logits_in.shape, random))


def gumbel_noise_f32(logits_in: Tensor, logits: Tensor, random: int) -> None:
    """Write logits = logits_in + noise."""
    gumbel_noise_f16(logits_in, logits, random)


def gumbel_noise_log(probs: Tensor, logits: Tensor, random: int) -> None:
    """Write logits = ln(probs) + noise."""
    logits.copy_(probs.log() + _gumbel(probs.shape, random))


def adaptivep_gumbel_noise_f32(
    probs_in: Tensor,
    logits: Tensor,
    random: int,
    adapted_target: float,
    inv_width: float,
    peak_logit_value: float,
    sharpness: float,
) -> None:
    """Adaptive-P: logits that peak where a probability is `adapted_target`, plus noise; -inf for what was filtered out."""
    distance = (probs_in - adapted_target).abs() * inv_width
    shaped = peak_logit_value - sharpness * distance.square() / (distance + 1.0)
    noisy = shaped + _gumbel(probs_in.shape, random)
    logits.copy_(noisy.masked_fill(probs_in < _ADAPTIVE_P_FLOOR, _LEAST))


def _allowed(bits: Tensor, size: int) -> Tensor:
    """Bit masks int32 (rows, words) as bool (rows, size): bit i of word j allows token 32·j + i."""
    return ((bits.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32)) & 1).bool().flatten(-2)[..., :size]


def apply_logit_bitmask(logits_in: Tensor, logits_out: Tensor, bitmask: Tensor) -> None:
    """Copy logits, -inf where the mask forbids a token or does not reach."""
    size = min(logits_in.shape[-1], bitmask.shape[-1] * 32)
    logits_out.fill_(_LEAST)
    logits_out[:, :size] = logits_in[:, :size].masked_fill(~_allowed(bitmask, size), _LEAST)


def _keep_top_k(x: Tensor, top_k: int) -> Tensor:
    """-inf below the k-th largest; ties with it stay."""
    least = x.topk(min(top_k, x.shape[-1]), -1).values[..., -1:]
    return x.masked_fill(x < least, _LEAST)


def _keep_top_p(x: Tensor, top_p: float, inv_temp: float) -> Tensor:
    """-inf behind the token whose probability, at the filter's temperature, makes the sum reach `top_p`.

    The most likely tokens nearly always carry that much; only where they do not is the whole vocabulary sorted.
    """
    kept = torch.full_like(x, _LEAST)
    for row, out in zip(x, kept, strict=True):
        whole = torch.logsumexp(row * inv_temp, -1)
        for most in (_LIKELY, row.shape[-1]):
            values, order = row.topk(min(most, row.shape[-1]))
            mass = (values * inv_temp - whole).exp()
            upto = mass.cumsum(-1)
            if upto[-1] >= top_p:
                break
        stay = upto - mass < top_p
        stay[0] = True
        out[order[stay]] = values[stay]
    return kept


def _draw(x: Tensor, random: int) -> Tensor:
    """One token a row, int64 (rows, 1), with the probabilities that logits `x` stand for. Noise is made only for tokens that
    filters have left: for a whole vocabulary it costs more than all the rest of a sampler.
    """
    if x.shape[0] != 1:
        return (x + _gumbel(x.shape, random)).argmax(-1, keepdim=True)
    left = torch.isfinite(x[0]).nonzero().flatten()
    return left[(x[0, left] + _gumbel(left.shape, random)).argmax()].view(1, 1)


def fused_sampler(  # noqa: PLR0917 - the operation's own signature
    logits: Tensor,
    logit_mask: Tensor | None,
    logit_bitmask: Tensor | None,
    out: Tensor,
    workspace: Tensor,
    size: int,
    inv_temp: float,
    minp_log: float,
    random: int,
    mode: int,
    filters: int,
    top_k: int,
    top_p: float,
    inv_temp_filter: float,
    histogram: Tensor | None,
) -> None:
    """The collapsed end of a sampler chain: mask, min-p, top-k, top-p in this order, temperature, draw. out int64 (batch, 1)."""
    del workspace, histogram
    x = logits.view(out.shape[0], -1)[:, :size].float()
    if logit_mask is not None:
        x = x + logit_mask[..., :size].float()
    if logit_bitmask is not None:
        x = x.masked_fill(~_allowed(logit_bitmask, size), _LEAST)
    chosen_mode, chosen = _Mode(mode), _Filters(filters)
    if chosen_mode is _Mode.GREEDY:
        out.copy_(x.argmax(-1, keepdim=True))
        return
    if chosen_mode is _Mode.MIN_P or (chosen_mode is _Mode.FILTERS and _Filters.MIN_P in chosen):
        x = x.masked_fill(x < x.amax(-1, keepdim=True) + minp_log, _LEAST)
    if chosen_mode is _Mode.FILTERS and _Filters.TOP_K in chosen:
        x = _keep_top_k(x, top_k)
    if chosen_mode is _Mode.FILTERS and _Filters.TOP_P in chosen:
        x = _keep_top_p(x, top_p, inv_temp_filter)
    out.copy_(_draw(x * inv_temp, random))


def count_inf_nan(x: Tensor, counts: Tensor) -> None:
    """Add the numbers of infinities and NaNs to counts, int64 (2)."""
    counts.add_(torch.stack((x.isinf().sum(), x.isnan().sum())))
