from collections.abc import Callable
from typing import Protocol

import torch

class ConfigLike(Protocol):
    directory: str
    vocab_size: int
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    eos_token_id_list: list[int]

class Config:
    directory: str
    architecture: str
    model_classes: dict[str, type[Model]]
    vocab_size: int
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    eos_token_id_list: list[int]
    max_position_embeddings: int
    @staticmethod
    def from_directory(directory: str) -> Config: ...

class Module:
    key: str
    device: torch.device | int | None
    modules: list[Module]
    load: Callable[..., None]

class Model:
    modules: list[Module]
    config: Config
    caps: dict[str, object]
    output_device: torch.device | None
    @staticmethod
    def from_config(config: Config, component: str = "text") -> Model: ...
    def load(
        self,
        device: torch.device | str | None = None,
        *,
        reserve_per_device: list[float] | None = None,
        use_per_device: list[float] | None = None,
        max_chunk_size: int = 2048,
        max_output_size: int = 32,
        max_batch_size: int = 1,
        callback: Callable[[int, int], None] | None = None,
        draft_model: Model | None = None,
    ) -> None: ...
    def warmup(
        self,
        cache: object,
        max_chunk_size: int = 2048,
        max_batch_size: int = 8,
        *,
        callback: Callable[[int, int], None] | None = None,
    ) -> list[str]: ...
    def forward(self, input_ids: torch.Tensor, params: dict[str, object]) -> torch.Tensor: ...
    def prefill(self, input_ids: torch.Tensor, params: dict[str, object]) -> object: ...
    def unload(self) -> None: ...
