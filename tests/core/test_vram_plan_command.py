"""`exl3ctl plan` over directories on disk: the numbers as people and machines get them, and every way it can be asked wrongly."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from daemon.core.safetensors_header import Tensor
from daemon.core.vram_learned import Learned, learn
from ops.commands.plan import CannotPlan, cards_from, plan
from ops.machine_values import Gpu
from tests.core.vram_models import ORNITH_9B, QWEN3_5_27B, tensors

GIB = 1 << 30


def write_model(directory: Path, config: Mapping[str, object], *, files: tuple[Tensor, ...] | None = None) -> Path:
    """A model directory whose weight file has a true header and a hole where the weights would be."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    at, entries = 0, dict[str, object]()
    for item in files if files is not None else tensors(config):
        entries[item.name] = {"dtype": item.dtype, "shape": item.shape, "data_offsets": [at, at + item.size]}
        at += item.size
    head = json.dumps(entries).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + at)
    return directory


def run(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.command()(plan)
    return CliRunner(env={"COLUMNS": "140", "TERM": "dumb"}).invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "Qwen-27B-like", QWEN3_5_27B)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "Ornith-9B-like", ORNITH_9B)


def report_of(result: Result) -> Any:  # noqa: ANN401 - a JSON document
    return json.loads(result.stdout)


def test_27b_on_12_and_12_answers_how_many_people_in_each_layout(big: Path, tmp_path: Path) -> None:
    result = run(big, "--gpus", "12,12", "--k-bits", "4", "--state-dir", tmp_path, "--json")
    made = report_of(result)
    assert {layout["layout"]: layout["most_people"] for layout in made["layouts"]} == {"split": 5, "tensor": 5, "replicas": 0}
    assert made["findings"] == []
    assert (made["demand"]["context"], made["demand"]["people"]) == (81920, 6)
    split = made["layouts"][0]
    assert [card["people"] for card in split["cards"]] == [5, 5]
    assert split["problem"].endswith("are missing")
    assert {change["lever"] for change in split["changes"]} == {"context", "people", "weight_bits"}
    assert result.exit_code == 1


def test_9b_on_12_and_12_seats_six_and_succeeds(small: Path, tmp_path: Path) -> None:
    result = run(small, "--gpus", "12,12", "--state-dir", tmp_path, "--json")
    made = report_of(result)
    assert {layout["layout"]: layout["most_people"] for layout in made["layouts"]} == {"split": 6, "tensor": 6, "replicas": 4}
    assert result.exit_code == 0


def test_plan_for_people_shows_table_bar_and_what_to_change(big: Path, tmp_path: Path) -> None:
    result = run(big, "--gpus", "12,12", "--k-bits", "4", "--layout", "split", "--state-dir", tmp_path)
    assert "split: 5 people at 81,920 tokens; 6 at 72,448" in result.stdout
    assert "would fit: 5 people at this context" in result.stdout
    assert "W weights" in result.stdout
    assert "exact" in result.stdout
    assert "assumed" in result.stdout
    bars = [line for line in result.stdout.splitlines() if line.startswith("WWWW")]
    assert [len(bar.rstrip()) for bar in bars] == [64, 64]
    assert all({"W", "K", "R", "P", "O", "M"} <= set(bar) for bar in bars)


def test_learned_overhead_replaces_the_assumed_one(small: Path, tmp_path: Path) -> None:
    learned = learn(Learned(), {"": GIB}, {"": GIB + 2 * GIB})
    (tmp_path / "memory.json").write_text(json.dumps({"cards": {"": {"rests": list(learned.of("").rests)}}}))
    made = report_of(run(small, "--gpus", "12", "--state-dir", tmp_path, "--json"))
    assert (made["cards"][0]["overhead"], made["cards"][0]["confirmed"]) == (2 * GIB, 1)
    rows = {row["item"]: row for row in made["layouts"][0]["cards"][0]["rows"]}
    assert (rows["overhead"]["size"], rows["overhead"]["certainty"]) == (2 * GIB, "measured")


def test_damaged_upload_is_planned_and_named(tmp_path: Path) -> None:
    files = tuple(item for item in tensors(ORNITH_9B) if "lm_head" not in item.name)
    model = write_model(tmp_path / "torn", ORNITH_9B, files=files)
    (model / "tokenizer_config.json").write_text("{}")
    result = run(model, "--gpus", "12,12", "--state-dir", tmp_path)
    assert result.exit_code == 1
    assert "wrong: the head (lm_head) is missing" in result.stdout
    assert "note: there is no chat template" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gpus", "twelve"), "--gpus is 'twelve'"),
        (("--gpus", "12,-1"), "each size must be above 0"),
        (("--gpus", "nan"), "each size must be above 0"),
        (("--gpus", "12", "--layout", "replicas"), "needs two cards or more, and 1 is named"),
        (("--gpus", "12,12", "--k-bits", "16", "--v-bits", "4"), "k_bits is 16 and v_bits is 4"),
        (("--gpus", "12,12", "--context", "1000000"), "--context is 1,000,000, and the model knows at most 262,144"),
    ],
)
def test_flags_that_make_no_sense_are_one_sentence_with_the_numbers(
    small: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    result = run(small, *arguments, "--state-dir", tmp_path)
    assert isinstance(result.exception, CannotPlan)
    assert words in str(result.exception)


def test_directory_that_is_no_model_is_one_sentence(tmp_path: Path) -> None:
    result = run(tmp_path, "--gpus", "12", "--state-dir", tmp_path)
    assert isinstance(result.exception, CannotPlan)
    assert "config.json is missing" in str(result.exception)
    (tmp_path / "config.json").write_text(json.dumps(ORNITH_9B))
    result = run(tmp_path, "--gpus", "12", "--state-dir", tmp_path)
    assert "no tensor in any .safetensors file" in str(result.exception)
    (tmp_path / "model.safetensors").write_bytes(b"not a model")
    result = run(tmp_path, "--gpus", "12", "--state-dir", tmp_path)
    assert "no safetensors file" in str(result.exception)


def test_cut_off_download_says_how_many_bytes_are_missing(small: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "cut", ORNITH_9B)
    file = model / "model.safetensors"
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 1000)
    result = run(model, "--gpus", "12", "--state-dir", tmp_path)
    assert "lacks 1000 of" in str(result.exception)


def test_cards_of_the_machine_are_used_where_none_is_named() -> None:
    found = (Gpu("RTX 3060", (8, 6), 12288), Gpu("RTX 5070", (12, 0), 12227))
    learned = learn(Learned(), {"RTX 5070": GIB}, {"RTX 5070": GIB + 1})
    made = cards_from(None, learned, found)
    assert [(card.name, card.size) for card in made.cards] == [("GPU 0 (RTX 3060)", 12 * GIB), ("GPU 1 (RTX 5070)", 12227 << 20)]
    assert [(card.confirmed, card.overhead) for card in made.cards] == [(0, 768 << 20), (1, 1)]
    assert made.notes == ()
    assert cards_from("12,12,12", learned, found).notes == ("--gpus names 3 cards; this machine has 2.",)
    with pytest.raises(CannotPlan, match="no NVIDIA GPU answers"):
        cards_from(None, learned, ())
