"""The kernel's messages from a journalctl that is a real process, and from something that reads like /dev/kmsg."""

import asyncio
import json
import logging
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.kernel_records import LONGEST_TEXT, LineSplitter, journal_record, kmsg_record
from daemon.core.senses import SenseState
from daemon.host.kernel_log import MOST_LINES, KernelGroup, KernelLog

XID = "NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=python, Ch 0000000b"
_FAKE = """#!/bin/sh
echo "$*" >> "$FAKE/arguments"
case "$*" in *--lines=1*)
    [ -e "$FAKE/complaint" ] && cat "$FAKE/complaint" >&2
    [ -e "$FAKE/newest" ] && cat "$FAKE/newest"
    exit 0;;
esac
n=$(ls "$FAKE" | grep -c '^run')
echo $$ > "$FAKE/run$n"
[ -e "$FAKE/follow$n" ] && cat "$FAKE/follow$n"
[ -e "$FAKE/last$n" ] || exit 1
exec sleep 600
"""


_REMOTE = shutil.which("systemd-journal-remote", path=f"/usr/lib/systemd:/lib/systemd:{os.environ['PATH']}")


def entry(message: object, cursor: str = "c", facility: str | None = "0", transport: str = "kernel", **more: object) -> bytes:
    """A line of `journalctl --output=json`."""
    fields = {"__CURSOR": cursor, "_TRANSPORT": transport, "MESSAGE": message, "PRIORITY": "3", **more}
    if facility is not None:
        fields["SYSLOG_FACILITY"] = facility
    return json.dumps(fields).encode() + b"\n"


def refused() -> int:
    raise PermissionError(1, "Operation not permitted")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the script of a journalctl that stands first on PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    script = programs / "journalctl"
    script.write_text(_FAKE)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    state = tmp_path / "fake"
    state.mkdir()
    monkeypatch.setenv("FAKE", str(state))
    (state / "newest").write_bytes(entry("misc dxg: old", "newest"))
    return state


class Heard(list[KernelGroup]):
    """What was handed on."""

    def lines(self) -> list[str]:
        return [line for group in self for line in group.lines.lines]


@asynccontextmanager
async def following(
    heard: Heard, kmsg: Callable[[], int] = refused, *, gather: float = 0.05
) -> AsyncGenerator[tuple[KernelLog, asyncio.Task[None]]]:
    log = KernelLog(heard.append, kmsg=kmsg, gather=gather, pauses=(0.01,))
    task = asyncio.create_task(log.run())
    try:
        yield log, task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_lines_of_the_kernel_come_together_and_nothing_else_comes(fake: Path) -> None:
    heard = Heard()
    (fake / "follow0").write_bytes(
        entry("misc dxg: one")
        + entry("written by a program to the kernel log", facility="3")
        + entry("without a facility", facility=None)
        + entry("CUDA error: from a log", transport="stdout")
        + entry(None)
        + b'{"__CURSOR": 7, "MESSAGE": {}}\n{"MESSA\n\xff\xfe\n[]\n\n'
        + entry(list("bytes \xff".encode("latin-1")))
        + entry(["twice", "in one entry"])
        + entry("x" * 2_000_000)
        + entry(XID)
    )
    (fake / "last0").touch()
    async with following(heard) as (log, _):
        await until(lambda: XID in heard.lines())
        assert log.sense().state is SenseState.WORKING
    assert heard.lines() == ["misc dxg: one", "bytes \ufffd", "twice", XID]


async def test_journalctl_that_ends_is_followed_up_behind_the_last_line(fake: Path) -> None:
    heard = Heard()
    (fake / "follow0").write_bytes(entry("one", "c1"))
    (fake / "follow1").write_bytes(entry("program", "c2", facility="1"))
    (fake / "follow2").write_bytes(entry("two", "c3"))
    (fake / "last2").touch()
    async with following(heard):
        await until(lambda: "two" in heard.lines())
    assert heard.lines() == ["one", "two"]
    asked = [line.split("=")[-2].split()[0] for line in (fake / "arguments").read_text().splitlines() if "after-cursor" in line]
    assert asked == ["newest", "c1", "c2"]


async def test_child_ends_with_the_follower(fake: Path) -> None:
    heard = Heard()
    (fake / "last0").touch()
    (fake / "follow0").write_bytes(entry(XID))
    async with following(heard):
        await until(lambda: XID in heard.lines())
        child = int((fake / "run0").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


async def test_child_with_unread_output_ends_with_the_follower(fake: Path) -> None:
    """A flood that nobody reads any more must not keep the end waiting."""
    heard = Heard()
    (fake / "follow0").write_bytes(b"".join(entry(f"line {n}") for n in range(20000)))
    async with following(heard):
        await until(lambda: len(heard) > 2)
        child = int((fake / "run0").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


async def test_burst_of_equal_lines_is_one_line_and_a_flood_comes_in_pieces(fake: Path) -> None:
    heard = Heard()
    flood = [f"line {n}" for n in range(3 * MOST_LINES)]
    (fake / "follow0").write_bytes(entry(XID) * 5000 + b"".join(entry(line) for line in flood))
    (fake / "last0").touch()
    async with following(heard, gather=0.5):
        await until(lambda: flood[-1] in heard.lines())
    assert sum(line == XID for line in heard.lines()) <= len(heard)
    assert [line for line in heard.lines() if line != XID] == flood
    assert max(len(group.lines.lines) for group in heard) <= MOST_LINES


async def test_group_carries_the_time_of_its_last_line_unless_that_is_absurd(fake: Path) -> None:
    heard = Heard()
    then = time.monotonic() - 3
    early, late = (str(int(at * 1e6)) for at in (then - 1, then))
    (fake / "follow0").write_bytes(entry("early", __MONOTONIC_TIMESTAMP=early) + entry("late", __MONOTONIC_TIMESTAMP=late))
    (fake / "last0").touch()
    async with following(heard, gather=0.3):
        await until(lambda: "late" in heard.lines())
    assert abs(heard[-1].t - then) < 0.001


async def test_time_of_a_line_that_cannot_be_is_replaced_by_now(fake: Path) -> None:
    heard = Heard()
    began = time.monotonic()
    (fake / "follow0").write_bytes(entry("future", __MONOTONIC_TIMESTAMP=str(10**17)))
    (fake / "follow1").write_bytes(entry("ancient", __MONOTONIC_TIMESTAMP="1"))
    (fake / "follow2").write_bytes(entry("nonsense", __MONOTONIC_TIMESTAMP="x"))
    (fake / "last2").touch()
    async with following(heard):
        await until(lambda: "nonsense" in heard.lines())
    assert all(began <= group.t <= time.monotonic() for group in heard)


async def test_neither_journal_nor_kmsg_is_said_once(fake: Path, caplog: pytest.LogCaptureFixture) -> None:
    (fake / "newest").unlink()
    (fake / "complaint").write_text("No journal files were opened due to insufficient permissions.\n")
    heard = Heard()
    with caplog.at_level(logging.INFO, "exl3d.watchdog"):
        async with following(heard) as (log, task):
            await task
    assert log.sense().state is SenseState.ABSENT
    assert "insufficient permissions" in log.sense().words
    assert "systemd-journal" in log.sense().words
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_system_without_journalctl_uses_kmsg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.settimeout(0)
    heard = Heard()
    with ours:
        async with following(heard, theirs.detach) as (log, task):
            for record in (
                b"3,100,5000000,-;misc dxg: dxgk: one\n SUBSYSTEM=misc\n DEVICE=c10:122\n",
                b"12,101,5000001,-;a program's\n",
                b"no record at all",
                b"4,102,5000002,-;NVRM: \\x4eame\n",
            ):
                ours.send(record)
            await until(lambda: len(heard.lines()) == 2)
            assert log.sense().words == "/dev/kmsg"
            ours.close()
            await task
            assert log.sense().state is SenseState.ABSENT
    assert heard.lines() == ["misc dxg: dxgk: one", "NVRM: Name"]


async def test_journal_without_kernel_messages_is_followed_from_now_on(fake: Path) -> None:
    (fake / "newest").unlink()
    (fake / "follow0").write_bytes(entry(XID))
    (fake / "last0").touch()
    heard = Heard()
    async with following(heard):
        await until(lambda: XID in heard.lines())
    assert "--lines=0" in (fake / "arguments").read_text().splitlines()[-1]


def _write_journal(directory: Path, message: str, n: int) -> None:
    """Append to a journal as journald would keep it: `message`, in its `n`th microsecond."""
    assert _REMOTE is not None
    export = (
        f"__REALTIME_TIMESTAMP={1700000000000000 + n}\n__MONOTONIC_TIMESTAMP={1000000 + n}\n_BOOT_ID={'0' * 31}1\n"
        f"_TRANSPORT=kernel\nSYSLOG_FACILITY=0\nPRIORITY=3\nMESSAGE={message}\n\n"
    ).encode()
    directory.mkdir(exist_ok=True)
    subprocess.run([_REMOTE, f"--output={directory / 'system.journal'}", "-"], input=export, check=True, capture_output=True)


@pytest.mark.skipif(
    _REMOTE is None or shutil.which("journalctl") is None,
    reason="building a journal needs systemd-journal-remote (Debian package systemd-journal-remote) and journalctl",
)
async def test_real_journalctl_is_followed_behind_its_newest_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = tmp_path / "journal"
    await asyncio.to_thread(_write_journal, journal, "misc dxg: old", 0)
    programs = tmp_path / "bin"
    programs.mkdir()
    script = programs / "journalctl"
    script.write_text(f'#!/bin/sh\nexec {shutil.which("journalctl")} --directory={journal} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    heard = Heard()
    async with following(heard) as (log, _):
        await until(lambda: log.sense().state is SenseState.WORKING)
        await asyncio.to_thread(_write_journal, journal, XID, 1)
        await until(lambda: XID in heard.lines())
    assert heard.lines() == [XID]


@given(st.binary(max_size=300))
def test_any_bytes_are_taken_apart_without_an_error(data: bytes) -> None:
    for record in (journal_record(data), kmsg_record(data)):
        assert record is None or len(record.text) <= LONGEST_TEXT


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(), st.lists, max_leaves=8))
def test_any_json_message_is_taken_without_an_error(message: object) -> None:
    record = journal_record(entry(message))
    assert record is None or isinstance(record.text, str)


@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=20), st.integers(1, 30))
def test_lines_are_the_same_however_they_are_cut(lines: list[bytes], size: int) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter(30)
    cut = [line for at in range(0, len(stream), size) for line in splitter.feed(stream[at : at + size])]
    assert cut == [line for line in lines if len(line) <= 30]
