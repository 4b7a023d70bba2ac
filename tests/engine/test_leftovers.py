"""Shared memory of an engine that was killed with everything that could have tidied up: gone when the next one starts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.engine.exl3.leftovers import FILE, Leftovers

ENGINE = """
import sys, time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from daemon.engine.exl3.leftovers import Leftovers

segment = SharedMemory(create=True, size=4096)
exchange = SharedMemory("0123456789abcdef0123456789abcdef_g", create=True, size=4096)
Leftovers(Path(sys.argv[1])).note()
print(segment.name, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory lies in /dev/shm on Linux")  # noqa: S108 - where Linux has it
def test_what_a_killed_engine_shared_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """The whole group dies at once, Python's tracker of shared memory with it, as when the supervisor ends an engine."""
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert engine.stdout is not None
    name = engine.stdout.readline().strip()
    os.killpg(engine.pid, signal.SIGKILL)
    engine.wait()
    engine.stdout.close()
    segments = [Path("/dev/shm", each) for each in (name, "0123456789abcdef0123456789abcdef_g")]  # noqa: S108 - as above
    assert all(segment.exists() for segment in segments)
    assert Leftovers(tmp_path).sweep() == 2
    assert not any(segment.exists() for segment in segments)
    assert Leftovers(tmp_path).sweep() == 0


def test_only_names_of_such_segments_are_removed(tmp_path: Path) -> None:
    """The list lies in a directory that people write in."""
    shm = tmp_path / "shm"
    shm.mkdir()
    for name in ("psm_12ab34cd", "somebody-else", "../victim"):
        (shm / name).write_text("")
    (tmp_path / FILE).write_text("psm_12ab34cd somebody-else ../victim psm_gone")
    assert Leftovers(tmp_path, shm).sweep() == 1
    assert (shm / "somebody-else").exists()
    assert (tmp_path / "victim").exists()
    assert not (shm / "psm_12ab34cd").exists()


def test_segment_that_cannot_be_removed_stops_no_load(tmp_path: Path) -> None:
    """A directory, which nobody can unlink, stands for memory of another user's engine."""
    shm = tmp_path / "shm"
    (shm / "psm_12ab34cd").mkdir(parents=True)
    (tmp_path / FILE).write_text("psm_12ab34cd")
    assert Leftovers(tmp_path, shm).sweep() == 0


def test_no_list_and_a_torn_one_stop_nothing(tmp_path: Path) -> None:
    assert Leftovers(tmp_path).sweep() == 0
    (tmp_path / FILE).write_bytes(b"\xff\xfe")
    assert Leftovers(tmp_path).sweep() == 0


def test_what_is_mapped_is_written_down(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 rw-s 00000000 00:1a 5 /dev/shm/psm_12ab34cd\n"
        "7f02-7f03 rw-s 00000000 00:1a 6 /dev/shm/" + "ab" * 16 + "_ll\n"
        "7f02-7f03 rw-s 00000000 00:1a 7 /dev/shm/nvidia-something\n"
        "7f04-7f05 r-xp 00000000 08:01 9 /usr/lib/libc.so.6\n"
    )
    Leftovers(tmp_path / "new", maps=maps).note()
    assert (tmp_path / "new" / FILE).read_text().split() == sorted(["psm_12ab34cd", "ab" * 16 + "_ll"])
