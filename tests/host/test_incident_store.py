"""Incidents on disk: durable before anything is done, and never in the daemon's way."""

import asyncio
import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from daemon.core.incidents import (
    FILE_NAME,
    MAX_SEEN,
    MEANWHILE,
    SELECT,
    IncidentClosed,
    IncidentGrew,
    IncidentOpened,
    IncidentRecord,
    record_of,
)
from daemon.host import incident_store
from daemon.host.incident_store import IncidentStore


class Clock:
    """Time that stands until it is moved."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def incident(label: str = "engine_hang", t_wall: float = 1000.0, seen: tuple[str, ...] = ("no progress",)) -> IncidentOpened:
    return IncidentOpened(t_wall, 0, 3, label, "process_restart", seen, "the engine is restarted")


def on_disk(state: Path) -> list[IncidentRecord]:
    """What another process sees."""
    with closing(sqlite3.connect(f"file:{state / FILE_NAME}?mode=ro", uri=True)) as connection:
        return [record_of(row) for row in connection.execute(SELECT, (100,))]


async def test_opened_incident_is_on_disk_when_opened_returns(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path, 90, patience=60, wall=Clock(1000))
    await store.start()
    number = await store.opened(incident())
    assert on_disk(tmp_path) == [IncidentRecord(number, incident())]
    await store.close()


async def test_incident_that_grew_and_closed_is_read_back_whole(tmp_path: Path) -> None:
    clock = Clock(50)
    store = IncidentStore(tmp_path, 90, patience=60, wall=Clock(1000), clock=clock)
    await store.start()
    number = await store.opened(incident())
    await store.grew(number, IncidentGrew(("Xid 79",), remedy="host_reboot"))
    clock.now = 57.5
    end = IncidentClosed(1002.0, "the next engine serves", (7.1, 7.25), 4096)
    await store.closed(number, end)
    [record] = await store.recent(10)
    assert record.opened.seen == ("no progress", "Xid 79")
    assert (record.opened.label, record.opened.remedy) == ("engine_hang", "host_reboot")
    assert (record.closed, record.duration) == (end, 7.5)
    assert on_disk(tmp_path) == [record]
    await store.close()


async def test_closed_incident_neither_grows_nor_closes_again(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path, 90, patience=60, wall=Clock(1000))
    await store.start()
    number = await store.opened(incident())
    await store.closed(number, IncidentClosed(1001.0, "first"))
    await store.closed(number, IncidentClosed(1002.0, "second"))
    await store.grew(number, IncidentGrew(("late",)))
    await store.closed(number + 5, IncidentClosed(1002.0, "unknown"))
    [record] = await store.recent(10)
    assert record.closed == IncidentClosed(1001.0, "first")
    assert record.opened.seen == ("no progress",)
    await store.close()


async def test_next_life_goes_on_counting_and_says_that_the_daemon_ended_meanwhile(tmp_path: Path) -> None:
    first = IncidentStore(tmp_path, 90, patience=60, wall=Clock(1000))
    await first.start()
    await first.opened(incident())
    await first.close()
    second = IncidentStore(tmp_path, 90, patience=60, wall=Clock(2000))
    await second.start()
    number = await second.opened(incident("cuda_oom", 2000.0))
    newest, oldest = await second.recent(10)
    assert (newest.number, newest.closed) == (number, None)
    assert oldest.number == number - 1
    assert oldest.closed == IncidentClosed(2000.0, MEANWHILE)
    assert oldest.duration is None
    assert second.counts() == {"cuda_oom": 1}
    await second.close()


async def test_old_incidents_are_forgotten_and_open_ones_kept(tmp_path: Path) -> None:
    wall = Clock(1000)
    store = IncidentStore(tmp_path, 1, patience=60, wall=wall)
    await store.start()
    old = await store.opened(incident())
    still_open = await store.opened(incident())
    await store.closed(old, IncidentClosed(1001.0, "over"))
    wall.now += 3 * 86400
    new = await store.opened(incident(t_wall=wall.now))
    assert [record.number for record in on_disk(tmp_path)] == [new, still_open]
    await store.close()


async def test_limit_gives_the_newest_first(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path, 90, patience=60, wall=Clock(1000))
    await store.start()
    for _ in range(5):
        await store.opened(incident())
    assert [record.number for record in await store.recent(2)] == [5, 4]
    await store.close()


async def test_evidence_of_a_storm_is_bounded(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path, 90, patience=60, wall=Clock(1000))
    await store.start()
    number = await store.opened(incident(seen=tuple(str(n) for n in range(1000))))
    await store.grew(number, IncidentGrew(("more",) * 1000))
    [record] = on_disk(tmp_path)
    assert len(record.opened.seen) == MAX_SEEN
    await store.close()


async def _broken(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A store that cannot use its file keeps incidents in memory and says so once."""
    store = IncidentStore(state, 90, patience=60, wall=Clock(1000))
    with caplog.at_level(logging.ERROR, "exl3d.incidents"):
        await store.start()
        number = await store.opened(incident())
        await store.closed(number, IncidentClosed(1001.0, "over"))
        [record] = await store.recent(10)
    assert record.closed == IncidentClosed(1001.0, "over")
    assert store.counts() == {"engine_hang": 1}
    assert [message.levelno for message in caplog.records].count(logging.ERROR) == 1
    await store.close()


async def test_file_that_is_no_database_leaves_incidents_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database, not at all" * 100)
    await _broken(tmp_path, caplog)
    assert (tmp_path / FILE_NAME).read_bytes().startswith(b"not a database")


async def test_state_directory_that_is_a_file_leaves_incidents_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("a file")
    await _broken(tmp_path / "state", caplog)


async def test_file_of_a_newer_version_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("PRAGMA user_version = 99")
    await _broken(tmp_path, caplog)
    assert "newer exl3d" in caplog.text


async def test_full_disk_is_said_once_and_written_when_there_is_room_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite itself is made to run out of pages: the same error as a full disk."""
    limited: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def small(path: Path, timeout: float, isolation_level: None) -> sqlite3.Connection:
        connection = connect(path, timeout=timeout, isolation_level=isolation_level)
        limited.append(connection)
        return connection

    monkeypatch.setattr(incident_store.sqlite3, "connect", small)
    store = IncidentStore(tmp_path, 90, patience=60, wall=Clock(1000))
    await store.start()
    monkeypatch.undo()
    writer = store._writer  # pyright: ignore[reportPrivateUsage] - the connection belongs to that thread
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(writer, lambda: limited[0].execute("PRAGMA max_page_count = 4"))
    big = ("x" * 3000,) * 8
    with caplog.at_level(logging.ERROR, "exl3d.incidents"):
        await store.opened(incident(seen=big))
        await store.opened(incident(seen=big))
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 1
    assert [record.number for record in await store.recent(10)] == [2, 1]
    assert on_disk(tmp_path) == []
    await loop.run_in_executor(writer, lambda: limited[0].execute("PRAGMA max_page_count = 100000"))
    await store.opened(incident(seen=big))
    assert [record.number for record in on_disk(tmp_path)] == [3, 2, 1]
    await store.close()


async def test_hung_disk_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = IncidentStore(tmp_path, 90, patience=60, wall=Clock(1000))
    await store.start()
    store._patience = 0.05  # pyright: ignore[reportPrivateUsage] - only from now on, however slow this machine is
    release = threading.Event()
    blocked = asyncio.get_running_loop().run_in_executor(store._writer, release.wait)  # pyright: ignore[reportPrivateUsage]
    with caplog.at_level(logging.ERROR, "exl3d.incidents"):
        number = await store.opened(incident())
    assert "does not answer" in caplog.text
    assert [record.number for record in await store.recent(5)] == [number]
    release.set()
    await blocked
    store._patience = 60  # pyright: ignore[reportPrivateUsage]
    await store.close()
    assert [record.number for record in on_disk(tmp_path)] == [number]
