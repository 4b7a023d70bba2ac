"""The daemon as a process, on a machine whose driver names a card: refused before any engine, or tried with --force."""

import os
import subprocess
from pathlib import Path

from tests.host.test_gpu_census import tool
from tests.process.front import DEADLINE, command, environment


def ended(model: Path, directory: Path, mib: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A daemon that ends by itself: torch finds no GPU here, whatever the driver says."""
    driver = tool(directory, f"print('GPU-1, RTX, {mib}, 0, 576.88')")
    around = environment(HOME=str(directory), PATH=f"{driver['PATH']}:{os.environ['PATH']}")
    line = [*command(model, directory / "state", 0, ("engine.backend=cuda",)), *arguments]
    return subprocess.run(line, cwd=directory, env=around, capture_output=True, text=True, timeout=DEADLINE, check=False)


def test_model_that_cannot_fit_ends_the_daemon_with_78_and_the_plan_before_an_engine(model: Path, tmp_path: Path) -> None:
    result = ended(model, tmp_path, 512)
    assert result.returncode == 78, result.stderr
    assert "does not fit as configured: " in result.stderr
    assert "GPU 0 (RTX): 512 MiB; 768 MiB of overhead (assumed)" in result.stderr
    assert "exl3d --force" in result.stderr
    assert "Traceback" not in result.stderr
    assert "starting" not in result.stderr


def test_force_starts_an_engine_nevertheless(model: Path, tmp_path: Path) -> None:
    result = ended(model, tmp_path, 512, "--force")
    assert "this may end for want of memory" in result.stderr
    assert "torch finds no NVIDIA GPU" in result.stderr
    assert result.returncode == 78


def test_card_that_is_large_enough_is_no_obstacle(model: Path, tmp_path: Path) -> None:
    result = ended(model, tmp_path, 12288)
    assert "does not fit" not in result.stderr
    assert "torch finds no NVIDIA GPU" in result.stderr
