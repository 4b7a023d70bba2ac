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
from daemon.core.settings import Role, Settings

KEY_PREFIX = "exl3d-"
"""How keys of our own making begin; the tag follows."""
_THOUSAND = 1000


class PersonRow(msgspec.Struct, frozen=True):
    """One person, as `exl3ctl user list --json` tells of them."""

    name: str
    sources: list[str]
    """config, state, or both: where their keys and limits stand. Nowhere: `local`, while no keys are used."""
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
            keys=[f"{KEY_PREFIX}{key.hash.salt[:4].hex()}" for key in people.keys if key.owner == name],
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
    """For a terminal of 80 columns."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("name", style="bold")
    table.add_column("keys", no_wrap=True)
    for title in ("weight", "guarantee", "longest", "at once", "today"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("from", style="dim")
    for row in rows:
        limits = row.limits
        quota = "" if limits.tokens_per_day is None else f" of {_short(limits.tokens_per_day)}"
        table.add_row(
            row.name if limits.role is Role.USER else f"{row.name}, {limits.role.value}",
            "\n".join(key.removeprefix(KEY_PREFIX) for key in row.keys) or "none",
            f"{limits.weight:g}",
            f"{limits.guaranteed_context:,}",
            _count(limits.max_context),
            _requests(limits),
            f"{_short(row.tokens_today)}{quota}",
            "both" if len(row.sources) > 1 else "".join(row.sources),
        )
    return table


def _requests(limits: Person) -> str:
    """Requests that may run and that may wait."""
    if limits.max_concurrent is None and limits.max_queued is None:
        return "any"
    return f"{_count(limits.max_concurrent)}+{_count(limits.max_queued)}"


def _count(value: int | None) -> str:
    return "any" if value is None else f"{value:,}"


def _short(tokens: int) -> str:
    """A number of tokens in little room: 950, 12.3k, 1.5M."""
    if tokens < _THOUSAND:
        return str(tokens)
    if tokens < _THOUSAND**2:
        return f"{tokens / _THOUSAND:.3g}k"
    return f"{tokens / _THOUSAND**2:.4g}M"
