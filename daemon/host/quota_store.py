"""Tokens of each person, day by day, in SQLite: implements `ports.TokenLedger`.

Counting is addition in memory; once a second what has come together is written in a thread of its own, so that no answer waits
for the disk and a daemon that is killed forgets a second at most. A file that cannot be written is tried again: the count goes on
in memory meanwhile. A damaged file is put aside, and the count begins anew.
"""

import asyncio
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from daemon.core.quota import ADD, CREATE, FILE_NAME, FORGET, KEEP_DAYS, SINCE, day_of

_log = logging.getLogger("exl3d.people")

WRITE_SECONDS = 1.0
"""Between two writes."""
_BUSY_SECONDS = 5.0
_MODE = 0o600
_DAMAGED = ".damaged"

_Count = tuple[str, int]
"""A person and a day."""


class QuotaStore:
    """See the module. Call `start` first, let `run` run, and `close` at the end; `now` is wall-clock time."""

    def __init__(self, state_dir: Path, now: Callable[[], float] = time.time) -> None:
        self._path = state_dir / FILE_NAME
        self._now = now
        self._thread = ThreadPoolExecutor(1, "exl3d-tokens")
        self._connection: sqlite3.Connection | None = None
        self._spent: Counter[_Count] = Counter()
        self._pending: Counter[_Count] = Counter()
        self._failing = False

    def spent(self, owner: str, day: int) -> int:
        """See TokenLedger."""
        return self._spent[owner, day]

    def add(self, owner: str, day: int, tokens: int) -> None:
        """See TokenLedger."""
        self._spent[owner, day] += tokens
        self._pending[owner, day] += tokens

    async def start(self) -> None:
        """Read what was counted before. Never raises for a bad file: the log says what became of it."""
        await self._write()

    async def run(self) -> None:
        """Write once a second until cancelled."""
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            if self._pending:
                await self._write()

    async def close(self) -> None:
        """Write the rest and let go of the file."""
        if self._pending:
            await self._write()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._let_go)
        self._thread.shutdown(wait=False)

    async def _write(self) -> None:
        today = day_of(self._now())
        pending, self._pending = self._pending, Counter()
        try:
            work = asyncio.get_running_loop().run_in_executor(self._thread, self._store, pending, today)
            earlier = await asyncio.shield(work)  # whoever is cancelled here leaves a write that goes on
        except (sqlite3.Error, OSError) as problem:
            self._pending.update(pending)
            if not self._failing:
                _log.error(
                    "%s cannot be written (%s): tokens are counted in memory until it can", self._path, problem
                )  # the words say it all
            self._failing = True
            return
        if self._failing:
            _log.info("%s can be written again", self._path)
        self._failing = False
        self._spent.update(earlier)
        for owner, day in [count for count in self._spent if count[1] < today - 1]:
            del self._spent[owner, day]

    # --- in the thread ---

    def _store(self, pending: Mapping[_Count, int], today: int) -> Mapping[_Count, int]:
        """Write, and give what the file held before this process began to count, where it is opened only now."""
        earlier: dict[_Count, int] = {}
        connection = self._connection
        if connection is None:
            connection = self._open()
            earlier = {(owner, day): tokens for owner, day, tokens in connection.execute(SINCE, (today - 1,))}
            self._connection = connection
        with connection:
            connection.executemany(ADD, [(owner, day, tokens) for (owner, day), tokens in pending.items()])
            connection.execute(FORGET, (today - KEEP_DAYS,))
        return earlier

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return self._prepared()
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as problem:
            aside = self._path.with_name(FILE_NAME + _DAMAGED)
            self._path.replace(aside)
            _log.error(
                "%s is damaged (%s) and was put aside as %s: tokens of today count anew", self._path, problem, aside.name
            )  # the words say it all
            return self._prepared()

    def _prepared(self) -> sqlite3.Connection:
        self._path.touch(mode=_MODE)
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS)
        try:
            connection.execute(CREATE)
        except BaseException:
            connection.close()
            raise
        return connection

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
