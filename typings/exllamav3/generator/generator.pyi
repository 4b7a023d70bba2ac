from collections.abc import Callable
from typing import Protocol

import torch

from exllamav3.cache.cache import Cache
from exllamav3.cache.recurrent import RecurrentCache
from exllamav3.generator.job import Job
from exllamav3.generator.pagetable import PageTable
from exllamav3.tokenizer import Tokenizer

class _Module(Protocol):
    @property
    def forward(self) -> Callable[..., torch.Tensor]: ...

class _Model(Protocol):
    modules: list[_Module]
    output_device: torch.device | None
    def forward(self, input_ids: torch.Tensor, params: dict[str, object]) -> torch.Tensor: ...

class Generator:
    model: _Model
    tokenizer: Tokenizer
    pagetable: PageTable
    recurrent_cache: RecurrentCache | None
    recurrent_checkpoint_interval: int
    recurrent_checkpoint_interval_pp: int
    max_batch_size: int
    max_chunk_size: int
    max_total_tokens: int
    padded_vocab_size: int
    active_jobs: list[Job]
    pending_jobs: list[Job]
    def __init__(
        self,
        model: object,
        cache: Cache,
        tokenizer: Tokenizer,
        *,
        max_batch_size: int = 256,
        max_chunk_size: int = 2048,
        shared_chunk_size: int | None = None,
        prefill_cooldown: int | None = 4,
        enable_defrag: bool = True,
        cpu_cache_size: int = 0,
        disk_cache_dir: str | None = None,
        disk_cache_size: int = ...,
        recurrent_cache_size: int = ...,
        recurrent_checkpoint_interval_pp: int = 32768,
        draft_model: object | None = None,
        draft_cache: Cache | None = None,
        num_draft_tokens: int | None = None,
        ngram_match_min: int = 0,
        draft_max_rows: int = 0,
    ) -> None: ...
    def enqueue(self, job: Job) -> int: ...
    def cancel(self, job: Job) -> None: ...
    def iterate(self) -> list[dict[str, object]]: ...
    def num_remaining_jobs(self) -> int: ...
    def reap_failed_job(self, job: Job, error: Exception, results: list[dict[str, object]]) -> None: ...
    def close(self) -> None: ...
