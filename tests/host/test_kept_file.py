"""A small file that always holds the newest content, written behind whoever keeps something in it."""

import logging
import stat
from pathlib import Path

import pytest

from daemon.host.kept_file import KeptFile

LOG = logging.getLogger("exl3d.test")


def kept(path: Path) -> KeptFile:
    return KeptFile(path, mode=0o600, log=LOG, complaint="it cannot be kept")


async def test_newest_content_is_on_disk_whatever_was_kept_meanwhile(tmp_path: Path) -> None:
    file = kept(tmp_path / "small.json")
    for number in range(20):
        file.keep(b"%d" % number)
    await file.flushed()
    assert (tmp_path / "small.json").read_bytes() == b"19"
    assert stat.S_IMODE((tmp_path / "small.json").stat().st_mode) == 0o600
    assert not (tmp_path / "small.tmp").exists()


async def test_file_that_cannot_be_written_is_said_and_tried_again_with_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = kept(tmp_path / "absent" / "small.json")
    file.keep(b"first")
    await file.flushed()
    assert "it cannot be kept" in caplog.text
    (tmp_path / "absent").mkdir()
    file.keep(b"second")
    await file.flushed()
    assert (tmp_path / "absent" / "small.json").read_bytes() == b"second"
