"""Incidents on disk: implements `core.incidents.Incidents` over SQLite, in a thread of its own.

The disk never decides whether the daemon runs. Each incident is kept in memory first; what could not be written is tried
again with the next one, and a write that takes longer than `patience` is no longer waited for.
"""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from daemon.core.incidents import (
    ABANDON,
    CREATE,
    FILE_NAME,
    FORGET,
    MEANWHILE,
    NEWEST,
    SCHEMA_VERSION,
    SELECT,
    WRITE,
    IncidentClosed,
    IncidentGrew,
    IncidentOpened,
    IncidentRecord,
    grown,
    record_of,
    row_of,
)

_log = logging.getLogger("exl3d.incidents")

REMEMBERED = 256
"""Incidents kept in memory."""
PATIENCE = 2.0
"""Seconds that whoever acts waits for the disk."""
_T = TypeVar("_T")
_DAY = 86400.0
_BUSY_SECONDS = 1.0


def _words(problem: Exception) -> str:
    return str(problem) or "the disk does not answer"


def _look_at(future: asyncio.Future[_T]) -> None:
    """Nobody may be waiting any more for what comes late; asyncio would call its failure forgotten."""
    if not future.cancelled():
        future.exception()


class _Unusable(Exception):
    """The file is of a version that this daemon does not know."""


class _File:
    """The SQLite file. Every method but the constructor runs in the writer's thread and may raise sqlite3.Error or OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def open(self, now: float) -> int:
        """Make the file ready, end what an earlier life left open; the number of the newest incident comes back."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch(mode=0o640)
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            newest = self._prepare(connection, now)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return newest

    @staticmethod
    def _prepare(connection: sqlite3.Connection, now: float) -> int:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise _Unusable(f"its schema is version {version}, written by a newer exl3d")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(CREATE)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute(ABANDON, (now, MEANWHILE))
        (newest,) = connection.execute(NEWEST).fetchone()
        connection.execute("COMMIT")
        return int(newest)

    def write(self, records: list[IncidentRecord], older_than: float) -> None:
        """Write records durably, and forget what began before `older_than`."""
        connection = self._open()
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(WRITE, [row_of(record) for record in records])
            connection.execute(FORGET, (older_than,))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def read(self, limit: int) -> list[IncidentRecord]:
        """The latest records, newest first."""
        return [record_of(row) for row in self._open().execute(SELECT, (limit,))]

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.OperationalError("the file is not open")
        return self._connection


class IncidentStore:
    """See the module. `keep_days` is how long an incident stays; call `start` before anything else and `close` at the end."""

    def __init__(
        self,
        state_dir: Path,
        keep_days: float,
        *,
        patience: float = PATIENCE,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = state_dir / FILE_NAME
        self._file = _File(self._path)
        self._keep = keep_days * _DAY
        self._patience = patience
        self._wall = wall
        self._clock = clock
        self._writer = ThreadPoolExecutor(1, "exl3d-incidents")
        self._newest = 0
        self._usable = False
        self._failing = False
        self._records: dict[int, IncidentRecord] = {}
        self._began: dict[int, float] = {}
        """When an open incident began, on `clock`."""
        self._unwritten: set[int] = set()
        self._counts: Counter[str] = Counter()

    async def start(self) -> None:
        """Open the file. Where that fails, this life of the daemon keeps its incidents in memory."""
        try:
            self._newest = await self._in_writer(lambda: self._file.open(self._wall()))
        except (sqlite3.Error, OSError, _Unusable) as problem:
            _log.error("incidents are kept in memory only: %s cannot be used: %s", self._path, _words(problem))
            return
        self._usable = True

    async def close(self) -> None:
        """Write what is left and end the thread."""
        await self._write()
        with contextlib.suppress(TimeoutError):  # a disk that hangs keeps its file
            await self._in_writer(self._file.close)
        self._writer.shutdown(wait=False)

    async def opened(self, incident: IncidentOpened) -> int:
        """See core.incidents.Incidents."""
        self._newest += 1
        number = self._newest
        self._counts[incident.label] += 1
        self._began[number] = self._clock()
        self._keep_record(IncidentRecord(number, grown(incident, IncidentGrew())))
        _log.warning("incident %d (%s): %s", number, incident.label, incident.decided)
        await self._write()
        return number

    async def grew(self, number: int, more: IncidentGrew) -> None:
        """See core.incidents.Incidents."""
        record = self._records.get(number)
        if record is None or number not in self._began:
            return
        self._keep_record(replace(record, opened=grown(record.opened, more)))
        await self._write()

    async def closed(self, number: int, end: IncidentClosed) -> None:
        """See core.incidents.Incidents."""
        record = self._records.get(number)
        began = self._began.pop(number, None)
        if record is None or began is None:
            return
        self._keep_record(replace(record, closed=end, duration=self._clock() - began))
        _log.warning("incident %d ended: %s", number, end.outcome)
        await self._write()

    async def recent(self, limit: int) -> list[IncidentRecord]:
        """See core.incidents.Incidents."""
        known = dict(self._records)
        if self._usable:
            try:
                stored = await self._in_writer(lambda: self._file.read(limit))
            except (sqlite3.Error, OSError, msgspec.MsgspecError) as problem:
                self._say_failing(problem)
            else:
                known = {record.number: record for record in stored} | known
        return sorted(known.values(), key=lambda record: -record.number)[:limit]

    def counts(self) -> Mapping[str, int]:
        """See core.incidents.Incidents."""
        return dict(self._counts)

    def _keep_record(self, record: IncidentRecord) -> None:
        self._records[record.number] = record
        self._unwritten.add(record.number)
        while len(self._records) > REMEMBERED:
            oldest = next(iter(self._records))
            del self._records[oldest]
            self._began.pop(oldest, None)
            self._unwritten.discard(oldest)

    async def _write(self) -> None:
        if not self._usable or not self._unwritten:
            return
        records = [self._records[number] for number in sorted(self._unwritten)]
        older_than = self._wall() - self._keep
        try:
            await self._in_writer(lambda: self._file.write(records, older_than))
        except (sqlite3.Error, OSError) as problem:
            self._say_failing(problem)
            return
        self._unwritten -= {record.number for record in records if self._records.get(record.number) is record}
        if self._failing:
            self._failing = False
            _log.info("incidents can be written again")

    def _say_failing(self, problem: Exception) -> None:
        if not self._failing:
            self._failing = True
            _log.error("incidents are in memory only until %s can be used: %s", self._path, _words(problem))

    async def _in_writer(self, work: Callable[[], _T]) -> _T:
        """Do something in the writer's thread. Raises TimeoutError, an OSError, where that takes too long; it goes on there."""
        future = asyncio.get_running_loop().run_in_executor(self._writer, work)
        future.add_done_callback(_look_at)
        async with asyncio.timeout(self._patience):
            return await asyncio.shield(future)
