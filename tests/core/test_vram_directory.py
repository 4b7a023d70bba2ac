"""Reading a directory as an upload: torn, doubled, strayed and foreign files are named; only what is no model at all stops."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from daemon.core.errors import ConfigError
from daemon.core.safetensors_header import Tensor
from daemon.core.vram_check import check
from daemon.core.vram_directory import ModelFiles, read_model, read_tokenizer
from daemon.core.vram_findings import Gravity
from daemon.core.vram_model import describe
from tests.core.vram_models import ORNITH_9B, tensor

A = (tensor("a.weight", "F16", 2, 2), tensor("b.weight", "F16", 4))
B = (tensor("c.weight", "F16", 2, 2),)


def weight_file(tensors: Sequence[Tensor]) -> bytes:
    at, entries = 0, dict[str, object]()
    for item in tensors:
        entries[item.name] = {"dtype": item.dtype, "shape": item.shape, "data_offsets": [at, at + item.size]}
        at += item.size
    head = json.dumps(entries).encode()
    return len(head).to_bytes(8, "little") + head + bytes(at)


@dataclass
class Memory:
    """A folder that is a mapping; files in `broken` cannot be read."""

    files: Mapping[str, bytes]
    broken: frozenset[str] = field(default_factory=frozenset[str])
    where: str = "/models/m"

    def names(self) -> frozenset[str]:
        return frozenset(self.files)

    def size(self, name: str) -> int:
        return len(self.files[name])

    def read(self, name: str, at: int = 0, length: int | None = None) -> bytes:
        if name in self.broken:
            raise OSError(5, "Input/output error")
        return self.files[name][at:] if length is None else self.files[name][at : at + length]


CONFIG = {"config.json": json.dumps(ORNITH_9B).encode()}


def index(places: Mapping[str, str]) -> dict[str, bytes]:
    return {"model.safetensors.index.json": json.dumps({"weight_map": places}).encode()}


def names(files: ModelFiles) -> list[str]:
    return [item.name for item in files.tensors]


def test_shards_are_read_in_order_of_their_names() -> None:
    places = {"a.weight": "1.safetensors", "b.weight": "1.safetensors", "c.weight": "2.safetensors"}
    files = read_model(Memory({**CONFIG, "2.safetensors": weight_file(B), "1.safetensors": weight_file(A), **index(places)}))
    assert names(files) == ["a.weight", "b.weight", "c.weight"]
    around = files.around
    assert (around.damaged, around.twice, around.strayed) == ((), (), ())
    assert around.shards_named == around.shards_present == {"1.safetensors", "2.safetensors"}


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (weight_file(B)[:-3], "2.safetensors is cut off: it lacks 3 of "),
        (weight_file(B)[:20], "2.safetensors is cut off inside its header: it has 20 bytes"),
        (b"", "2.safetensors: this is no safetensors file"),
        (b"<html>not found</html>", "2.safetensors: this is no safetensors file"),
        ((2).to_bytes(8, "little") + b"[]", "2.safetensors: the safetensors header is damaged"),
    ],
    ids=["body", "header", "empty", "web page", "header of another kind"],
)
def test_torn_shard_is_named_and_the_others_are_read(second: bytes, words: str) -> None:
    files = read_model(Memory({**CONFIG, "1.safetensors": weight_file(A), "2.safetensors": second}))
    assert set(names(files)) >= {"a.weight", "b.weight"}
    assert len(files.around.damaged) == 1
    assert files.around.damaged[0].startswith(words)
    found = check(ORNITH_9B, describe(ORNITH_9B), files.tensors, files.around)
    assert any(finding.gravity is Gravity.FATAL and words in finding.words for finding in found)


def test_shard_that_the_disk_does_not_give_is_named() -> None:
    folder = Memory({**CONFIG, "1.safetensors": weight_file(A), "2.safetensors": weight_file(B)}, frozenset({"2.safetensors"}))
    assert read_model(folder).around.damaged == ("2.safetensors cannot be read: Input/output error",)


def test_tensor_in_two_files_is_counted_once_and_named_with_both() -> None:
    other = (tensor("a.weight", "BF16", 4, 4),)
    files = read_model(Memory({**CONFIG, "1.safetensors": weight_file(A), "2.safetensors": weight_file((*other, *B))}))
    assert sorted(names(files)) == ["a.weight", "b.weight", "c.weight"]
    (twice,) = files.around.twice
    assert twice == "a.weight is in 1.safetensors and in 2.safetensors, as F16 [2, 2] and BF16 [4, 4]"


def test_tensor_in_another_file_than_the_index_says_is_named() -> None:
    places = {"a.weight": "2.safetensors", "b.weight": "1.safetensors", "c.weight": "2.safetensors"}
    files = read_model(Memory({**CONFIG, "1.safetensors": weight_file(A), "2.safetensors": weight_file(B), **index(places)}))
    assert files.around.strayed == ("a.weight is in 1.safetensors, not in 2.safetensors",)


def test_index_that_names_absent_files_and_tensors_is_told_by_the_check() -> None:
    places = {"a.weight": "1.safetensors", "z.weight": "3.safetensors"}
    files = read_model(Memory({**CONFIG, "1.safetensors": weight_file(A), **index(places)}))
    words = [finding.words for finding in check(ORNITH_9B, describe(ORNITH_9B), files.tensors, files.around)]
    assert "files are missing that model.safetensors.index.json names: 3.safetensors" in words


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "/models/m: config.json is missing: this is not a model directory"),
        ({"config.json": b"{"}, "config.json: this cannot be read"),
        ({"config.json": b"[]"}, "config.json: this cannot be read"),
        (CONFIG, "there is nothing to plan for"),
        ({**CONFIG, "pytorch_model.bin": b""}, "exl3d reads .safetensors, and here is pytorch_model.bin"),
        ({**CONFIG, "a.safetensors": b"x"}, "no weight file can be used: a.safetensors: this is no safetensors file"),
        ({**CONFIG, "model.safetensors.index.json": b"{"}, "index.json: this cannot be read"),
    ],
)
def test_directory_that_is_no_model_is_one_sentence(files: Mapping[str, bytes], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_model(Memory(files))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "template", "highest"),
    [
        ({}, False, None),
        ({"tokenizer_config.json": b'{"chat_template": "x"}'}, True, None),
        ({"tokenizer_config.json": b'{"chat_template": [{"name": "default", "template": "x"}]}'}, True, None),
        ({"tokenizer_config.json": b"{}"}, False, None),
        ({"chat_template.jinja": b"x"}, True, None),
        ({"tokenizer.json": b'{"model": {"vocab": {"a": 0, "b": 7}}, "added_tokens": [{"id": 9, "content": "x"}]}'}, False, 9),
        ({"tokenizer.json": b'{"model": {"vocab": [["a", 0.0], ["b", 0.0]]}}'}, False, 1),
        ({"tokenizer.json": b'{"model": {}}'}, False, None),
    ],
)
def test_tokenizer_and_template_are_read_in_every_dialect(
    files: Mapping[str, bytes], template: bool, highest: int | None
) -> None:
    folder = Memory({**CONFIG, "1.safetensors": weight_file(A), **files})
    around = read_tokenizer(folder, read_model(folder).around)
    assert (around.has_template, around.highest_token, around.damaged) == (template, highest, ())


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_broken_tokenizer_file_is_named(name: str) -> None:
    folder = Memory({**CONFIG, "1.safetensors": weight_file(A), name: b"{"})
    (words,) = read_tokenizer(folder, read_model(folder).around).damaged
    assert words.startswith(f"{name} cannot be read")
