import tokenizers
import torch

from exllamav3.model import ConfigLike

class MMEmbedding:
    """A picture as ids from `first_index` to `last_index` (exclusive) and the rows that stand for them."""

    first_index: int
    last_index: int
    mm_length: int
    embeddings: torch.Tensor
    deepstack_embeddings: list[torch.Tensor] | None
    grid_thw: tuple[int, int, int]
    mrope_merge_size: int | None

class Tokenizer:
    def __init__(self, config: ConfigLike) -> None: ...
    @staticmethod
    def from_config(config: ConfigLike) -> Tokenizer: ...
    tokenizer: tokenizers.Tokenizer
    config: ConfigLike
    eos_token_id: int | None
    actual_vocab_size: int
