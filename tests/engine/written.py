"""Tiny checkpoints that are written once a run, by whichever worker needs one first: writing them takes transformers, which takes
seconds to import. The fixtures are made known by the conftest of each room that uses them.
"""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.checkpoints import Architecture, write_checkpoint, write_exl3_checkpoint, write_vision_checkpoint

Checkpoint = Callable[[Architecture], Path]
"""Gives a directory with a checkpoint that nobody else uses."""


def _once(factory: pytest.TempPathFactory, kind: str, write: Callable[[Architecture, Path], Path]) -> Checkpoint:
    """Originals lie where all workers of the run find them; whoever asks gets a copy, and may change it."""

    def give(architecture: Architecture) -> Path:
        return _copy(factory, kind, architecture.name.lower(), lambda directory: write(architecture, directory))

    return give


def _copy(factory: pytest.TempPathFactory, kind: str, name: str, write: Callable[[Path], Path]) -> Path:
    """A copy of what `write` wrote when it was asked for first."""
    base = factory.getbasetemp()
    originals = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / kind
    original = originals / name
    originals.mkdir(exist_ok=True)
    with (originals / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not original.exists():
            write(originals / f"{name}.unfinished").rename(original)
    return shutil.copytree(original, factory.mktemp(name), dirs_exist_ok=True)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """As `write_checkpoint` writes it by default."""
    return _once(tmp_path_factory, "checkpoints", write_checkpoint)


@pytest.fixture(scope="session")
def exl3_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """As `write_exl3_checkpoint` writes it by default: 4 bits a weight."""
    return _once(tmp_path_factory, "exl3-checkpoints", write_exl3_checkpoint)


@pytest.fixture(scope="session")
def seeing_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """As `write_vision_checkpoint` writes it by default."""
    return lambda: _copy(tmp_path_factory, "seeing-checkpoints", "qwen3_5", write_vision_checkpoint)
