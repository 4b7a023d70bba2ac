"""Which GPUs an engine may use, asked before any engine exists: from `nvidia-smi`, a process that may be left behind if it hangs.

No library of the driver is loaded here, so that a broken driver cannot take the daemon along.
"""

import contextlib
import csv
import logging
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger("exl3d.memory")

_QUERY = ("--query-gpu=uuid,name,memory.total,memory.used,driver_version", "--format=csv,noheader,nounits")
_FIELDS = 5
_PATIENCE = 20.0
"""Seconds. A driver that nobody uses wakes its cards first."""
_LAST_PATIENCE = 2.0
"""Seconds for a killed process to go."""
_ELSEWHERE = ("/usr/lib/wsl/lib/nvidia-smi", "/usr/bin/nvidia-smi")
"""WSL keeps its own off the PATH of services."""


@dataclass(frozen=True, slots=True)
class CountedGpu:
    """One card; sizes in bytes."""

    uuid: str
    name: str
    total: int
    used: int | None
    """By whoever; None where the driver does not say."""


@dataclass(frozen=True, slots=True)
class Census:
    """The cards an engine may use, in the driver's order."""

    gpus: tuple[CountedGpu, ...] = ()
    driver: str = ""


def take_census(environment: Mapping[str, str]) -> Census:
    """Ask the driver. Empty where there is none, or where it does not answer: then nothing is known, and nothing refused."""
    places = (shutil.which("nvidia-smi", path=environment.get("PATH")), *_ELSEWHERE)
    tool = next((place for place in places if place is not None and Path(place).exists()), None)
    if tool is None:
        return Census()
    text = _ask(tool)
    if text is None:
        return Census()
    found = parse_census(text)
    return Census(visible(found.gpus, environment.get("CUDA_VISIBLE_DEVICES")), found.driver)


def parse_census(text: str) -> Census:
    """What `nvidia-smi` printed: a line a card. Lines that are none are left out."""
    gpus: list[CountedGpu] = []
    driver = ""
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == _FIELDS and row[2].strip().isdigit():
            uuid, name, total, used, driver = (field.strip() for field in row)
            gpus.append(CountedGpu(uuid, name, int(total) << 20, int(used) << 20 if used.isdigit() else None))
    return Census(tuple(gpus), driver)


def visible(gpus: Sequence[CountedGpu], named: str | None) -> tuple[CountedGpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES names, by number or by the beginning of their uuid; as CUDA does, up to the first
    name that means nothing.
    """
    if named is None:
        return tuple(gpus)
    chosen: list[CountedGpu] = []
    for name in (part.strip() for part in named.split(",")):
        if name.isdigit() and int(name) < len(gpus):
            chosen.append(gpus[int(name)])
            continue
        matching = [gpu for gpu in gpus if name and gpu.uuid.startswith(name)]
        if len(matching) != 1:
            break
        chosen.append(matching[0])
    return tuple(chosen)


def _ask(tool: str) -> str | None:
    try:
        process = subprocess.Popen(
            [tool, *_QUERY],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
    except OSError as problem:
        _log.warning("%s cannot be started: %s", tool, problem)
        return None
    try:
        text, _ = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        _leave(process)
        _log.warning("%s did not answer within %.0f s: whether the model fits is not known", tool, _PATIENCE)
        return None
    return text if process.returncode == 0 else None


def _leave(process: "subprocess.Popen[str]") -> None:
    """Wait a moment for a killed process. One that hangs inside the driver dies only with it: it is left alone."""
    if process.stdout is not None:
        process.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_LAST_PATIENCE)
