"""What a memory plan and the directory check read of a model directory: config.json, the index, headers of the weight files.

Pure: a `Folder` is handed in by whoever may open files. Nothing here reads weights; a directory of 100 GB takes milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from daemon.core.errors import ConfigError
from daemon.core.safetensors_header import PREFIX, Tensor, header_length, parse_header
from daemon.core.vram_check import Surroundings

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_OTHER_FORMATS = (".gguf", ".bin", ".pt", ".pth", ".npz", ".onnx")


class Folder(Protocol):
    """A directory. `read` and `size` raise OSError."""

    @property
    def where(self) -> str:
        """Its path, for people."""
        ...

    def names(self) -> frozenset[str]:
        """Files in it."""
        ...

    def size(self, name: str) -> int:
        """Bytes of a file."""
        ...

    def read(self, name: str, at: int = 0, length: int | None = None) -> bytes:
        """Bytes of a file from `at` on; None: to its end."""
        ...


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What a model directory holds. `tensors` has each name once."""

    config: Mapping[str, object]
    tensors: tuple[Tensor, ...]
    around: Surroundings


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str] = {}


class _TokenizerConfig(msgspec.Struct, frozen=True):
    chat_template: object = None


class _Added(msgspec.Struct, frozen=True):
    id: int


class _Vocabulary(msgspec.Struct, frozen=True):
    vocab: dict[str, int] | list[object] = []


class _Tokenizer(msgspec.Struct, frozen=True):
    model: _Vocabulary
    added_tokens: list[_Added] = []


def read_model(folder: Folder) -> ModelFiles:
    """Read a directory. Raises ConfigError where it is no model directory; what is merely wrong with it is in `around`."""
    names = folder.names()
    config = _config(folder, names)
    files = sorted(name for name in names if name.endswith(".safetensors"))
    index = _index(folder, names)
    seen: dict[str, tuple[str, Tensor]] = {}
    twice: list[str] = []
    strayed: list[str] = []
    problems: list[str] = []
    for name in files:
        for tensor in weight_tensors(folder, name, problems):
            if tensor.name in seen:
                twice.append(_twice(tensor, seen[tensor.name], name))
            elif index.get(tensor.name, name) != name:
                strayed.append(f"{tensor.name} is in {name}, not in {index[tensor.name]}")
            seen[tensor.name] = (name, tensor)
    if not seen and not index:
        raise ConfigError(_no_tensor(names, problems), folder.where)
    around = Surroundings(
        has_tokenizer="tokenizer.json" in names,
        has_template=False,
        has_preprocessor="preprocessor_config.json" in names,
        shards_named=frozenset(index.values()),
        shards_present=frozenset(files),
        tensors_named=frozenset(index),
        damaged=tuple(problems),
        twice=tuple(twice),
        strayed=tuple(strayed),
    )
    return ModelFiles(config, tuple(tensor for _, tensor in seen.values()), around)


def read_tokenizer(folder: Folder, around: Surroundings) -> Surroundings:
    """`around`, with what can be said about tokenizer and chat template. Takes a part of a second for a large vocabulary."""
    names = folder.names()
    problems: list[str] = []
    template = any(name in names for name in _TEMPLATES)
    if not template and "tokenizer_config.json" in names:
        try:
            settings = msgspec.json.decode(folder.read("tokenizer_config.json"), type=_TokenizerConfig)
            template = bool(settings.chat_template)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
            problems.append(f"tokenizer_config.json cannot be read: {problem}")
    highest = None
    if around.has_tokenizer:
        try:
            highest = _highest(msgspec.json.decode(folder.read("tokenizer.json"), type=_Tokenizer))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
            problems.append(f"tokenizer.json cannot be read: {problem}")
    return replace(around, has_template=template, highest_token=highest, damaged=(*around.damaged, *problems))


def _highest(tokenizer: _Tokenizer) -> int | None:
    match tokenizer.model.vocab:
        case dict() as known:
            ids = list(known.values())
        case list() as known:
            ids = list(range(len(known))[-1:])
    ids.extend(token.id for token in tokenizer.added_tokens)
    return max(ids, default=None)


def _config(folder: Folder, names: frozenset[str]) -> Mapping[str, object]:
    where = f"{folder.where}/{CONFIG}"
    if CONFIG not in names:
        raise ConfigError("config.json is missing: this is not a model directory", folder.where)
    try:
        return msgspec.json.decode(folder.read(CONFIG), type=dict[str, object])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise ConfigError(f"this cannot be read: {problem}", where) from problem


def _index(folder: Folder, names: frozenset[str]) -> Mapping[str, str]:
    if INDEX not in names:
        return {}
    try:
        return msgspec.json.decode(folder.read(INDEX), type=_Index).weight_map
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise ConfigError(f"this cannot be read: {problem}", f"{folder.where}/{INDEX}") from problem


def weight_tensors(folder: Folder, name: str, problems: list[str]) -> tuple[Tensor, ...]:
    """The tensors that a weight file's header names; what is wrong with the file is added to `problems`."""
    try:
        length = header_length(folder.read(name, 0, PREFIX), name)
        size = folder.size(name)
        header = folder.read(name, PREFIX, length)
        if len(header) < length:
            problems.append(f"{name} is cut off inside its header: it has {size:,} bytes; download it again")
            return ()
        found = parse_header(header, name)
    except ConfigError as problem:
        problems.append(f"{name}: {problem.message}")
        return ()
    except OSError as problem:
        problems.append(f"{name} cannot be read: {problem.strerror or problem}")
        return ()
    needed = PREFIX + length + found.body
    if size < needed:
        problems.append(f"{name} is cut off: it lacks {needed - size:,} of {needed:,} bytes; download it again")
    return found.tensors


def _twice(tensor: Tensor, before: tuple[str, Tensor], name: str) -> str:
    file, other = before
    same = (tensor.dtype, tensor.shape) == (other.dtype, other.shape)
    shapes = "" if same else f", as {other.dtype} {list(other.shape)} and {tensor.dtype} {list(tensor.shape)}"
    return f"{tensor.name} is in {file} and in {name}{shapes}"


def _no_tensor(names: frozenset[str], problems: list[str]) -> str:
    if problems:
        return f"no weight file can be used: {'; '.join(problems[:3])}"
    others = sorted(name for name in names if name.endswith(_OTHER_FORMATS))
    what = f": exl3d reads .safetensors, and here is {others[0]}" if others else ": there is nothing to plan for"
    return f"there is no tensor in any .safetensors file here{what}"
