"""The GPU suite's twin on a CPU: the same script, so that it is known to run before anybody with a card tries it."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from daemon.core.faults import Probed, ProbeOutcome
from tests.gpu.break_cuda import Broken, Words
from tests.gpu.cuda_errors import judged, wrong
from tests.gpu.report import NOTHING, SCHEMA, Outcome, Part, Report
from tests.ops.demo import demo_model

_ROOT = Path(__file__).parents[2]
_NEED_GPU = {Part.MARKED, Part.MEMORY, Part.CUDA_ERRORS}
_ILLEGAL = Words("AcceleratorError", "CUDA error: an illegal memory access was encountered\nCUDA kernel errors …", 700, "device")


def _suite(tmp_path: Path, *arguments: str) -> tuple[int, Report]:
    out = tmp_path / "report.json"
    command = [sys.executable, "-m", "tests.gpu", "--out", str(out), *arguments]
    code = subprocess.run(command, cwd=_ROOT, check=False, timeout=850).returncode
    return code, msgspec.json.decode(out.read_bytes(), type=Report)


@pytest.mark.timeout(900)  # a dozen processes that import torch: minutes where others compute too
def test_twin_on_a_cpu_passes_and_skips_what_needs_a_gpu(tmp_path: Path) -> None:
    demo_model()
    code, report = _suite(tmp_path, "--device", "cpu", "--minutes", "14")
    failures = {part.name: part.reason for part in report.parts if part.outcome is Outcome.FAILED}
    assert (code, failures) == (0, {})
    assert report.schema == SCHEMA
    assert [part.name for part in report.parts] == list(Part)
    skipped = {part.name for part in report.parts if part.outcome is Outcome.SKIPPED}
    assert skipped == _NEED_GPU
    assert all(part.reason.startswith("needs a GPU: ") for part in report.parts if part.name in skipped)
    assert all(part.numbers != NOTHING for part in report.parts if part.name not in skipped)


def test_without_a_gpu_the_suite_says_so_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, report = _suite(tmp_path, "--parts", "cuda_errors")
    machine, models, errors = report.parts
    assert code == 1
    assert machine.outcome is Outcome.FAILED
    assert "torch finds no NVIDIA GPU" in machine.reason
    assert (models.outcome, errors.outcome) == (Outcome.SKIPPED, Outcome.SKIPPED)
    assert errors.reason == "machine failed"


def test_sticky_error_that_a_new_process_cures_is_as_believed() -> None:
    found = judged(Broken(700, _ILLEGAL, [_ILLEGAL] * 3), Probed(ProbeOutcome.WORKS))
    assert (found.remedy, found.label, found.sticky) == ("process_restart", "cuda_illegal_address", True)
    assert wrong(found) == []


def test_everything_that_contradicts_what_is_believed_is_named() -> None:
    other = Words("RuntimeError", "something else", 1, "other")
    found = judged(Broken(700, other, [other, None, other]), Probed(ProbeOutcome.FAILED))
    assert wrong(found) == [
        "700 came as 1",
        "700 does not stick",
        "the engine takes 700 for 'other'",
        "the daemon's remedy for 700 is none",
        "after 700 a fresh process: failed",
    ]
