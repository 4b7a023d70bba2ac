"""`exl3ctl incidents`: from a running daemon, and from what the last one wrote."""

import json
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

from daemon.core.incidents import FILE_NAME, IncidentClosed, IncidentOpened, IncidentRecord
from daemon.host.incident_store import IncidentStore
from ops.commands.incidents import incidents
from ops.errors import NotRunning, NotUnderstood
from tests.ops.exl3ctl import daemon_saying

HANG = IncidentOpened(
    1_790_000_000.0,
    0,
    3,
    "engine_hang",
    "process_restart",
    ("no progress in decode for 61 s",),
    "the engine is ended and a new one started",
)
SERVED = IncidentClosed(1_790_000_008.5, "the next engine serves", (7.9, 8.25, 8.1), 12345)
LOST = IncidentOpened(1_790_000_100.0, None, None, "dxgkrnl_gpu_lost", "wsl_shutdown", ("-19",) * 10, "run `wsl.exe --shutdown`")


def local(t_wall: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t_wall))


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Result]:
    app = typer.Typer()
    app.command()(incidents)

    def call(*arguments: str) -> Result:
        environment = {"NO_COLOR": "1", "COLUMNS": "120", "HOME": str(tmp_path)}
        return CliRunner().invoke(app, ["--state-dir", str(tmp_path), *arguments], env=environment)

    return call


async def written(state: Path, *, closed: bool = True) -> None:
    """What a daemon wrote before it ended."""
    store = IncidentStore(state, 3650, patience=60, wall=lambda: 1_790_000_200.0)
    await store.start()
    number = await store.opened(HANG)
    if closed:
        await store.closed(number, SERVED)
    await store.opened(LOST)
    await store.close()


def test_running_daemon_is_asked(tmp_path: Path, run: Callable[..., Result]) -> None:
    records = [IncidentRecord(2, LOST), IncidentRecord(1, HANG, SERVED, 8.5)]
    with daemon_saying({"GET /incidents?limit=10": (200, msgspec.json.encode(records))}, tmp_path):
        shown = run()
        as_json = run("--json")
    assert shown.exit_code == 0
    for words in (
        f"#1  {local(HANG.t_wall)}  engine hang → process restart  engine 0, start 3",
        "no progress in decode for 61 s",
        "the engine is ended and a new one started",
        "the next engine serves, after 8.5 s",
        "3 requests waited at most 8.2 s, 12,345 prompt tokens were prefilled again",
        f"#2  {local(LOST.t_wall)}  dxgkrnl gpu lost → wsl shutdown  the machine",
        "run `wsl.exe --shutdown`",
        "and 4 more",
        "not yet",
    ):
        assert words in shown.stdout
    assert msgspec.json.decode(as_json.stdout, type=list[IncidentRecord]) == records


async def test_without_a_daemon_its_file_is_read(tmp_path: Path, run: Callable[..., Result]) -> None:
    await written(tmp_path)
    shown = run()
    assert shown.exit_code == 0
    assert "the next engine serves" in shown.stdout
    assert "the daemon ended meanwhile" in shown.stdout
    assert [record["number"] for record in json.loads(run("--json", "--limit", "1").stdout)] == [2]


async def test_reading_leaves_nothing_behind(tmp_path: Path, run: Callable[..., Result]) -> None:
    """The directory may be another user's, who could not write to what we made there."""
    await written(tmp_path)
    assert run().exit_code == 0
    assert os.listdir(tmp_path) == [FILE_NAME]  # noqa: PTH208 - names are wanted


async def test_file_of_a_daemon_that_was_killed_is_read(tmp_path: Path, run: Callable[..., Result]) -> None:
    """Its last incidents stand in the write-ahead log alone."""
    await written(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as killed:
        killed.execute("UPDATE incidents SET decided = 'in the log alone' WHERE number = 1")
        killed.commit()
        shown = run()
    assert "in the log alone" in shown.stdout


def test_neither_daemon_nor_file_is_said(run: Callable[..., Result]) -> None:
    assert isinstance(run().exception, NotRunning)


@pytest.mark.parametrize("content", [b"no database" * 200, b""])
def test_file_that_holds_no_incidents_is_said(tmp_path: Path, run: Callable[..., Result], content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert isinstance(run().exception, NotUnderstood)


def test_file_of_a_newer_version_is_said(tmp_path: Path, run: Callable[..., Result]) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("PRAGMA user_version = 99")
    problem = run().exception
    assert isinstance(problem, NotUnderstood)
    assert "newer" in str(problem)


async def test_no_incidents_are_good_news(tmp_path: Path, run: Callable[..., Result]) -> None:
    store = IncidentStore(tmp_path, 90, patience=60)
    await store.start()
    await store.close()
    assert run().stdout == "no incidents\n"
    assert run("--json").stdout == "[]\n"
