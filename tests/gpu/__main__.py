"""`make test-gpu`: everything that only a GPU can show, in under ten minutes once exllamav3's extension is built.

Each part runs in a process of its own with a limit; one JSON report says how each went. It makes its own models and needs
nothing but a card, its driver and what `make install` put into .venv. `--device cpu` is the twin that runs anywhere: the same
parts, small, and those that need a GPU skipped with their reason.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from daemon.core.settings import BackendKind
from tests.gpu.report import SCHEMA, Outcome, Part, PartReport, Place, Report, Said

_MACHINE_LIMIT = 3600.0
"""Seconds for the first import of exllamav3, which may compile its extension."""
_LIMITS = {
    Part.MODELS: 120.0,
    Part.CONTRACT: 200.0,
    Part.MARKED: 120.0,
    Part.CACHE_BITS: 90.0,
    Part.HYBRID: 60.0,
    Part.SUSPEND: 60.0,
    Part.MEMORY: 90.0,
    Part.TENSOR: 120.0,
    Part.EXPERTS: 90.0,
    Part.THROUGHPUT: 150.0,
    Part.CUDA_ERRORS: 120.0,
}
"""Seconds each part may take. Together more than `--minutes`, which is kept whatever the parts do."""
_NEED_GPU = {
    Part.MARKED: "exllamav3 copies the pages of its tiers with CUDA, and there is no driver to probe",
    Part.MEMORY: "what a CPU engine holds says nothing about a plan for GPUs",
    Part.TENSOR: "a layer is divided among GPUs, and there is none",
    Part.EXPERTS: "exllamav3 takes experts off a GPU, never off a CPU",
    Part.CUDA_ERRORS: "there is no CUDA context to break",
}
"""What is skipped without one, and why."""
_SLOWER = 4
"""How much longer a part may take on a CPU, which others may be using."""
_ESSENTIAL = frozenset({Part.MACHINE, Part.MODELS})
"""Without them no other part can run."""
_LAST_WORDS = 600
"""Characters of a log that go into the report where a part ended without a word of its own."""


class Suite:
    """One run. `folder` holds the models and a log a part."""

    def __init__(self, place: Place, seconds: float) -> None:
        self._place = place
        self._seconds = seconds

    def run(self, parts: Sequence[Part]) -> Report:
        """Run the parts that are wanted, and those that they need."""
        done: list[PartReport] = []
        missing = ""
        began = time.monotonic()
        for part in Part:
            if part not in parts and part not in _ESSENTIAL:
                continue
            left = self._seconds - (time.monotonic() - began)
            if part in _NEED_GPU and not self._place.on_gpu:
                report = PartReport(part, Outcome.SKIPPED, 0.0, f"needs a GPU: {_NEED_GPU[part]}")
            elif missing:
                report = PartReport(part, Outcome.SKIPPED, 0.0, missing)
            elif part is not Part.MACHINE and left <= 0:
                report = PartReport(part, Outcome.SKIPPED, 0.0, f"the {self._seconds:g} s of the suite are over")
            else:
                report = self._part(part, self._limit(part) if part is Part.MACHINE else min(left, self._limit(part)))
            if part in _ESSENTIAL and report.outcome is not Outcome.OK:
                missing = missing or f"{part.value} {report.outcome.value}"
            if part is Part.MACHINE:
                began = time.monotonic()
            done.append(report)
            _tell(f"{part.value:>12}  {report.outcome.value:<8} {report.seconds:6.1f} s  {report.reason[:300]}")
        counts = {outcome: sum(report.outcome is outcome for report in done) for outcome in Outcome}
        return Report(
            schema=SCHEMA,
            device=self._place.device.value,
            seconds=round(time.monotonic() - began, 1),
            ok=counts[Outcome.OK],
            failed=counts[Outcome.FAILED],
            skipped=counts[Outcome.SKIPPED],
            parts=done,
        )

    def _limit(self, part: Part) -> float:
        if part is Part.MACHINE:
            return _MACHINE_LIMIT
        return _LIMITS[part] * (1 if self._place.on_gpu else _SLOWER)

    def _part(self, part: Part, limit: float) -> PartReport:
        out, log = self._place.folder / f"{part.value}.json", self._place.folder / f"{part.value}.log"
        command = [sys.executable, "-m", "tests.gpu.part", part.value, "--device", self._place.device.value]
        command += ["--folder", str(self._place.folder), "--out", str(out)]
        if self._place.model is not None:
            command += ["--model", str(self._place.model)]
        began = time.monotonic()
        with log.open("wb") as words:
            process = subprocess.Popen(command, stdout=words, stderr=words, start_new_session=True)
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
        seconds = round(time.monotonic() - began, 1)
        if code is None:
            return PartReport(part, Outcome.FAILED, seconds, f"not done after {limit:.0f} s; {_end_of(log)}")
        if not out.exists():
            return PartReport(part, Outcome.FAILED, seconds, f"ended with code {code}; {_end_of(log)}")
        said = msgspec.json.decode(out.read_bytes(), type=Said)
        return PartReport(part, said.outcome, seconds, said.reason, said.numbers)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a part: the process and the engines and daemons it started, all of one session."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        return
    process.wait()


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _end_of(log: Path) -> str:
    return "its log ends: " + log.read_text(encoding="utf-8", errors="replace").strip()[-_LAST_WORDS:]


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: 0 where no part failed."""
    parser = argparse.ArgumentParser(prog="make test-gpu", description=__doc__)
    parser.add_argument("--device", choices=[BackendKind.CUDA.value, BackendKind.CPU.value], default=BackendKind.CUDA.value)
    parser.add_argument("--out", type=Path, default=Path("gpu-report.json"), help="where the report goes")
    parser.add_argument("--model", type=Path, help="a model directory for memory and throughput, instead of the demo model")
    parser.add_argument("--parts", default="", help="only these, separated by commas: " + ", ".join(part.value for part in Part))
    parser.add_argument("--minutes", type=float, default=10.0, help="most that all parts after the first may take")
    parser.add_argument("--keep", type=Path, help="an empty folder for models and logs, kept afterwards")
    given = parser.parse_args(arguments)
    wanted: str = given.parts
    try:
        parts = [Part(name.strip()) for name in wanted.split(",") if name.strip()] or list(Part)
    except ValueError as problem:
        parser.error(f"{problem}: parts are {', '.join(part.value for part in Part)}")
    with tempfile.TemporaryDirectory(prefix="exl3d-gpu-") as scratch:
        folder = Path(given.keep or scratch).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        model = None if given.model is None else Path(given.model).absolute()
        report = Suite(Place(BackendKind(given.device), folder, model), given.minutes * 60).run(parts)
    out: Path = given.out
    out.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    _tell(f"{report.ok} ok, {report.failed} failed, {report.skipped} skipped in {report.seconds} s: {out}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
