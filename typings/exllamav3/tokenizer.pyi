import tokenizers

from exllamav3.model import ConfigLike

class Tokenizer:
    def __init__(self, config: ConfigLike) -> None: ...
    @staticmethod
    def from_config(config: ConfigLike) -> Tokenizer: ...
    tokenizer: tokenizers.Tokenizer
    config: ConfigLike
    eos_token_id: int | None
    actual_vocab_size: int
