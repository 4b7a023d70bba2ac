"""The GPU suite's twin on a CPU: the same script, so that it is known to run before anybody with a card tries it."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from daemon.core.faults import Probed, ProbeOutcome
from daemon.core.settings import BackendKind, EngineSettings
from tests.engine.checkpoints import Architecture, write_checkpoint
from tests.gpu.break_cuda import Broken, Words
from tests.gpu.cuda_errors import judged, wrong
from tests.gpu.layouts import Likeness, answers
from tests.gpu.layouts import judged as judged_layouts
from tests.gpu.part import said
from tests.gpu.report import NOTHING, SCHEMA, Outcome, Part, PartFailed, Place, Report
from tests.host.test_gpu_census import tool
from tests.ops.demo import demo_model

_ROOT = Path(__file__).parents[2]
_NEED_GPU = {Part.MARKED, Part.MEMORY, Part.TENSOR, Part.EXPERTS, Part.CUDA_ERRORS}
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


def test_layout_over_two_cards_is_skipped_in_words_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", tool(tmp_path, "print('GPU-1, RTX, 12288, 0, 576.88')")["PATH"])
    told = said(Part.TENSOR, Place(BackendKind.CUDA, tmp_path))
    assert told.outcome is Outcome.SKIPPED
    assert told.reason == "needs two GPUs, and there is 1: a layer cannot be divided"


def test_answers_that_differ_and_processes_that_stay_fail_the_part() -> None:
    good = Likeness("m", 0.01, 1.0, 4, 0, [[100], [90]])
    assert judged_layouts([good]).models == [good]
    for bad, words in (
        (msgspec.structs.replace(good, logprob_shift=0.5), "moved by 0.5"),
        (msgspec.structs.replace(good, processes=1), "one process computed it"),
        (msgspec.structs.replace(good, left=2), "2 of 4 processes outlived their engine"),
    ):
        with pytest.raises(PartFailed, match=words):
            judged_layouts([good, bad])


def test_answers_are_taken_twice_alike_and_a_killed_engine_leaves_nothing(tmp_path: Path) -> None:
    """What the parts tensor and experts do, with an engine on the CPU."""
    place = Place(BackendKind.CPU, tmp_path)
    write_checkpoint(Architecture.QWEN3, place.dense)
    engine = EngineSettings(backend=BackendKind.CPU, cache_tokens=2048, max_batch=2, chunk_tokens=512, threads=1)
    found = [answers(place, place.dense, engine) for _ in range(2)]
    assert found[0].said == found[1].said
    assert [len(ids) for ids, _ in found[0].said] == [24] * 4
    assert [(each.processes, each.left) for each in found] == [(1, 0), (1, 0)]
