"""Incidents: what went wrong, what was decided, how it ended, and what it cost people. Values, the port and the rows.

An incident is opened durably before anything is done about it, because the machine may be gone a moment later, and closed
when the engine serves again or nobody waits any more. `host/incident_store.py` keeps them in SQLite; `exl3ctl incidents`
reads the same file where no daemon runs. Nothing here opens it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

FILE_NAME = "incidents.sqlite3"
"""Within the state directory."""
MAX_SEEN = 64
"""Pieces of evidence an incident keeps; the first ones say most."""
SCHEMA_VERSION = 1
"""Kept in SQLite's `user_version`. A file of a newer version is left alone."""
MEANWHILE = "the daemon ended meanwhile"
"""Outcome of an incident that was open when its daemon ended."""


@dataclass(frozen=True, slots=True)
class IncidentOpened:
    """Something went wrong, and this is about to be done."""

    t_wall: float
    """Seconds since the epoch, for people; durations are measured by the store's own clock."""
    engine: int | None
    """Number of the engine; None: the machine, or no engine in particular."""
    boot: int | None
    """Which life of that engine."""
    label: str
    """What kind of thing was seen: a `faults_values.Label` value, or `degraded`."""
    remedy: str
    """What would cure it: a `faults_values.Remedy` name, lower case."""
    seen: tuple[str, ...]
    """The evidence: log lines, codes, exit codes. Never text from a prompt."""
    decided: str
    """One sentence: what is done, or which command a person should give."""


@dataclass(frozen=True, slots=True)
class IncidentGrew:
    """More was seen of an open incident. `label`, `remedy` and `decided` replace what stood there, where they are given."""

    seen: tuple[str, ...] = ()
    label: str | None = None
    remedy: str | None = None
    decided: str | None = None


@dataclass(frozen=True, slots=True)
class IncidentClosed:
    """How an incident ended."""

    t_wall: float
    outcome: str
    """One sentence."""
    waited: tuple[float, ...] = ()
    """Seconds each waiting request was paused."""
    reprefilled: int = 0
    """Prompt tokens that had to be prefilled again."""


@dataclass(frozen=True, slots=True)
class IncidentRecord:
    """An incident as it is shown. JSON of this is what `exl3ctl incidents --json` and the admin API print."""

    number: int
    opened: IncidentOpened
    closed: IncidentClosed | None = None
    """None while it is open."""
    duration: float | None = None
    """Seconds from opening to closing; None while it is open, or where the daemon ended meanwhile."""


class Incidents(Protocol):
    """Where incidents are written. Nothing here raises because of the disk: what cannot be written is kept in memory."""

    async def opened(self, incident: IncidentOpened) -> int:
        """Write a new incident and give it a number. Durable when this returns, if the disk allows."""
        ...

    async def grew(self, number: int, more: IncidentGrew) -> None:
        """Add to an incident that is still open; a closed or unknown one stays as it is."""
        ...

    async def closed(self, number: int, end: IncidentClosed) -> None:
        """Write how it ended. The first end counts."""
        ...

    async def recent(self, limit: int) -> list[IncidentRecord]:
        """The latest incidents, newest first."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Incidents opened since this daemon started, by the label they were opened with, for metrics."""
        ...


# --- rows -----------------------------------------------------------------------------------------------------------

CREATE = """
CREATE TABLE IF NOT EXISTS incidents (
    number INTEGER PRIMARY KEY,
    began REAL NOT NULL,
    engine INTEGER,
    boot INTEGER,
    label TEXT NOT NULL,
    remedy TEXT NOT NULL,
    seen TEXT NOT NULL,
    decided TEXT NOT NULL,
    ended REAL,
    outcome TEXT,
    waited TEXT NOT NULL DEFAULT '[]',
    reprefilled INTEGER NOT NULL DEFAULT 0,
    duration REAL
) STRICT
"""
"""`seen` and `waited` hold JSON arrays. An incident is open while `ended` is NULL."""
_COLUMNS = "number, began, engine, boot, label, remedy, seen, decided, ended, outcome, waited, reprefilled, duration"
WRITE = f"INSERT OR REPLACE INTO incidents ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - constants of this file
SELECT = f"SELECT {_COLUMNS} FROM incidents ORDER BY number DESC LIMIT ?"  # noqa: S608 - as WRITE
NEWEST = "SELECT coalesce(max(number), 0) FROM incidents"
ABANDON = "UPDATE incidents SET ended = ?, outcome = ? WHERE ended IS NULL"
"""What an earlier life of the daemon left open. `ended` is when that was noticed; how long it took is not known."""
FORGET = "DELETE FROM incidents WHERE began < ? AND ended IS NOT NULL"


class _Row(msgspec.Struct, array_like=True, frozen=True):
    """A row of `SELECT`: checked before it is believed."""

    number: int
    began: float
    engine: int | None
    boot: int | None
    label: str
    remedy: str
    seen: str
    decided: str
    ended: float | None
    outcome: str | None
    waited: str
    reprefilled: int
    duration: float | None


def _json(values: tuple[str, ...] | tuple[float, ...]) -> str:
    return msgspec.json.encode(values).decode()


def row_of(record: IncidentRecord) -> tuple[int | float | str | None, ...]:
    """Parameters of `WRITE`."""
    began, end = record.opened, record.closed
    head = (record.number, began.t_wall, began.engine, began.boot, began.label, began.remedy, _json(began.seen), began.decided)
    if end is None:
        return (*head, None, None, "[]", 0, None)
    return (*head, end.t_wall, end.outcome, _json(end.waited), end.reprefilled, record.duration)


def record_of(row: Sequence[object]) -> IncidentRecord:
    """The incident in a row of `SELECT`. Raises `msgspec.MsgspecError` for anything else."""
    fields = msgspec.convert(row, _Row)
    seen = msgspec.json.decode(fields.seen, type=tuple[str, ...])
    opened = IncidentOpened(fields.began, fields.engine, fields.boot, fields.label, fields.remedy, seen, fields.decided)
    if fields.ended is None:
        return IncidentRecord(fields.number, opened)
    waited = msgspec.json.decode(fields.waited, type=tuple[float, ...])
    end = IncidentClosed(fields.ended, fields.outcome or "", waited, fields.reprefilled)
    return IncidentRecord(fields.number, opened, end, fields.duration)


def grown(incident: IncidentOpened, more: IncidentGrew) -> IncidentOpened:
    """The incident with what was seen since."""
    return replace(
        incident,
        label=more.label or incident.label,
        remedy=more.remedy or incident.remedy,
        seen=(*incident.seen, *more.seen)[:MAX_SEEN],
        decided=more.decided or incident.decided,
    )
