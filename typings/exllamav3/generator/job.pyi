import random
from concurrent.futures import Future

import torch

from exllamav3.cache.recurrent import RecurrentCache
from exllamav3.generator.filter import Filter
from exllamav3.generator.generator import Generator
from exllamav3.generator.pagetable import PageTable, Sequence
from exllamav3.generator.sampler import Sampler
from exllamav3.tokenizer import MMEmbedding

class Job:
    generator: Generator
    pagetable: PageTable
    serial_number: int
    sequences: list[Sequence]
    sampler: Sampler
    rng: random.Random
    filters: list[Filter]
    filter_futures: list[Future[torch.Tensor] | None]
    logit_masks: list[torch.Tensor | None]
    device_logit_mask: torch.Tensor | None
    logits_device: torch.device | None
    current_device_ids: torch.Tensor | None
    forced_ids: torch.Tensor | None
    forced_ids_device: torch.Tensor | None
    forced_index: int
    forced_sample: bool
    is_requeued: bool
    is_finished: bool
    new_tokens: int
    max_new_tokens: int
    min_new_tokens: int
    max_rq_tokens: int | None
    rq_margin: int
    max_skips: int
    cached_pages: int
    cached_tokens: int
    total_pages: int
    accepted_draft_tokens: int
    rejected_draft_tokens: int
    all_unique_hashes: list[bytes]
    recurrent_state: object | None
    last_recurrent_checkpoint_pos: int | None
    def __init__(
        self,
        input_ids: torch.Tensor,
        max_new_tokens: int | None = None,
        min_new_tokens: int = 0,
        max_skips: int = 4,
        sampler: Sampler | None = None,
        seed: int | None = None,
        stop_conditions: list[int] | None = None,
        *,
        filters: list[Filter] | None = None,
        embeddings: list[MMEmbedding] | None = None,
        max_rq_tokens: int | None = None,
        identifier: object | None = None,
    ) -> None: ...
    def is_prefill_done(self) -> bool: ...
    def get_max_seq_len(self) -> int: ...
    def prepare_logit_mask(self) -> None: ...
    def prepare_sampling_past_ids(self) -> None: ...
    def prepare_for_queue(self, generator: Generator, serial_number: int, rq: bool = False) -> None: ...
    def receive_logits(
        self, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]: ...
    def receive_sample(
        self,
        logits: torch.Tensor | None,
        next_token: torch.Tensor,
        next_k_tokens: torch.Tensor | None,
        next_k_probs: torch.Tensor | None,
        next_prob: torch.Tensor | None,
        results: list[dict[str, object]],
        first_sample_in_sd_batch: bool = True,
    ) -> tuple[bool, torch.Tensor, bool]: ...
    def prefill(self, results: list[dict[str, object]], chunk_size: int | None = None) -> None: ...
    def allocate_pages(self) -> None: ...
    def deallocate_pages(self) -> None: ...
    def activate(self) -> None: ...
    def hash_completed_page(self, seq: Sequence, page_idx: int) -> None: ...
    def current_new_pages_required(self) -> int: ...
    def is_checkpoint_boundary(self, override_interval: int | None = None) -> bool: ...
    def maybe_stash_recurrent(self, cache: RecurrentCache, interval: int | None = None) -> None: ...
    def _pop_forced_token(self, device: torch.device) -> torch.Tensor: ...
