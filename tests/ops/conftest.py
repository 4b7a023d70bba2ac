"""What tests of `exl3ctl` share."""

from pathlib import Path

import pytest

from tests.ops.exl3ctl import Tool


@pytest.fixture
def exl3ctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tool:
    """The tool, in its own home."""
    return Tool(tmp_path, monkeypatch, capsys)
