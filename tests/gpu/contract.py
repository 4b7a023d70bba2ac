"""The adapter's own tests on the GPU: the files of tests/engine that speak of what a request is promised, run with real kernels.

Also the tests marked `gpu`, which try what only exists on a GPU: the probe, the tiers in memory and on disk across a kill.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.engine.device import CUDA, VARIABLE
from tests.gpu.report import PartFailed, Place

_FILES = (
    "test_suspend.py",
    "test_keeping.py",
    "test_requests.py",
    "test_sampling.py",
    "test_growth.py",
    "test_steering.py",
    "test_thought.py",
    "test_constraint.py",
    "test_vision.py",
)
_TWIN = ("test_steering.py", "-k", "halves")
"""What the twin runs: on a CPU all of them are run by `make test` anyway."""
_ROOT = Path(__file__).parents[2]
_NONE_COLLECTED = 5


class TestNumbers(msgspec.Struct, frozen=True):
    """A run of pytest."""

    passed: int
    failed: int
    skipped: int
    seconds: float
    problems: list[str]
    """Each failed test with the first line of its failure."""
    measured: dict[str, dict[str, str]]
    """By test, what it noted."""


def run(place: Place) -> TestNumbers:
    """The adapter's tests."""
    folder = Path("tests", "engine")
    if place.on_gpu:
        return _pytest(place, [str(folder / name) for name in _FILES], {VARIABLE: CUDA}, "contract")
    return _pytest(place, [str(folder / _TWIN[0]), *_TWIN[1:]], {}, "contract")


def run_marked(place: Place) -> TestNumbers:
    """The tests marked `gpu`. Needs one."""
    return _pytest(place, ["-m", "gpu", "tests/gpu"], {}, "marked")


def _pytest(place: Place, arguments: Sequence[str], more: dict[str, str], name: str) -> TestNumbers:
    found = place.folder / f"{name}.xml"
    # Warnings are errors for our own code on CPUs; compilers and allocators of GPUs warn of what is not ours.
    command = [sys.executable, "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider", f"--junitxml={found}", *arguments]
    code = subprocess.run(command, cwd=_ROOT, env={**os.environ, **more}, check=False).returncode
    if not found.exists() or code == _NONE_COLLECTED:
        raise PartFailed(f"pytest ended with code {code} and ran no test; the log says why")
    numbers = _read(found)
    if code:
        raise PartFailed(f"{numbers.failed} of {numbers.passed + numbers.failed} tests failed: {numbers.problems[:3]}", numbers)
    return numbers


def _read(file: Path) -> TestNumbers:
    """A report of pytest's, written by our own process a moment ago."""
    passed = failed = skipped = 0
    seconds, problems, measured = 0.0, list[str](), dict[str, dict[str, str]]()
    for case in ET.parse(file).iter("testcase"):  # noqa: S314  # our own file, as above
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name', '')}"
        seconds += float(case.get("time") or 0)
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        if bad is not None:
            failed += 1
            problems.append(f"{name}: {(bad.get('message') or '').partition(chr(10))[0][:300]}")
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
        notes = {str(each.get("name")): str(each.get("value")) for each in case.iter("property")}
        if notes:
            measured[name] = notes
    return TestNumbers(passed, failed, skipped, round(seconds, 1), problems, measured)
