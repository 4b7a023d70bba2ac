"""Reads the file of incidents where no daemon runs that could be asked. Never writes."""

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import msgspec

from daemon.core.incidents import FILE_NAME, SCHEMA_VERSION, SELECT, IncidentRecord, record_of
from ops.errors import NotUnderstood


def read_incidents(state: Path, limit: int) -> list[IncidentRecord] | None:
    """The newest incidents in a state directory, newest first; None where none was ever written. Raises NotUnderstood."""
    path = state / FILE_NAME
    if not path.exists():
        return None
    wal = Path(f"{path}-wal")
    # Without a write-ahead log nothing need be locked, and nothing is left behind in a directory that may be another user's.
    how = "mode=ro" if wal.exists() and wal.stat().st_size else "immutable=1"
    try:
        return _read(path, how, limit)
    except sqlite3.OperationalError as problem:
        raise NotUnderstood(f"{path} cannot be read ({problem}); run exl3ctl as the user that runs exl3d") from problem
    except (sqlite3.Error, msgspec.MsgspecError) as problem:
        raise NotUnderstood(f"{path} does not hold incidents: {problem}") from problem


def _read(path: Path, how: str, limit: int) -> list[IncidentRecord]:
    with closing(sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise NotUnderstood(f"{path} was written by a newer exl3d; use its exl3ctl")
        return [record_of(row) for row in connection.execute(SELECT, (limit,))]
