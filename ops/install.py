"""`make install`: look at the machine, say what was found, and make a virtual environment that fits it.

Runs on a bare Python, before anything is installed: standard library alone. Numbered steps, each skipped when it is done:
1. Look and plan (`ops/machine.py`, `ops/machine_plan.py`). Where something is missing, say what and how, and stop.
2. Make the virtual environment.
3. torch from the first place of the plan that has a fitting build.
4. exllamav3, and exl3d itself with everything else.
5. With a GPU and no prebuilt exllamav3: compile it now, so that the first start of the daemon does not take minutes.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from ops import machine_words
from ops.machine import ThisMachine, look
from ops.machine_plan import Device, EngineBuild, Plan, TorchSource, plan
from ops.machine_values import Machine
from ops.release_wheels import RELEASE_FACTS

REPOSITORY = Path(__file__).resolve().parents[1]
_GIB_PER_COMPILER = 4
"""Host memory that one nvcc needs at its worst."""


class InstallFailed(Exception):
    """A step did not succeed; the text says which and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python3 -m ops.install", description="Make a virtual environment that fits this machine."
    )
    parser.add_argument("--venv", type=Path, default=REPOSITORY / ".venv", help="where to make it")
    parser.add_argument("--extra", action="append", default=[], help="an optional part of exl3d to install too, as `dev`")
    parser.add_argument("--device", choices=["auto", "cpu"], default="auto", help="cpu: ignore a GPU")
    options = parser.parse_args(arguments)
    venv, extras = cast("Path", options.venv), cast("list[str]", options.extra)
    machine = look(ThisMachine())
    force_cpu = options.device == "cpu"
    decided = plan(machine, force_cpu=force_cpu)
    if decided.device is Device.CUDA:
        decided = plan(machine, release_wheels(), force_cpu=force_cpu)
    _tell(machine, decided)
    if not decided.possible:
        print("\nInstall what is missing and run `make install` again.", file=sys.stderr)
        if decided.device is Device.CUDA:
            print("Or run on the CPU, slowly and with a small model: make install DEVICE=cpu", file=sys.stderr)
        return 1
    try:
        install(decided, venv, extras)
    except InstallFailed as problem:
        print(f"\nmake install: {problem}", file=sys.stderr)
        return 1
    return 0


def release_wheels() -> tuple[str, ...]:
    """File names of exllamav3's prebuilt wheels; empty where the release page cannot be asked."""
    try:
        with urllib.request.urlopen(RELEASE_FACTS, timeout=20) as answer:  # noqa: S310  # a fixed https address
            facts: object = json.load(answer)
    except (OSError, http.client.HTTPException, ValueError) as problem:  # refused, cut off in the middle, or no JSON
        print(
            f"The list of prebuilt exllamav3 wheels cannot be had ({problem}); a build from source is planned.", file=sys.stderr
        )
        return ()
    return asset_names(facts)


def asset_names(facts: object) -> tuple[str, ...]:
    """The names of the files of a release, from what the release page says about it."""
    assets = cast("dict[str, object]", facts).get("assets") if isinstance(facts, dict) else None
    if not isinstance(assets, list):
        return ()
    entries = [cast("dict[str, object]", entry) for entry in cast("list[object]", assets) if isinstance(entry, dict)]
    return tuple(name for entry in entries if isinstance(name := entry.get("name"), str))


def _tell(machine: Machine, decided: Plan) -> None:
    for heading, text in machine_words.finding(machine, decided):
        print(f"  {heading:<14}{text}", file=sys.stderr)
    for note in decided.notes:
        print(f"  Note: {note}", file=sys.stderr)
    for line in machine_words.needs(decided):
        print(line, file=sys.stderr)


def install(decided: Plan, venv: Path, extras: list[str]) -> None:
    """Carry out a plan. Raises InstallFailed."""
    python = venv / "bin" / "python"
    if not python.exists():
        _step("Making the virtual environment")
        _run([sys.executable, "-m", "venv", str(venv)], "the virtual environment could not be made")
    _install_torch(python, decided)
    if decided.build is not EngineBuild.AS_IT_IS:
        _step("Installing exllamav3")
        _pip(python, [decided.engine], "exllamav3 could not be installed")
    _step("Installing exl3d and what it needs")
    target = str(REPOSITORY) + (f"[{','.join(extras)}]" if extras else "")
    _pip(python, ["--editable", target], "exl3d could not be installed")
    if decided.build is EngineBuild.FROM_SOURCE:
        _step("Compiling exllamav3 for this GPU (about ten minutes)")
        environment = os.environ | {"MAX_JOBS": os.environ.get("MAX_JOBS", str(_compilers()))}
        _run([str(python), "-c", "import exllamav3"], "exllamav3 did not compile; the first error above says why", environment)


def _install_torch(python: Path, decided: Plan) -> None:
    """From the first source that has what the plan wants. A torch of another kind goes first: pip would be content with it."""
    wanted = "cpu" if decided.cuda is None else f"cu{decided.cuda[0]}{decided.cuda[1]}"
    installed = _installed_torch(python)
    if installed is not None and wanted not in installed and (decided.device is Device.CUDA or "+" in installed):
        _step(f"Removing torch {installed}")
        _run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "torch"], "torch could not be removed")
    elif installed is not None and decided.device is Device.CPU:
        return
    _step("Installing torch")
    for source in decided.torch:
        if source.cpu_only and "+cpu" not in _resolved_torch(python, source):
            continue
        if decided.device is Device.CPU and not source.cpu_only:
            print("No CPU build of torch can be had here: this is the usual one, several gigabytes large.", file=sys.stderr)
        index = ["--index-url", source.index] if source.index else []
        _pip(python, [*index, source.requirement], "torch could not be installed")
        return
    raise InstallFailed("no build of torch was found for this machine")


def _installed_torch(python: Path) -> str | None:
    """Version of the torch in the environment, as `2.13.0+cpu`."""
    code = "import importlib.metadata as m; print(m.version('torch'))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _resolved_torch(python: Path, source: TorchSource) -> str:
    """The version pip would install from a source; empty where it finds none."""
    index = ["--index-url", source.index] if source.index else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [str(python), "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
        done = subprocess.run([*command, *index, source.requirement], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return ""
        return resolved_version(json.loads(report.read_text(encoding="utf-8")), "torch")


def resolved_version(report: object, name: str) -> str:
    """The version of a package in pip's installation report; empty where it is not in it."""
    entries = cast("dict[str, list[dict[str, dict[str, str]]]]", report).get("install", [])
    for entry in entries:
        if entry["metadata"]["name"].lower() == name:
            return entry["metadata"]["version"]
    return ""


def _compilers() -> int:
    """How many compilers may run at once: as many as there are cores and memory for."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30
    return max(1, min(os.cpu_count() or 1, memory // _GIB_PER_COMPILER))


def _pip(python: Path, arguments: list[str], failure: str) -> None:
    quiet = [] if sys.stderr.isatty() else ["--quiet"]  # a person waits for gigabytes and wants to see them come
    _run([str(python), "-m", "pip", "install", *quiet, "--disable-pip-version-check", *arguments], failure)


def _run(command: list[str], failure: str, environment: dict[str, str] | None = None) -> None:
    code = subprocess.run(command, env=environment, check=False).returncode
    if code != 0:
        raise InstallFailed(f"{failure} (exit code {code} of: {' '.join(command)})")


def _step(text: str) -> None:
    print(f"{text} …", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
