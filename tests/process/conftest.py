"""No code of the host may block the event loop: blockbuster turns a blocking call on it into an error. And a model for all."""

from collections.abc import Generator
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from tests.engine.checkpoints import Architecture
from tests.engine.written import Checkpoint, checkpoint, exl3_checkpoint, seeing_checkpoint

__all__ = ["checkpoint", "exl3_checkpoint", "seeing_checkpoint"]


@pytest.fixture(autouse=True)
def unblocked_loop() -> Generator[None]:
    """Blocking calls made by `daemon` on the event loop raise. Starting a process is allowed: fork cannot wait elsewhere,
    because the child's parent-death signal hangs on the thread that forked it.
    """
    with blockbuster_ctx(scanned_modules=["daemon"]) as blocked:
        for function in ("os.read", "os.write"):
            blocked.functions[function].can_block_in("subprocess.py", "_execute_child")
        yield


@pytest.fixture(scope="session")
def model(checkpoint: Checkpoint) -> Path:
    """A tiny Llama's directory, for tests that only read it."""
    return checkpoint(Architecture.LLAMA)
