"""Tiny models for the engine's tests, written once a session."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec
import pytest

from daemon.core.settings import BackendKind, EngineSettings
from daemon.engine.exl3 import runtime
from daemon.engine.null.profile import NullProfile
from tests.engine.device import BACKEND

runtime.prepare(EngineSettings(backend=BACKEND, threads=1))

from tests.engine.checkpoints import Architecture, write_tokenizer  # noqa: E402 - exllamav3 needs the operations first
from tests.engine.workbench import Workbench  # noqa: E402 - as above
from tests.engine.written import Checkpoint, checkpoint, exl3_checkpoint, seeing_checkpoint  # noqa: E402 - as above

__all__ = ["checkpoint", "exl3_checkpoint", "seeing_checkpoint"]

ModelPath = Callable[[Architecture], Path]


@pytest.fixture(scope="session")
def model_path(checkpoint: Checkpoint) -> ModelPath:
    """A model directory by architecture, for all who only read it."""
    return cache(checkpoint)


@pytest.fixture
def dense(model_path: ModelPath) -> Workbench:
    """A fresh engine with a tiny Qwen3."""
    return Workbench(model_path(Architecture.QWEN3))


@pytest.fixture
def hybrid(model_path: ModelPath) -> Workbench:
    """A fresh engine with a tiny Qwen3.5: GatedDeltaNet layers plus full attention."""
    return Workbench(model_path(Architecture.QWEN3_5))


@pytest.fixture(params=[Architecture.QWEN3, Architecture.QWEN3_5], ids=["dense", "hybrid"])
def bench(request: pytest.FixtureRequest, model_path: ModelPath) -> Workbench:
    """Both of them, one after the other."""
    architecture: Architecture = request.param
    return Workbench(model_path(architecture))


class NullBench(Protocol):
    """Makes an engine that computes nothing."""

    def __call__(
        self,
        profile: NullProfile | None = None,
        *,
        cache_tokens: int = 8192,
        chunk_tokens: int = 512,
        reserve_tokens: int = 2048,
    ) -> Workbench:
        """With a profile of what it says, how fast and where it fails."""
        ...


@pytest.fixture
def null_bench(tmp_path: Path) -> NullBench:
    """The real scheduler without arithmetic: for tests of order, room and faults that need many tokens."""
    if BACKEND is BackendKind.CUDA:
        pytest.skip("the null model needs the CPU's operations, and one process has one kind of them")
    write_tokenizer(tmp_path)

    def make(
        profile: NullProfile | None = None,
        *,
        cache_tokens: int = 8192,
        chunk_tokens: int = 512,
        reserve_tokens: int = 2048,
    ) -> Workbench:
        path = tmp_path / "profile.json"
        path.write_bytes(msgspec.json.encode(profile or NullProfile()))
        chosen = EngineSettings(
            backend=BackendKind.NULL,
            threads=1,
            null_profile=str(path),
            cache_tokens=cache_tokens,
            max_batch=8,
            chunk_tokens=chunk_tokens,
            reserve_tokens=reserve_tokens,
        )
        return Workbench(tmp_path, chosen)

    return make
