"""Reads what the front process needs from a model directory, and says which file is damaged before an engine is started.

Templates, special tokens and limits come from a handful of JSON files that models write in several dialects; the weights
are only looked at as far as their headers go, to find a broken download at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from daemon.core.errors import ConfigError
from daemon.core.model import AddedToken, GenerationDefaults, ModelDirectory
from daemon.core.vram_directory import INDEX, weight_tensors
from daemon.core.wire import Sampler
from daemon.disk.model_folder import ModelFolder
from daemon.host.settings_file import at_home

T = TypeVar("T")

_HUGE_CONTEXT = 10**9
"""tokenizer_config.json writes absurd numbers where it knows no limit."""


# --- the files, as far as we read them ---


class _TextConfig(msgspec.Struct):
    max_position_embeddings: int | None = None
    n_positions: int | None = None
    vocab_size: int | None = None
    eos_token_id: int | list[int] | None = None


class _Config(_TextConfig):
    architectures: list[str] | None = None
    text_config: _TextConfig | None = None


class _Generation(msgspec.Struct):
    eos_token_id: int | list[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class _Token(msgspec.Struct):
    content: str = ""


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct):
    chat_template: str | list[_NamedTemplate] | None = None
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    add_bos_token: bool | None = None
    model_max_length: float | None = None


class _TemplateFile(msgspec.Struct):
    chat_template: str


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _SpecialToken(msgspec.Struct):
    ids: list[int] = []


class _Processor(msgspec.Struct):
    type: str = ""
    processors: list["_Processor"] = []
    single: list[dict[str, object]] = []
    special_tokens: dict[str, _SpecialToken] = {}


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int] | list[object] | None = None


class _Tokenizer(msgspec.Struct):
    model: _Vocabulary
    added_tokens: list[_AddedToken] = []
    post_processor: _Processor | None = None


class _WeightIndex(msgspec.Struct):
    weight_map: dict[str, str]


@dataclass(frozen=True, slots=True)
class Reading:
    """A model directory as values, and its tokenizer.json as it stands in the file."""

    model: ModelDirectory
    tokenizer: bytes


def read_model_directory(path: Path, name: str | None = None, *, weights: bool = True) -> Reading:
    """Read a directory. `name` is what clients see instead of the directory's name; `weights`: check that they are there
    and whole. Raises ConfigError naming the file and what to do.
    """
    path = at_home(str(path), "model")
    _look_into(path)
    config = _json(path / "config.json", _Config)
    if not config.architectures:
        raise ConfigError("`architectures` is missing, so nothing can tell what kind of model this is", str(path / "config.json"))
    if weights:
        _check_weights(path)
    document = _bytes(path / "tokenizer.json")
    tokenizer = _decode(document, _Tokenizer, path / "tokenizer.json")
    settings = _optional(path / "tokenizer_config.json", _TokenizerConfig) or _TokenizerConfig()
    generation = _optional(path / "generation_config.json", _Generation) or _Generation()
    ids = {token.content: token.id for token in tokenizer.added_tokens}
    eos_token, bos_token = _text(settings.eos_token), _text(settings.bos_token)
    model = ModelDirectory(
        path=str(path),
        name=name or path.name,
        architecture=config.architectures[0],
        context=_context(path, config, settings),
        vocabulary=_vocabulary(config, tokenizer),
        eos=_eos(config, generation, _id_of(eos_token, ids, tokenizer)),
        bos=_bos(settings, tokenizer, _id_of(bos_token, ids, tokenizer)),
        bos_token=bos_token,
        eos_token=eos_token,
        templates=_templates(path, settings),
        added=tuple(
            AddedToken(token.id, token.content, token.special)
            for token in tokenizer.added_tokens
            if token.special or token.content.strip()  # runs of spaces are ordinary text that happens to be listed here
        ),
        defaults=_defaults(generation),
    )
    return Reading(model, document)


# --- reading files ---


def _look_into(path: Path) -> None:
    """Raise ConfigError unless this is a directory whose files we may see."""
    try:
        next(path.iterdir(), None)
    except (FileNotFoundError, NotADirectoryError, ValueError) as problem:  # the last for a name with a zero byte in it
        raise ConfigError("is no directory; `model:` wants the directory that holds config.json", str(path)) from problem
    except OSError as problem:
        raise ConfigError(f"cannot be read: {problem.strerror or problem}", str(path)) from problem


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as problem:
        raise ConfigError("is missing; download the model again, with all its files", str(path)) from problem
    except OSError as problem:
        raise ConfigError(f"cannot be read: {problem.strerror or problem}", str(path)) from problem


def _decode(data: bytes, kind: type[T], path: Path) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as problem:
        raise ConfigError(f"is not as exl3d expects it: {problem}", str(path)) from problem
    except RecursionError as problem:
        raise ConfigError("is nested too deeply; download the file again", str(path)) from problem
    except msgspec.DecodeError as problem:
        raise ConfigError(f"is broken JSON ({problem}); download the file again", str(path)) from problem


def _json(path: Path, kind: type[T]) -> T:
    return _decode(_bytes(path), kind, path)


def _optional(path: Path, kind: type[T]) -> T | None:
    return _json(path, kind) if path.exists() else None


# --- weights ---


def _check_weights(path: Path) -> None:
    index = _optional(path / INDEX, _WeightIndex)
    folder = ModelFolder(path)
    present = folder.names()
    names = sorted(set(index.weight_map.values()) if index is not None else (n for n in present if n.endswith(".safetensors")))
    if not names:
        raise ConfigError("holds no .safetensors files; exl3d reads EXL3 and fp16 safetensors models, not GGUF", str(path))
    problems: list[str] = []
    for name in names:
        if name not in present:
            raise ConfigError(f"is named by {INDEX} but missing", str(path / name))
        weight_tensors(folder, name, problems)
    if problems:
        raise ConfigError(problems[0], str(path))


# --- single facts ---


def _text(token: str | _Token | None) -> str:
    match token:
        case None:
            return ""
        case str():
            return token
        case _Token():
            return token.content


def _id_of(text: str, added: Mapping[str, int], tokenizer: _Tokenizer) -> int | None:
    if not text:
        return None
    if text in added:
        return added[text]
    return tokenizer.model.vocab.get(text) if isinstance(tokenizer.model.vocab, dict) else None


def _many(value: int | list[int] | None) -> list[int]:
    return [] if value is None else [value] if isinstance(value, int) else value


def _eos(config: _Config, generation: _Generation, own: int | None) -> tuple[int, ...]:
    text = config.text_config or _TextConfig()
    named = (config.eos_token_id, text.eos_token_id, generation.eos_token_id, own)
    return tuple(dict.fromkeys(token for value in named for token in _many(value)))


def _bos(settings: _TokenizerConfig, tokenizer: _Tokenizer, bos: int | None) -> int | None:
    """What the tokenizer itself puts in front of a text: as tokenizer_config.json says, else as its post-processor does."""
    if settings.add_bos_token is not None:
        return bos if settings.add_bos_token else None
    return None if tokenizer.post_processor is None else _first_special(tokenizer.post_processor)


def _first_special(processor: _Processor) -> int | None:
    for inner in processor.processors:
        found = _first_special(inner)
        if found is not None:
            return found
    if processor.type != "TemplateProcessing" or not processor.single:
        return None
    special = processor.single[0].get("SpecialToken")
    if special is None:
        return None
    named = msgspec.convert(special, dict[str, object]).get("id")
    token = processor.special_tokens.get(named) if isinstance(named, str) else None
    return token.ids[0] if token is not None and token.ids else None


def _context(path: Path, config: _Config, settings: _TokenizerConfig) -> int:
    text = config.text_config or _TextConfig()
    for value in (text.max_position_embeddings, config.max_position_embeddings, text.n_positions, config.n_positions):
        if value:
            return value
    if settings.model_max_length and settings.model_max_length < _HUGE_CONTEXT:
        return int(settings.model_max_length)
    raise ConfigError(
        "`max_position_embeddings` is missing: set `context:` to the model's longest context", str(path / "config.json")
    )


def _vocabulary(config: _Config, tokenizer: _Tokenizer) -> int:
    text = config.text_config or _TextConfig()
    known = text.vocab_size or config.vocab_size
    if known:
        return known
    words = 0 if tokenizer.model.vocab is None else len(tokenizer.model.vocab)
    return max([words, *(token.id + 1 for token in tokenizer.added_tokens)])


def _templates(path: Path, settings: _TokenizerConfig) -> dict[str, str]:
    """Chat templates by name. Files of their own win over tokenizer_config.json, as in transformers."""
    templates: dict[str, str] = {}
    match settings.chat_template:
        case None:
            pass
        case str():
            templates["default"] = settings.chat_template
        case list():
            templates.update({named.name: named.template for named in settings.chat_template})
    older = _optional(path / "chat_template.json", _TemplateFile)
    if older is not None:
        templates["default"] = older.chat_template
    files = {"default": path / "chat_template.jinja"}
    files.update({file.stem: file for file in sorted((path / "additional_chat_templates").glob("*.jinja"))})
    for name, file in files.items():
        if file.exists():
            templates[name] = _bytes(file).decode(errors="replace")
    return templates


def _defaults(generation: _Generation) -> GenerationDefaults:
    plain = Sampler()

    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    return GenerationDefaults(
        Sampler(
            temperature=given(generation.temperature, plain.temperature),
            top_p=given(generation.top_p, plain.top_p),
            top_k=plain.top_k if generation.top_k is None else generation.top_k,
            min_p=given(generation.min_p, plain.min_p),
            repetition_penalty=given(generation.repetition_penalty, plain.repetition_penalty),
        )
    )
