"""Everybody in one table: who they are, where that stands, their limits, their tokens of today."""

import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from daemon.core.people import LOCAL, Person, StoredPerson, merge
from daemon.core.quota import FILE_NAME, SINCE, day_of
from daemon.core.settings import Settings


class PersonRow(msgspec.Struct, frozen=True):
    """One person, as `exl3ctl user list --json` tells of them."""

    name: str
    sources: list[str]
    """config, state, or both: where their keys and limits stand."""
    keys: list[str]
    """The beginning of each key that exl3d made, `exl3d-TAG`; one that a person chose has only its number here."""
    limits: Person
    tokens_today: int


def rows_of(settings: Settings, stored: Sequence[StoredPerson], state: Path) -> list[PersonRow]:
    """Everybody who has a key or limits, in order of name."""
    people = merge(settings.keys, settings.people, settings.sharing, stored)
    kept = {person.limits.name for person in stored}
    configured = {key.name for key in settings.keys} | {person.name for person in settings.people}
    today = _today(state)
    return [
        PersonRow(
            name=name,
            sources=[word for word, names in (("config", configured), ("state", kept)) if name in names],
            keys=[f"exl3d-{key.hash.salt[:4].hex()}" for key in people.keys if key.owner == name],
            limits=people.of(name),
            tokens_today=today.get(name, 0),
        )
        for name in sorted(kept | configured | ({LOCAL} & today.keys()))
    ]


def _today(state: Path) -> Mapping[str, int]:
    """Tokens of today by name; none where nothing was counted yet, or where it may not be read."""
    path = state / FILE_NAME
    if not path.exists():
        return {}
    day = day_of(time.time())
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return {owner: tokens for owner, when, tokens in connection.execute(SINCE, (day,)) if when == day}
    except sqlite3.Error:
        return {}


def people_table(rows: Sequence[PersonRow]) -> Table:
    """For a terminal."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", style="bold")
    table.add_column("keys")
    for title in ("weight", "guaranteed", "context", "at once", "queued", "tokens today"):
        table.add_column(title, justify="right")
    table.add_column("from", style="dim")
    for row in rows:
        limits = row.limits
        quota = "" if limits.tokens_per_day is None else f" of {limits.tokens_per_day:,}"
        table.add_row(
            row.name if limits.role.value == "user" else f"{row.name} ({limits.role.value})",
            "\n".join(row.keys) or "none",
            f"{limits.weight:g}",
            _count(limits.guaranteed_context or None),
            _count(limits.max_context),
            _count(limits.max_concurrent),
            _count(limits.max_queued),
            f"{row.tokens_today:,}{quota}",
            " + ".join(row.sources),
        )
    return table


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
