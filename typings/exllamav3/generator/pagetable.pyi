from collections import deque
from collections.abc import Callable

import torch

from exllamav3.cache.recurrent import RecurrentCache

class SeqTensor:
    seq_len: int
    def append(self, new_data: torch.Tensor) -> None: ...
    def torch(self) -> torch.Tensor: ...
    def torch_slice(self, a: int | None, b: int | None) -> torch.Tensor: ...
    def __len__(self) -> int: ...

def is_content_hash(h: bytes) -> bool: ...

class CachePage:
    phash: bytes
    prev_hash: bytes | None
    ref_count: int
    kv_position: int
    can_revert: bool
    def clear(self) -> None: ...

class Sequence:
    input_ids: SeqTensor
    sequence_ids: SeqTensor
    kv_position: int
    page_hashes: list[bytes]
    new_unique_pages: int
    allocated_pages: list[CachePage] | None
    prefill_complete: bool
    def prepare(self, has_prefix_token: bool, max_new_tokens: int) -> tuple[set[bytes], int]: ...

class PageTable:
    max_pages: int
    last_defrag_serial: int
    referenced_pages: dict[bytes, CachePage]
    unreferenced_pages: dict[bytes, CachePage]
    all_pages: list[CachePage]
    metrics: dict[str, int]
    build_eviction_order: Callable[[set[bytes] | None], deque[CachePage]]
    def get_live_page(self, phash: bytes) -> CachePage | None: ...
    def num_unreferenced_pages(self) -> int: ...
    def validate_pagetable(self, active_jobs: list[object]) -> None: ...
