"""Tokens of the day on disk."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from daemon.core.quota import ADD, CREATE, DAY_SECONDS, FILE_NAME, KEEP_DAYS
from daemon.host import quota_store
from daemon.host.quota_store import QuotaStore

TODAY = 20_000
NOON = TODAY * DAY_SECONDS + 43_200.0


@asynccontextmanager
async def store(directory: Path, now: float = NOON) -> AsyncGenerator[QuotaStore]:
    made = QuotaStore(directory, lambda: now)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def rows(directory: Path) -> list[tuple[str, int, int]]:
    connection = sqlite3.connect(directory / FILE_NAME)
    try:
        return sorted(connection.execute("SELECT owner, day, tokens FROM spent"))
    finally:
        connection.close()


async def test_count_survives_a_restart_and_goes_on(tmp_path: Path) -> None:
    async with store(tmp_path) as first:
        first.add("ann", TODAY, 10)
        first.add("bob", TODAY, 1)
        first.add("ann", TODAY, 5)
        assert first.spent("ann", TODAY) == 15
    async with store(tmp_path) as second:
        assert second.spent("ann", TODAY) == 15
        assert second.spent("eve", TODAY) == 0
        second.add("ann", TODAY, 1)
        assert second.spent("ann", TODAY) == 16
    assert await asyncio.to_thread(rows, tmp_path) == [("ann", TODAY, 16), ("bob", TODAY, 1)]
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


async def test_new_day_counts_anew_and_long_past_ones_are_forgotten(tmp_path: Path) -> None:
    async with store(tmp_path) as first:
        first.add("ann", TODAY, 10)
    async with store(tmp_path, NOON + DAY_SECONDS) as second:
        assert second.spent("ann", TODAY + 1) == 0
        assert second.spent("ann", TODAY) == 10
    async with store(tmp_path, NOON + (KEEP_DAYS + 1) * DAY_SECONDS):
        pass
    assert await asyncio.to_thread(rows, tmp_path) == []


async def test_written_a_moment_later_without_being_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_store, "WRITE_SECONDS", 0.005)
    async with store(tmp_path) as made:
        running = asyncio.create_task(made.run())
        made.add("ann", TODAY, 7)
        deadline = time.monotonic() + 60
        while not await asyncio.to_thread(rows, tmp_path):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.wait([running])


async def test_damaged_file_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"this is no database at all, whatever its name says" * 100)
    async with store(tmp_path) as made:
        made.add("ann", TODAY, 7)
    assert await asyncio.to_thread(rows, tmp_path) == [("ann", TODAY, 7)]
    assert "was put aside" in caplog.text


def occupied(directory: Path) -> sqlite3.Connection:
    """The file with a count in it, held by somebody who does not let anybody write."""
    connection = sqlite3.connect(directory / FILE_NAME, isolation_level=None, check_same_thread=False)
    connection.execute(CREATE)
    connection.execute(ADD, ("ann", TODAY, 100))
    connection.execute("BEGIN EXCLUSIVE")
    return connection


async def test_count_goes_on_in_memory_until_the_file_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And what the file knew from before is added then."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(quota_store, "_BUSY_SECONDS", 0.01)
    other = await asyncio.to_thread(occupied, tmp_path)
    async with store(tmp_path) as made:
        made.add("ann", TODAY, 1)
        await made.start()
        assert made.spent("ann", TODAY) == 1
        assert caplog.text.count("counted in memory") == 1
        await asyncio.to_thread(other.close)
        await made.start()
        assert made.spent("ann", TODAY) == 101
        assert "can be written again" in caplog.text
    assert await asyncio.to_thread(rows, tmp_path) == [("ann", TODAY, 101)]
