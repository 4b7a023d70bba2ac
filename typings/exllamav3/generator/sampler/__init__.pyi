from collections.abc import Sequence

import torch

from exllamav3.generator.sampler.custom import SS_Base
from exllamav3.tokenizer import Tokenizer

class Sampler:
    reqs_past_ids: bool
    def forward(
        self,
        logits: torch.Tensor,
        sequence_ids: torch.Tensor | None = None,
        rand_u32: int | None = None,
        tokenizer: Tokenizer | None = None,
        logit_mask: torch.Tensor | None = None,
    ) -> torch.Tensor: ...

class CustomSampler(Sampler):
    def __init__(self, steps: Sequence[SS_Base]) -> None: ...

class ComboSampler(CustomSampler):
    def __init__(
        self,
        rep_p: float = 1.0,
        freq_p: float = 0.0,
        pres_p: float = 0.0,
        *,
        temperature: float = 1.0,
        min_p: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        temp_last: bool = False,
    ) -> None: ...
