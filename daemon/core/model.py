"""What a model directory says about itself, as values. Reading the files is `host/model_directory.py`'s work."""

from collections.abc import Mapping
from dataclasses import dataclass

from daemon.core.wire import Sampler


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the model's generation_config.json recommends; a request's own values come first."""

    sampler: Sampler = Sampler()


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that the tokenizer finds in text before it splits words: control tokens, tags such as `<think>`."""

    id: int
    text: str
    special: bool
    """The tokenizer's own mark; tags of tool calls and thoughts often lack it."""


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """The parts of config.json, generation_config.json, tokenizer.json, tokenizer_config.json and chat_template files
    that the front process needs.
    """

    path: str
    name: str
    architecture: str
    context: int
    """max_position_embeddings."""
    vocabulary: int
    eos: tuple[int, ...]
    """Ids that end an answer: those of config.json and generation_config.json, and the tokenizer's EOS."""
    bos: int | None
    """Id to put in front of plain completions; None where the tokenizer adds none."""
    bos_token: str
    """As templates want it; empty where there is none."""
    eos_token: str
    templates: Mapping[str, str]
    """Jinja sources by name; `default` is the one for chats, `tool_use` replaces it where tools are given."""
    added: tuple[AddedToken, ...]
    defaults: GenerationDefaults
