"""The daemon as a process, told what cannot be: one sentence with the numbers and exit code 78, before any engine."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.engine.checkpoints import Architecture, write_checkpoint
from tests.host.test_gpu_census import tool
from tests.process.front import DEADLINE, command, environment

TWO_CARDS = "print('GPU-1, RTX, 12288, 0, 576.88'); print('GPU-2, RTX, 12288, 0, 576.88')"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(Architecture.LLAMA, tmp_path_factory.mktemp("llama"))


def refused(model: Path, directory: Path, *settings: str) -> list[str]:
    """What the daemon ends with, a line each: everything from its last words on."""
    driver = tool(directory, TWO_CARDS)
    around = environment(HOME=str(directory), PATH=f"{driver['PATH']}:{os.environ['PATH']}")
    line = command(model, directory / "state", 0, ("engine.backend=cuda", *settings))
    result = subprocess.run(line, cwd=directory, env=around, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert result.returncode == 78, result.stderr
    assert "Traceback" not in result.stderr
    assert "starting" not in result.stderr
    lines = result.stderr.strip().splitlines()
    first = next(number for number, said in enumerate(lines) if said.startswith("exl3d: "))
    return lines[first:]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("engine.layout=tensor", "engine.replicas=2"), "tensor, one engine for all GPUs, and engine.replicas asks for 2"),
        (("engine.replicas=3",), "engine.replicas is 3, and 2 GPUs can be used"),
    ],
)
def test_what_contradicts_itself_or_the_machine_ends_the_daemon_with_one_sentence(
    model: Path, tmp_path: Path, settings: tuple[str, ...], words: str
) -> None:
    (said,) = refused(model, tmp_path, *settings)
    assert words in said


def test_split_that_leaves_a_layer_nowhere_begins_with_that_sentence(model: Path, tmp_path: Path) -> None:
    first, *plan = refused(model, tmp_path, "engine.gpu_split=[0.75, 0]")
    assert "does not fit as configured: layer 0 of 2 finds no room in the split 0.75,0; " in first
    assert first.endswith("or more are missing.")
    assert any("would fit: engine.gpu_split null" in line for line in plan)


def test_directory_that_is_no_model_ends_the_daemon_with_one_sentence(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (said,) = refused(empty, tmp_path)
    assert f"{empty}" in said
    assert "config.json" in said
