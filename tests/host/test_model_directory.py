"""Model directories: what they say in several dialects, and what is wrong with a damaged one."""

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from daemon.core.errors import ConfigError
from daemon.core.model import ModelDirectory
from daemon.host.model_directory import read_model_directory
from tests.host.tiny import END, START, tiny_document

CONFIG: dict[str, object] = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 2048, "vocab_size": 260}


def weights(tensors: Mapping[str, int]) -> bytes:
    """A safetensors file with tensors of so many bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def write(path: Path, **files: object) -> Path:
    """A sound directory with `files` put over it: bytes as they are, None removes, anything else as JSON."""
    path.mkdir(exist_ok=True)
    names = {"config": "config.json", "tokenizer": "tokenizer.json", "weights": "model.safetensors"}
    content: dict[str, object] = {"config": CONFIG, "tokenizer": tiny_document().encode(), "weights": weights({"a": 10})}
    for key, value in {**content, **files}.items():
        file = path / names.get(key, key)
        if isinstance(value, bytes):
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(value)
        elif value is not None:
            file.write_text(json.dumps(value))
    return path


def model(path: Path) -> ModelDirectory:
    """What a directory says."""
    return read_model_directory(path).model


def test_plain_directory_is_read(tmp_path: Path) -> None:
    found = model(write(tmp_path / "tiny"))
    assert (found.name, found.architecture, found.context, found.vocabulary) == ("tiny", "LlamaForCausalLM", 2048, 260)
    assert (found.eos, found.bos, found.bos_token, dict(found.templates)) == ((), None, "", {})
    assert [token.text for token in found.added][:2] == ["<|im_end|>", "<|im_start|>"]


def test_name_of_a_path_with_dots_and_slashes_is_the_directorys(tmp_path: Path) -> None:
    write(tmp_path / "tiny")
    assert model(Path(f"{tmp_path}/tiny/")).name == "tiny"
    assert read_model_directory(tmp_path / "tiny", "shown").model.name == "shown"


def test_nested_text_config_is_understood(tmp_path: Path) -> None:
    config: dict[str, object] = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": {"max_position_embeddings": 262144, "vocab_size": 248320, "eos_token_id": 7},
        "vision_config": {"depth": 27},
    }
    found = model(write(tmp_path / "m", config=config))
    assert (found.context, found.vocabulary, found.eos) == (262144, 248320, (7,))


def test_end_ids_are_gathered_from_every_file_once(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m",
        config={**CONFIG, "eos_token_id": 3},
        **{"generation_config.json": {"eos_token_id": [3, 5]}, "tokenizer_config.json": {"eos_token": {"content": "<|im_end|>"}}},
    )
    assert model(path).eos == (3, 5, END)
    assert model(path).eos_token == "<|im_end|>"


def test_end_token_may_be_an_ordinary_entry_of_the_vocabulary(tmp_path: Path) -> None:
    assert model(write(tmp_path / "m", **{"tokenizer_config.json": {"eos_token": "A"}})).eos == (65,)


@pytest.mark.parametrize(
    ("settings", "processor", "expected"),
    [
        ({"bos_token": "<|im_start|>", "add_bos_token": True}, None, START),
        ({"bos_token": "<|im_start|>", "add_bos_token": False}, "template", None),
        ({"bos_token": "<|im_start|>"}, None, None),
        ({}, "template", START),
        ({}, "sequence", START),
        ({}, "no special", None),
    ],
)
def test_bos_is_what_the_tokenizer_adds(
    tmp_path: Path, settings: dict[str, object], processor: str | None, expected: int | None
) -> None:
    template: dict[str, object] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [START], "tokens": ["<|im_start|>"]}},
    }
    processors: dict[str, object] = {
        "template": template,
        "sequence": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]},
        "no special": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}]},
    }
    document = json.loads(tiny_document())
    document["post_processor"] = None if processor is None else processors[processor]
    path = write(tmp_path / "m", tokenizer=document, **{"tokenizer_config.json": settings})
    assert model(path).bos == expected


def test_templates_come_from_three_kinds_of_files(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    path = write(tmp_path / "m", **{"tokenizer_config.json": {"chat_template": named}})
    assert model(path).templates == {"default": "D", "tool_use": "T"}
    write(path, **{"chat_template.json": {"chat_template": "J"}})
    assert model(path).templates == {"default": "J", "tool_use": "T"}
    write(path, **{"chat_template.jinja": b"File", "additional_chat_templates/rag.jinja": b"R"})
    assert model(path).templates == {"default": "File", "tool_use": "T", "rag": "R"}


def test_generation_defaults_are_taken_and_null_is_nothing(tmp_path: Path) -> None:
    generation = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": None, "do_sample": True}
    sampler = model(write(tmp_path / "m", **{"generation_config.json": generation})).defaults.sampler
    assert (sampler.temperature, sampler.top_p, sampler.top_k, sampler.min_p) == (0.6, 0.95, 20, 0.0)


def test_runs_of_spaces_are_not_control_tokens(tmp_path: Path) -> None:
    document = json.loads(tiny_document())
    document["added_tokens"].append({**document["added_tokens"][2], "id": 270, "content": "\n\n"})
    assert "\n\n" not in {token.text for token in model(write(tmp_path / "m", tokenizer=document)).added}


def test_weights_in_several_files_are_checked_by_the_index(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    files = {"model.safetensors.index.json": index, "one.safetensors": weights({"a": 4})}
    path = write(tmp_path / "m", weights=None, **files)
    with pytest.raises(ConfigError, match=r"two\.safetensors"):
        model(path)
    write(path, **{"two.safetensors": weights({"b": 4})})
    model(path)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config": None}, ["config.json", "missing"]),
        ({"config": b'{"architectures": ['}, ["config.json", "broken JSON"]),
        ({"config": {**CONFIG, "architectures": None}}, ["config.json", "architectures"]),
        ({"config": {**CONFIG, "max_position_embeddings": None}}, ["config.json", "max_position_embeddings"]),
        ({"config": {**CONFIG, "vocab_size": "many"}}, ["config.json", "vocab_size"]),
        ({"tokenizer": None}, ["tokenizer.json", "missing"]),
        ({"tokenizer": b"{}"}, ["tokenizer.json", "model"]),
        ({"tokenizer": tiny_document().encode()[:-20]}, ["tokenizer.json", "broken JSON"]),
        ({"weights": None}, ["safetensors"]),
        ({"weights": b"\x01\x02"}, ["model.safetensors", "download it again"]),
        ({"weights": weights({"a": 100})[:30]}, ["model.safetensors", "cut off"]),
        ({"weights": weights({"a": 100})[:-1]}, ["model.safetensors", "bytes", "cut off"]),
        ({"weights": struct.pack("<Q", 5) + b"nope!"}, ["model.safetensors", "header is damaged"]),
        ({"weights": struct.pack("<Q", 2**60) + b"{}"}, ["model.safetensors", "no safetensors file"]),
        ({"tokenizer_config.json": b"not json"}, ["tokenizer_config.json"]),
        ({"generation_config.json": b"[]"}, ["generation_config.json"]),
        ({"tokenizer_config.json": b'{"x":' * 5000 + b"1" + b"}" * 5000}, ["tokenizer_config.json", "nested too deeply"]),
    ],
)
def test_damage_is_named_by_its_file(tmp_path: Path, files: dict[str, object], words: list[str]) -> None:
    path = write(tmp_path / "m", **files)
    with pytest.raises(ConfigError) as refused:
        model(path)
    assert [word for word in words if word not in str(refused.value)] == []


def test_missing_weights_are_no_matter_to_a_backend_without(tmp_path: Path) -> None:
    assert read_model_directory(write(tmp_path / "m", weights=None), weights=False).model.context == 2048


def test_path_that_is_no_directory_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path / "zero\0byte"):
        with pytest.raises(ConfigError, match="no directory"):
            model(path)


def test_home_of_nobody_is_an_error_with_words() -> None:
    with pytest.raises(ConfigError, match="`model` is ~nobody-of-this-name/m"):
        model(Path("~nobody-of-this-name/m"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_directory_that_may_not_be_read_is_an_error_with_words(tmp_path: Path) -> None:
    path = write(tmp_path / "m")
    tmp_path.chmod(0)
    try:
        with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
            model(path)
    finally:
        tmp_path.chmod(0o700)
