"""Which GPUs are counted before anything is loaded: nvidia-smi as a real process that answers well, badly, or not at all."""

import logging
import sys
from pathlib import Path

import pytest

from daemon.host import gpu_census
from daemon.host.gpu_census import Census, CountedGpu, parse_census, take_census, visible

GOOD = """\
GPU-aaaa-1, NVIDIA GeForce RTX 5070, 12227, 431, 576.88
GPU-bbbb-2, NVIDIA GeForce RTX 3060, 12288, [N/A], 576.88
"""
FIRST = CountedGpu("GPU-aaaa-1", "NVIDIA GeForce RTX 5070", 12227 << 20, 431 << 20)
SECOND = CountedGpu("GPU-bbbb-2", "NVIDIA GeForce RTX 3060", 12288 << 20, None)


def tool(directory: Path, script: str) -> dict[str, str]:
    """An environment whose nvidia-smi is `script`, in Python."""
    path = directory / "nvidia-smi"
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)
    return {"PATH": str(directory)}


def test_every_card_is_counted_with_what_is_used_where_the_driver_says(tmp_path: Path) -> None:
    assert take_census(tool(tmp_path, f"print({GOOD!r})")) == Census((FIRST, SECOND), "576.88")


def test_cards_that_cuda_does_not_see_are_not_counted(tmp_path: Path) -> None:
    asked = {**tool(tmp_path, f"print({GOOD!r})"), "CUDA_VISIBLE_DEVICES": "1"}
    assert take_census(asked).gpus == (SECOND,)


@pytest.mark.parametrize(
    ("named", "seen"),
    [
        (None, (FIRST, SECOND)),
        ("", ()),
        ("1,0", (SECOND, FIRST)),
        ("0,7,1", (FIRST,)),
        ("GPU-bbbb", (SECOND,)),
        ("GPU-", ()),
        ("-1", ()),
    ],
)
def test_visible_devices_mean_what_they_mean_to_cuda(named: str | None, seen: tuple[CountedGpu, ...]) -> None:
    assert visible((FIRST, SECOND), named) == seen


@pytest.mark.parametrize(
    "script",
    ["import sys; print('No devices were found'); sys.exit(6)", "print('GPU-1, RTX, [N/A], 0, 1')", "print('')", "print('a,b')"],
)
def test_driver_that_says_nothing_usable_leaves_nothing_counted(tmp_path: Path, script: str) -> None:
    assert take_census(tool(tmp_path, script)).gpus == ()


def test_no_driver_is_no_census(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_census, "_ELSEWHERE", ())
    assert take_census({"PATH": str(tmp_path)}) == Census()


def test_driver_that_hangs_is_left_behind_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu_census, "_PATIENCE", 0.2)
    with caplog.at_level(logging.WARNING):
        assert take_census(tool(tmp_path, "import time; time.sleep(600)")) == Census()
    assert "did not answer within" in caplog.text


def test_file_that_cannot_run_is_said_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "nvidia-smi").write_bytes(b"\x7fELF")
    (tmp_path / "nvidia-smi").chmod(0o755)
    with caplog.at_level(logging.WARNING):
        assert take_census({"PATH": str(tmp_path)}) == Census()
    assert "cannot be started" in caplog.text


def test_name_with_a_comma_is_one_field() -> None:
    assert parse_census('GPU-1, "Odd, card", 100, 1, 9').gpus[0].name == "Odd, card"
