"""Before `make serve` starts the daemon: the demo model is made only where nothing else is there to be served."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ops import demo_model, first_model
from ops.demo_values import Progress
from ops.errors import DemoModelFailed
from ops.exit_codes import ExitCode
from ops.machine_values import Gpu, Machine
from tests.ops.test_machine_plan import BARE


def _looks_like(machine: Machine) -> Callable[[object], Machine]:
    def look(_around: object) -> Machine:
        return machine

    return look


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """State directories in which the demo model was made, on a machine without a GPU and an empty home."""
    states: list[Path] = []

    def make_ready(state: Path, _progress: Progress) -> Path:
        states.append(state)
        return demo_model.directory(state)

    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "STATE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_model, "make_ready", make_ready)
    monkeypatch.setattr(first_model, "look", _looks_like(BARE))
    return states


def test_nothing_configured_and_no_gpu_makes_the_demo_model(made: list[Path], tmp_path: Path) -> None:
    assert first_model.main(["--port", "8000"]) == ExitCode.OK
    assert made == [tmp_path / ".local" / "state" / "exl3d"]


def test_state_directory_of_the_command_line_is_used(made: list[Path], tmp_path: Path) -> None:
    assert first_model.main(["--set", f"state_dir={tmp_path}/elsewhere"]) == ExitCode.OK
    assert made == [tmp_path / "elsewhere"]


@pytest.mark.parametrize("arguments", [["--model", "m"], ["--set", "model=m"], ["--config", "own.yaml"]])
def test_configured_model_needs_no_demo_model(made: list[Path], tmp_path: Path, arguments: list[str]) -> None:
    """Whether the model is any good is the daemon's to say."""
    (tmp_path / "own.yaml").write_text("model: m\n")
    first_model.main(arguments)
    assert made == []


def test_gpu_owner_without_a_model_is_left_to_the_daemons_words(made: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpu = replace(BARE, gpus=(Gpu("NVIDIA GeForce RTX 5070", (12, 0), 12227),))
    monkeypatch.setattr(first_model, "look", _looks_like(with_gpu))
    assert first_model.main([]) == ExitCode.OK
    assert made == []


def test_failure_is_one_line_and_an_exit_code(
    made: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_state: Path, _progress: Progress) -> Path:
        raise DemoModelFailed("no index")

    monkeypatch.setattr(demo_model, "make_ready", fail)
    assert first_model.main([]) == ExitCode.FAILED
    assert made == []
    assert capsys.readouterr().err.endswith("make serve: no index\n")
