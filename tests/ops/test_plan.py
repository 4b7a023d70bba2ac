"""`exl3ctl plan` over directories on disk: the numbers as people and machines get them, and every way it can be asked wrongly."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

from daemon.core.keys import hash_key, new_key
from daemon.core.settings import EngineSettings
from daemon.core.vram_learned import ASSUMED_OVERHEAD, Held, Learned, Load, Machine, learn
from daemon.core.vram_values import Layout
from ops.commands.plan import plan
from ops.machine import ThisMachine, look
from ops.machine_values import Gpu
from ops.machine_values import Machine as ThatMachine
from ops.plan_inputs import Asked, CannotPlan, Home, cards_from
from tests.core.vram_models import MOE, ORNITH_9B, QWEN3_5_27B, expert_tensors, tensor, tensors, write_adapter, write_model

GIB = 1 << 30


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
    assert "split: 5 people at 81,920 tokens; 6 at 67,584" in result.stdout
    assert "would fit: 5 people at this context" in result.stdout
    assert "W weights" in result.stdout
    assert "exact" in result.stdout
    assert "assumed" in result.stdout
    bars = [line for line in result.stdout.splitlines() if line.startswith("WWWW")]
    assert [len(bar.rstrip()) for bar in bars] == [64, 64]
    assert all({"W", "K", "R", "P", "O", "M"} <= set(bar) for bar in bars)


def load(gpus: tuple[str, ...], rest: int, *, driver: str = "", layout: Layout = Layout.SPLIT, loads: int = 1) -> Learned:
    """What is known after loads of 9 GiB that took `rest` more on each card."""
    held = tuple(Held(9 * GIB, 9 * GIB + rest, 12 * GIB - 100, GIB // 4) for _ in gpus)
    learned = Learned()
    for _ in range(loads):
        learned = learn(learned, Machine(gpus, driver, layout), Load(1.0, "m", held))
    return learned


def test_learned_overhead_replaces_the_assumed_one_and_says_how_often_it_was_confirmed(small: Path, tmp_path: Path) -> None:
    (tmp_path / "memory.json").write_bytes(msgspec.json.encode(load(("",), 2 * GIB, loads=3)))
    made = report_of(run(small, "--gpus", "12", "--state-dir", tmp_path, "--json"))
    assert (made["cards"][0]["overhead"], made["cards"][0]["confirmed"]) == (2 * GIB, 3)
    rows = {row["item"]: row for row in made["layouts"][0]["cards"][0]["rows"]}
    assert (rows["overhead"]["size"], rows["overhead"]["certainty"]) == (2 * GIB, "measured")
    assert rows["other programs"]["size"] == GIB // 4
    shown = run(small, "--gpus", "12", "--state-dir", tmp_path).stdout
    assert "measured in 3 loads" in shown
    assert "assumed" not in shown


def test_store_that_cannot_be_read_is_a_note_and_overheads_are_assumed(small: Path, tmp_path: Path) -> None:
    (tmp_path / "memory.json").write_text("torn")
    made = report_of(run(small, "--gpus", "12", "--state-dir", tmp_path, "--json"))
    assert made["cards"][0]["confirmed"] == 0
    assert any("memory.json: cannot be read" in note for note in made["notes"])


def test_guarantees_are_set_against_the_pool(small: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    key = hash_key(new_key(b"salt", b"secret"), b"salt")
    promised = {"ann": 300_000, "ben": 150_000}
    people = [{"name": name, "guaranteed_context": tokens} for name, tokens in promised.items()]
    keys = [{"name": name, "hash": key} for name in promised]
    config.write_text(json.dumps({"keys": keys, "people": people, "state_dir": str(tmp_path)}))
    made = report_of(run(small, "--gpus", "12,12", "--config", config, "--json"))
    assert made["guarantees"] == [{"name": "ann", "tokens": 300_000}, {"name": "ben", "tokens": 150_000}]
    split = made["layouts"][0]["pool"]
    assert (split["tokens"], split["promised"]) == (6 * 82176, 450_000)
    shown = run(small, "--gpus", "12,12", "--config", config).stdout
    assert "Guaranteed: ann 300,000, ben 150,000; 450,000 tokens together." in shown
    assert "split: of 493,056 tokens 43,056 are left for everybody" in shown
    fewer = run(small, "--gpus", "12,12", "--config", config, "--people", "2").stdout
    assert "split: 285,648 tokens more than the pool's 164,352: they cannot all be kept" in fewer


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
        (("--gpus", "0"), "each size must be above 0"),
        (("--gpus", "12,12", "--gpu-split", "6,6,6"), "--gpu-split names 3 cards, and there are 2"),
        (("--gpus", "12,12", "--gpu-split", "6,16"), "--gpu-split takes 16 GiB of GPU 1, which has 12"),
        (("--gpus", "12,12", "--gpu-split", "0,0"), "each size must be at least 0 GiB, and one above it"),
        (("--gpus", "12,12", "--gpu-split", "6,6", "--layout", "replicas"), "each of the 2 cards, and --gpu-split divides one"),
        (("--gpus", "12,12", "--drafter"), "config.json has none (mtp_num_hidden_layers is 0)"),
        (("--gpus", "12,12", "--drafter", "--draft-model", "small"), "--drafter and --draft-model small are two drafters"),
        (("--gpus", "12,12", "--vision"), "config.json has none (vision_config)"),
        (("--gpus", "12,12", "--chunk", "300"), "--chunk is 300, and a chunk is a multiple of 256"),
        (("--gpus", "12,12", "--moe-cpu-layers", "4"), "--moe-cpu-layers is 4, and the model has no experts in any of its 32"),
        (("--gpus", "12", "--layout", "replicas"), "needs two cards or more, and 1 is named"),
        (("--gpus", "12", "--layout", "tensor"), "the layout tensor needs two cards or more, and 1 is named"),
        (
            ("--gpus", "12,12", "--layout", "tensor", "--gpu-split", "11"),
            "--layout tensor needs two cards or more, and --gpu-split 11 uses 1",
        ),
        (("--gpus", "12,12", "--layout", "tensor", "--moe-cpu-layers", "4"), "--moe-cpu-layers 4 exclude each other"),
        (("--gpus", "12,12", "--layout", "tensor", "--lora", "a", "--lora", "b"), "the 2 of --lora are not"),
        (("--gpus", "12,12", "--reserve", "1,2,3"), "--reserve is '1,2,3', and there are 2: one number of MiB, or one for each"),
        (("--gpus", "12,12", "--reserve", "much"), "--reserve is 'much': write MiB"),
        (
            ("--gpus", "12,12", "--reserve", "9", "--gpu-split", "6,6"),
            "--gpu-split 6,6 says what is used of each card, --reserve 9 what",
        ),
        (
            ("--gpus", "12,12", "--lora", "nowhere"),
            "nowhere: adapter_model.safetensors is missing: this is not the directory of a LoRA",
        ),
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
    assert "config.json is missing: this is not a model directory" in str(result.exception)
    nowhere = run(tmp_path / "nowhere", "--gpus", "12", "--state-dir", tmp_path)
    assert "nowhere: config.json is missing" in str(nowhere.exception)
    (tmp_path / "config.json").write_text(json.dumps(ORNITH_9B))
    result = run(tmp_path, "--gpus", "12", "--state-dir", tmp_path)
    assert "no tensor in any .safetensors file" in str(result.exception)
    (tmp_path / "model.Q4_K_M.gguf").write_bytes(b"GGUF")
    result = run(tmp_path, "--gpus", "12", "--state-dir", tmp_path)
    assert "exl3d reads .safetensors, and here is model.Q4_K_M.gguf" in str(result.exception)
    (tmp_path / "model.safetensors").write_bytes(b"not a model")
    result = run(tmp_path, "--gpus", "12", "--state-dir", tmp_path)
    assert "no safetensors file" in str(result.exception)


def test_split_that_leaves_a_layer_nowhere_is_one_sentence_with_the_numbers(small: Path, tmp_path: Path) -> None:
    result = run(small, "--gpus", "12,12", "--gpu-split", "4,2", "--people", "1", "--state-dir", tmp_path, "--json")
    split = report_of(result)["layouts"][0]
    assert split["layout"] == "split"
    assert re.fullmatch(r"layer \d+ of 32 finds no room in the split 4,2; [\d,]+ MiB or more are missing", split["problem"])
    assert [layout["layout"] for layout in report_of(result)["layouts"]] == ["split", "tensor"]
    assert result.exit_code == 1
    roomy = run(
        small, "--gpus", "12,12", "--gpu-split", "11", "--people", "1", "--layout", "split", "--state-dir", tmp_path, "--json"
    )
    assert [card["layers"] for card in report_of(roomy)["layouts"][0]["cards"]] == [[0, 31], None]


def test_reserve_of_each_card_is_left_free(small: Path, tmp_path: Path) -> None:
    arguments = ("--gpus", "12,12", "--people", "1", "--layout", "split", "--state-dir", tmp_path, "--json")
    made = report_of(run(small, *arguments, "--reserve", "1024,0"))
    assert [card["reserve"] for card in made["cards"]] == [(256 + 1024) << 20, 256 << 20]
    assert [card["reserve"] for card in report_of(run(small, *arguments, "--reserve", "100"))["cards"]] == [356 << 20] * 2


def test_adapter_is_a_row_beside_the_layers_it_is_for(small: Path, tmp_path: Path) -> None:
    names = [f"base_model.model.model.language_model.layers.{n}.mlp.up_proj" for n in range(32)]
    halves = [
        tensor(f"{name}.{half}.weight", "F32", *shape)
        for name in names
        for half, shape in (("lora_A", (16, 4096)), ("lora_B", (12288, 16)))
    ]
    adapter = write_adapter(tmp_path / "tuned", tuple(halves))
    arguments = ("--gpus", "12,12", "--people", "2", "--state-dir", tmp_path, "--lora", adapter)
    made = report_of(run(small, *arguments, "--json"))
    assert [layout["layout"] for layout in made["layouts"]] == ["split", "replicas"]
    for layout, whole in zip(made["layouts"], (1, 2), strict=True):
        rows = [row for card in layout["cards"] for row in card["rows"] if row["item"] == "adapters"]
        assert sum(row["size"] for row in rows) == whole * 32 * 2 * 16 * (4096 + 12288)
        assert {row["certainty"] for row in rows} == {"exact"}
    assert "A adapters" in run(small, *arguments).stdout
    other = write_adapter(
        tmp_path / "other", (tensor("base_model.model.model.layers.40.mlp.up_proj.lora_A.weight", "F16", 8, 4096),)
    )
    assert "the adapter is for layer 40, and the model has 32 layers" in str(run(small, *arguments, "--lora", other).exception)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts, larger than two cards: 16 experts in each of 48 layers, but for the first."""
    return write_model(tmp_path_factory.mktemp("models") / "MoE-like", MOE, files=expert_tensors())


def test_experts_in_host_memory_leave_the_cards_and_are_a_line_of_their_own(experts: Path, tmp_path: Path) -> None:
    arguments = (experts, "--gpus", "12,12", "--people", "1", "--context", "8192", "--layout", "split", "--state-dir", tmp_path)
    without = report_of(run(*arguments, "--json"))["layouts"][0]
    assert not without["fits"]
    advised = next(change["words"] for change in without["changes"] if change["lever"] == "experts")
    count = int(advised.split()[3])
    assert advised == f"the experts of {count} layers in host memory"
    for layers, fits in ((count, True), (count - 1, False)):
        made = report_of(run(*arguments, "--json", "--moe-cpu-layers", str(layers), "--host-memory", "64"))["layouts"][0]
        assert made["fits"] is fits
    held = {
        row["item"]: row
        for row in report_of(run(*arguments, "--json", "--moe-cpu-layers", str(count)))["layouts"][0]["host"]["rows"]
    }
    one = sum(item.size for item in expert_tensors() if ".layers.1.mlp.experts." in item.name and not item.name.endswith("mul1"))
    assert (held["experts"]["size"], held["experts"]["certainty"]) == (count * one, "exact")
    shown = " ".join(run(*arguments, "--moe-cpu-layers", str(count), "--host-memory", "64").stdout.split())
    assert "host memory: experts " in shown
    assert f"engine.moe_cpu_layers {count}" in shown


def test_host_memory_that_does_not_hold_the_experts_is_one_sentence_with_the_numbers(experts: Path, tmp_path: Path) -> None:
    arguments = (experts, "--gpus", "12,12", "--people", "1", "--context", "8192", "--layout", "split", "--state-dir", tmp_path)
    result = run(*arguments, "--moe-cpu-layers", "47", "--host-memory", "16", "--json")
    problem = report_of(result)["layouts"][0]["problem"]
    assert re.fullmatch(
        r"host memory is short by [\d,.]+ [GM]iB: experts [\d.]+ GiB, ring for the experts \d+ MiB, token table [\d,]+ MiB;"
        r" the machine has 16.0 GiB, of which exllamav3 leaves 2,048 MiB free",
        problem,
    )
    assert result.exit_code == 1


def test_more_layers_than_have_experts_are_refused_with_both_numbers(experts: Path, tmp_path: Path) -> None:
    result = run(experts, "--gpus", "12,12", "--context", "8192", "--moe-cpu-layers", "48", "--state-dir", tmp_path)
    assert "--moe-cpu-layers is 48, and 47 of the model's 48 layers have experts that can be moved" in str(result.exception)


def test_speculation_for_many_is_advised_against_with_what_it_costs(small: Path, tmp_path: Path) -> None:
    arguments = ("--gpus", "12,12", "--draft-model", small, "--draft-tokens", "2", "--layout", "split", "--state-dir", tmp_path)
    made = report_of(run(small, *arguments, "--json"))
    drafter = [row["size"] for card in made["layouts"][0]["cards"] for row in card["rows"] if row["item"] == "drafter"]
    assert len(drafter) == 1
    assert drafter[0] > made["weight_bytes"]
    assert any(note.startswith("Speculation rarely pays with 6 people at once") for note in made["notes"])
    assert any(note.startswith("Without speculation 6 people fit in the layout split, with it") for note in made["notes"])


def test_drafter_with_another_vocabulary_is_refused_with_both_numbers(small: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", {**ORNITH_9B, "vocab_size": 32000})
    result = run(small, "--gpus", "12", "--draft-model", other, "--state-dir", tmp_path)
    assert "--draft-model other has 32,000 tokens, and the model 248,320" in str(result.exception)


def test_cut_off_download_is_named_with_the_bytes_missing_and_planned(small: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "cut", ORNITH_9B)
    file = model / "model.safetensors"
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 1000)
    result = run(model, "--gpus", "12,12", "--state-dir", tmp_path)
    assert "model.safetensors is cut off: it lacks 1,000 of" in result.stdout
    assert "split: 6 people" in result.stdout
    assert result.exit_code == 1


def machine(*gpus: Gpu, driver: tuple[int, ...] | None = (576, 88)) -> ThatMachine:
    return replace(look(ThisMachine()), gpus=gpus, driver=driver)


FOUND = (Gpu("RTX 3060", (8, 6), 12288), Gpu("RTX 5070", (12, 0), 12227))


def test_cards_of_the_machine_are_used_where_none_is_named() -> None:
    learned = load(("RTX 5070",), GIB, driver="576.88", layout=Layout.REPLICAS)
    home = Home(learned, machine(*FOUND), EngineSettings())
    made = cards_from(Asked(), home)
    assert [card.name for card in made.cards[Layout.SPLIT]] == ["GPU 0 (RTX 3060)", "GPU 1 (RTX 5070)"]
    assert [card.size for card in made.cards[Layout.SPLIT]] == [12 * GIB, min(12227 << 20, 12 * GIB - 100)]
    by_layout = {layout: [(card.confirmed, card.elsewhere) for card in cards] for layout, cards in made.cards.items()}
    assert by_layout == {Layout.SPLIT: [(0, 0), (0, 1)], Layout.TENSOR: [(0, 0), (0, 1)], Layout.REPLICAS: [(0, 0), (1, 0)]}
    assert [card.overhead for card in made.cards[Layout.REPLICAS]] == [ASSUMED_OVERHEAD, GIB]
    assert made.notes == ()


def test_more_cards_named_than_exist_is_said_with_both_numbers() -> None:
    made = cards_from(Asked(gpus="12,12,12"), Home(Learned(), machine(*FOUND), EngineSettings()))
    assert made.notes == ("--gpus names 3 cards, and this machine has 2: this is a plan for another machine.",)


def test_machine_without_a_card_is_asked_to_name_one() -> None:
    with pytest.raises(CannotPlan, match="no NVIDIA GPU answers"):
        cards_from(Asked(), Home(Learned(), machine(), EngineSettings()))
