"""Looks at a machine: GPU, driver, CUDA, compiler, Python. Gathers facts and decides nothing. Standard library alone."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ops.machine_values import Gpu, Machine, Wsl

_NVIDIA = "0x10de"
_DISPLAY = "0x03"
_QUERY = ("--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader,nounits")
_PATIENCE = 30.0
"""Seconds to wait for a tool. nvidia-smi can stall for long when memory is paged, but not for ever."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a tool printed, and whether it ended well."""

    ok: bool
    text: str


class Surroundings(Protocol):
    """The machine as far as it is looked at; tests put another one in its place."""

    def read(self, path: str) -> str | None:
        """A file's text; None where it cannot be read."""
        ...

    def list(self, path: str) -> Sequence[str]:
        """Names in a folder; empty where there is none."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a path exists."""
        ...

    def which(self, name: str) -> str | None:
        """Where a program on PATH lies."""
        ...

    def run(self, command: Sequence[str]) -> Said:
        """Run a tool to its end."""
        ...


class ThisMachine:
    """The machine that this process runs on."""

    def read(self, path: str) -> str | None:
        """A file's text; None where it cannot be read."""
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def list(self, path: str) -> Sequence[str]:
        """Names in a folder; empty where there is none."""
        try:
            return sorted(entry.name for entry in Path(path).iterdir())
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        """Whether a path exists."""
        return Path(path).exists()

    def which(self, name: str) -> str | None:
        """Where a program on PATH lies."""
        return shutil.which(name)

    def run(self, command: Sequence[str]) -> Said:
        """Run a tool to its end."""
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PATIENCE,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            return Said(ok=False, text=str(problem))
        return Said(ok=done.returncode == 0, text=(done.stdout or done.stderr).strip())


def look(around: Surroundings, environ: Mapping[str, str] = os.environ) -> Machine:
    """Everything that decides what to install. Takes about a second where there is a GPU."""
    gpus, smi_driver, problem = _gpus(around)
    nvcc = _nvcc(around, environ)
    return Machine(
        python=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
        system=sys.platform,
        architecture=platform.machine(),
        wsl=_wsl(around),
        apt=around.which("apt-get") is not None,
        gpus=gpus,
        nvidia_card=_nvidia_card(around),
        dxg=around.exists("/dev/dxg"),
        driver=smi_driver or _kernel_driver(around),
        driver_problem=problem,
        nvcc=nvcc,
        cuda=_nvcc_version(around, nvcc) if nvcc else None,
        compiler=environ.get("CXX") or around.which("c++") or around.which("g++") or around.which("clang++"),
        python_headers=around.exists(f"{sysconfig.get_paths()['include']}/Python.h"),
        venv=all(importlib.util.find_spec(name) is not None for name in ("venv", "ensurepip")),
    )


def _gpus(around: Surroundings) -> tuple[tuple[Gpu, ...], tuple[int, ...] | None, str]:
    """Cards, driver version, and what nvidia-smi complained about. WSL keeps its nvidia-smi off PATH under systemd."""
    places = (around.which("nvidia-smi"), "/usr/lib/wsl/lib/nvidia-smi", "/usr/bin/nvidia-smi")
    tool = next((place for place in places if place and around.exists(place)), None)
    if tool is None:
        return (), None, ""
    said = around.run([tool, *_QUERY])
    if not said.ok:
        return (), None, said.text.splitlines()[0] if said.text else "it printed nothing"
    cards: list[Gpu] = []
    driver: tuple[int, ...] | None = None
    for line in said.text.splitlines():
        match [part.strip() for part in line.split(",")]:
            case [name, capability, memory, version]:  # as _QUERY asks
                cards.append(Gpu(name, _pair(capability), int(memory) if memory.isdigit() else 0))
                driver = _numbers(version) or driver
            case _:
                pass
    return tuple(cards), driver, "" if cards else "it lists no card"


def _kernel_driver(around: Surroundings) -> tuple[int, ...] | None:
    """The loaded kernel module's version, where nvidia-smi does not answer."""
    text = around.read("/proc/driver/nvidia/version") or ""
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return _numbers(found[1]) if found else None


def _nvidia_card(around: Surroundings) -> bool:
    devices = "/sys/bus/pci/devices"
    return any(
        (around.read(f"{devices}/{name}/vendor") or "").strip() == _NVIDIA
        and (around.read(f"{devices}/{name}/class") or "").startswith(_DISPLAY)
        for name in around.list(devices)
    )


def _wsl(around: Surroundings) -> Wsl:
    release = (around.read("/proc/sys/kernel/osrelease") or "").strip()
    if release.endswith("-Microsoft"):
        return Wsl.ONE
    return Wsl.TWO if "microsoft" in release.lower() or around.exists("/run/WSL") else Wsl.NO


def _nvcc(around: Surroundings, environ: Mapping[str, str]) -> str | None:
    """CUDA_HOME first, because exllamav3's build looks there first too."""
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    places = (f"{home}/bin/nvcc" if home else None, around.which("nvcc"), "/usr/local/cuda/bin/nvcc")
    return next((place for place in places if place and around.exists(place)), None)


def _nvcc_version(around: Surroundings, nvcc: str) -> tuple[int, int] | None:
    found = re.search(r"release (\d+\.\d+)", around.run([nvcc, "--version"]).text)
    return _pair(found[1]) if found else None


def _numbers(text: str) -> tuple[int, ...] | None:
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else None


def _pair(text: str) -> tuple[int, int] | None:
    match _numbers(text):
        case (major, minor):
            return major, minor
        case _:
            return None
