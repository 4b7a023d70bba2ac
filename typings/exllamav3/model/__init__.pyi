from collections.abc import Callable
from typing import Protocol

import torch

from exllamav3.tokenizer import MMEmbedding, Tokenizer

from exllamav3.model.config import InferParams

class ConfigLike(Protocol):
    directory: str
    vocab_size: int
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    eos_token_id_list: list[int]

class VisionBounds(Protocol):
    patch_size: int
    min_pixels: int
    max_pixels: int

class VisionShape(Protocol):
    spatial_merge_size: int

class Config:
    # these two only where there is a vision component whose pictures are cut into patches
    vision_pp: VisionBounds
    vision: VisionShape
    directory: str
    architecture: str
    model_classes: dict[str, type[Model]]
    vocab_size: int
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    eos_token_id_list: list[int]
    max_position_embeddings: int
    infer_params: InferParams
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
        tensor_p: bool = False,
        tp_backend: str = "native",
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
    # vision components only
    preprocess: Callable[[object], tuple[torch.Tensor, tuple[int, int], tuple[int, int, int]]]
    def get_image_embeddings(self, tokenizer: Tokenizer, image: object) -> MMEmbedding: ...
    def prefill(self, input_ids: torch.Tensor, params: dict[str, object]) -> object: ...
    def unload(self) -> None: ...
