"""The null model's surroundings: a tokenizer from tokenizer.json, a cache without layers, facts from config.json where given."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import tokenizers
from exllamav3 import Cache, Tokenizer
from exllamav3.model.config import InferParams

from daemon.core.wire import Configure, FatalClass
from daemon.engine.backend import EngineFailed
from daemon.engine.exl3.json_values import as_list, as_object
from daemon.engine.null.model import NullModel
from daemon.engine.null.profile import read_profile

PLAIN_WORDS = 997
"""How many ordinary tokens the model has to say; a prime, so that the text does not repeat in step with anything."""


@dataclass(slots=True)
class NullConfig:
    """What exllamav3's tokenizer and generator read from a configuration."""

    directory: str
    vocab_size: int
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    eos_token_id_list: list[int] = field(default_factory=list[int])
    infer_params: InferParams = field(default_factory=InferParams)


@dataclass(frozen=True, slots=True)
class NullParts:
    """A null model ready for a generator."""

    model: NullModel
    cache: Cache
    tokenizer: Tokenizer
    architecture: str
    vocabulary: int
    eos: list[int]


class _Words:
    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)


def load_null(configure: Configure, cache_tokens: int) -> NullParts:
    """A null model that speaks the tokens of the tokenizer in `configure.model`. Raises EngineFailed."""
    path = Path(configure.model, "tokenizer.json")
    if not path.is_file():
        raise EngineFailed(FatalClass.CONFIG, f"{path} is missing: the null backend needs a tokenizer")
    try:
        profile = read_profile(configure.engine.null_profile)
    except (OSError, msgspec.MsgspecError) as problem:
        raise EngineFailed(FatalClass.CONFIG, f"engine.null_profile {configure.engine.null_profile}: {problem}") from problem
    described = _described(Path(configure.model, "config.json"))
    words = tokenizers.Tokenizer.from_file(str(path))
    config = NullConfig(configure.model, next(iter(_integers(described.get("vocab_size"))), None) or words.get_vocab_size())
    config.eos_token_id_list = _integers(described.get("eos_token_id"))
    config.eos_token_id = next(iter(config.eos_token_id_list), None)
    tokenizer = Tokenizer(config)
    vocabulary = max(config.vocab_size, tokenizer.actual_vocab_size)
    config.vocab_size = vocabulary
    eos = list(config.eos_token_id_list)
    speaks = _Words(words)
    model = NullModel(
        config, vocabulary, tokenizer.actual_vocab_size, eos[0] if eos else 0, _plain_words(words, eos), profile, speaks
    )
    cache = Cache(model, cache_tokens, max_batch_size=configure.engine.max_batch)
    cache.initialized = True
    architecture = str(next(iter(as_list(described.get("architectures"))), "null"))
    return NullParts(model, cache, tokenizer, architecture, vocabulary, eos)


def _plain_words(tokenizer: tokenizers.Tokenizer, eos: list[int]) -> list[int]:
    """Ordinary tokens that are whole pieces of text."""
    added = set(tokenizer.get_added_tokens_decoder())
    plain: list[int] = []
    for token in range(tokenizer.get_vocab_size()):
        if token in added or token in eos:
            continue
        text = tokenizer.decode([token])
        if text.strip() and "\N{REPLACEMENT CHARACTER}" not in text:
            plain.append(token)
        if len(plain) == PLAIN_WORDS:
            break
    return plain or [0]


def _described(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    try:
        found = as_object(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as problem:
        raise EngineFailed(FatalClass.CONFIG, f"{path} is not JSON: {problem}") from problem
    return {**as_object(found.get("text_config")), **found}


def _integers(value: object) -> list[int]:
    return [each for each in (as_list(value) or [value]) if isinstance(each, int)]
