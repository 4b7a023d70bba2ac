"""A real systemd for the tests: this machine's own root under an overlay, booted in a container.

Needs root, systemd-nspawn and overlayfs; `missing` says what is not there, and the tests skip with that reason. Nothing
written inside reaches the machine: the upper layer is a tmpfs that goes away with the container.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

BOOT_SECONDS = 120.0
_TOOLS = ("systemd-nspawn", "nsenter", "mount", "umount")
_BUSY = 32
"""Exit code of umount while something still uses the mount."""


def missing() -> str | None:
    """Why no container can be booted here, or None."""
    if os.geteuid() != 0:
        return "needs root to boot a container"
    absent = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if absent:
        return f"needs {', '.join(absent)} (Debian packages systemd-container and util-linux)"
    if "overlay" not in Path("/proc/filesystems").read_text(encoding="ascii"):
        return "the kernel has no overlayfs"
    return None


class Machine:
    """One booted container. Use as a context manager. `visible` are directories that must be seen inside even where they lie
    under /tmp, which a container has of its own.
    """

    def __init__(self, visible: Sequence[Path] = ()) -> None:
        self._visible = visible
        self._base = Path(tempfile.mkdtemp(prefix="exl3d-systemd-"))
        self.root = self._base / "root"
        """The container's root directory, as seen from outside."""
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._leader = 0

    def __enter__(self) -> Self:
        _call("mount", "-t", "tmpfs", "exl3d-systemd", str(self._base))
        for name in ("upper", "work", "root"):
            (self._base / name).mkdir()
        layers = f"lowerdir=/,upperdir={self._base}/upper,workdir={self._base}/work"
        _call("mount", "-t", "overlay", "overlay", "-o", layers, str(self.root))
        try:
            self._boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._nspawn is not None:
            # The first process of a container takes the rest with it; nspawn then ends by itself.
            if self._leader:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._leader, signal.SIGKILL)
            else:
                self._nspawn.kill()
            self._nspawn.wait()
        for target in (self.root, self._base):
            wait_until(lambda target=target: _umount(target) != _BUSY, f"{target} to be free")
        shutil.rmtree(self._base)

    def run(self, *argv: str, check: bool = True, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """A command inside, as root. With `check`, a failure raises with both outputs."""
        done = subprocess.run(self._inside(argv), check=False, capture_output=True, text=True, timeout=seconds)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def start(self, *argv: str) -> "subprocess.Popen[str]":
        """A command inside that goes on; its stdout is a pipe."""
        return subprocess.Popen(self._inside(argv), stdout=subprocess.PIPE, text=True)

    def show(self, unit: str, name: str) -> str:
        """One property of a unit."""
        return self.run("systemctl", "show", unit, "--property", name, "--value").stdout.strip()

    def wait_for(self, unit: str, name: str, value: str, seconds: float = 60.0) -> None:
        """Wait until a property of a unit has a value. A TimeoutError tells what the journal says."""
        try:
            wait_until(lambda: self.show(unit, name) == value, f"{name}={value} of {unit}", seconds)
        except TimeoutError as problem:
            raise TimeoutError(f"{problem}; it is {self.show(unit, name)}\n{self.journal(unit)}") from problem

    def journal(self, unit: str) -> str:
        """The last lines a unit has logged."""
        return self.run("journalctl", "--unit", unit, "--no-pager", "--lines", "60", check=False).stdout

    def write(self, path: str, text: str) -> None:
        """A file inside."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def _inside(self, argv: Sequence[str]) -> list[str]:
        return ["nsenter", "--target", str(self._leader), "--mount", "--uts", "--ipc", "--net", "--pid", "--", *argv]

    def _boot(self) -> None:
        command = ["systemd-nspawn", f"--directory={self.root}", "--boot", "--register=no", "--keep-unit", "--private-network"]
        command += [f"--bind-ro={path}" for path in self._visible]
        with (self._base / "console").open("wb") as console:
            self._nspawn = subprocess.Popen(
                [*command, "systemd.unit=basic.target"], stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT
            )
        pid = self._nspawn.pid
        wait_until(lambda: _first_process(pid) is not None, "the container's first process", BOOT_SECONDS)
        self._leader = _first_process(pid) or 0
        wait_until(lambda: self._state() in {"running", "degraded"}, "systemd inside the container", BOOT_SECONDS)

    def _state(self) -> str:
        return self.run("systemctl", "is-system-running", check=False).stdout.strip()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Poll until a condition holds. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.1)


def _first_process(nspawn: int) -> int | None:
    """Number 1 of the container, by its number out here. nspawn has other children for a moment while it builds the place."""
    text = Path(f"/proc/{nspawn}/task/{nspawn}/children").read_text(encoding="ascii")
    for word in text.split():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{word}/status").read_text(encoding="utf-8")
            numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
            if numbers[-1] == "1" and numbers[1] == word:
                return int(word)
    return None


def _umount(target: Path) -> int:
    return subprocess.run(["umount", str(target)], check=False, capture_output=True).returncode


def _call(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)
