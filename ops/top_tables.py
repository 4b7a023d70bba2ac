"""The tables of `exl3ctl top`: people and streams. Columns that do not fit the terminal are left out, the least needed first."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from daemon.core.admission_views import PersonFigures
from daemon.core.ports import Overview
from daemon.core.stream_view import StreamState, StreamView
from ops.status_table import duration
from ops.top_values import Flow, shares

_STATES = {
    StreamState.ANSWERING: "green",
    StreamState.PREFILL: "cyan",
    StreamState.WAITING: "yellow",
    StreamState.SUSPENDED: "yellow",
    StreamState.INTERRUPTED: "bold red",
}
_NAME = 16
_THOUSAND = 1000

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class _Column(Generic[Row]):
    """One column, shown in terminals of at least `least` columns. Numbers stand at the right."""

    title: str
    width: int
    least: int
    cell: Callable[[Row], RenderableType]
    number: bool = True


def _table(columns: Sequence[_Column[Row]], rows: Sequence[Row], width: int) -> Table:
    shown = [column for column in columns if column.least <= width]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for column in shown:
        justify = "right" if column.number else "left"
        table.add_column(column.title, justify=justify, width=column.width, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(column.cell(row) for column in shown))
    return table


@dataclass(frozen=True, slots=True)
class _Person:
    name: str
    figures: PersonFigures
    rate: float | None
    share: float | None
    page: int


def people_table(now: Overview, flow: Flow, width: int) -> Table:
    """Everybody who has asked or is promised something, the busiest first."""
    parts = shares(now, flow)
    page = max((engine.page for engine in now.status.engines), default=0)
    rows = [
        _Person(name, person, flow.people.get(name), parts.get(name), page)
        for name, person in sorted(now.status.sharing.people.items(), key=_busiest)
    ]
    return _table(_PEOPLE, rows, width)


def _busiest(item: tuple[str, PersonFigures]) -> tuple[int, int, str]:
    name, person = item
    return (-person.running, -person.queued, name)


_PEOPLE: Sequence[_Column[_Person]] = (
    _Column("person", _NAME, 0, lambda row: Text(row.name, style="bold"), number=False),
    _Column("running", 7, 0, lambda row: _lit(row.figures.running, "green")),
    _Column("waiting", 7, 0, lambda row: _lit(row.figures.queued, "yellow")),
    _Column("tok/s", 6, 46, lambda row: _rate(row.rate)),
    _Column("share", 5, 52, lambda row: "" if row.share is None else f"{row.share:.0%}"),
    _Column("holds", 7, 60, lambda row: short(row.figures.pages * row.page)),
    _Column("warm", 7, 68, lambda row: short(row.figures.warm_tokens)),
    _Column("promised", 8, 78, lambda row: short(row.figures.guaranteed) if row.figures.guaranteed else ""),
    _Column("weight", 6, 86, lambda row: f"{row.figures.weight:g}"),
    _Column("mean wait", 9, 96, lambda row: _mean_wait(row.figures)),
    _Column("answered", 8, 106, lambda row: short(row.figures.served)),
)


def streams_table(streams: Sequence[StreamView], width: int) -> Table:
    """One line a stream."""
    return _table([_WHOLE_ID if width >= _WHOLE_ID.least else _ID, *_STREAMS], streams, width)


_WHOLE_ID: _Column[StreamView] = _Column("request", 44, 140, lambda row: row.name, number=False)
_ID: _Column[StreamView] = _Column("request", 18, 70, lambda row: row.name, number=False)
"""Where there is little room: enough to find the request in the log."""
_STREAMS: Sequence[_Column[StreamView]] = (
    _Column("person", _NAME, 0, lambda row: Text(row.owner, style="dim" if row.background else "bold"), number=False),
    _Column("state", 11, 0, lambda row: Text(row.state.value, style=_STATES[row.state]), number=False),
    _Column("prompt", 7, 40, lambda row: short(row.prompt)),
    _Column("cached", 6, 80, lambda row: f"{row.cached / row.prompt:.0%}" if row.prompt and row.waited is not None else ""),
    _Column("answer", 7, 48, lambda row: short(row.generated)),
    _Column("tok/s", 6, 56, lambda row: _rate(row.rate)),
    _Column("waited", 8, 108, lambda row: "" if row.waited is None else f"{row.waited:.1f} s"),
    _Column("engine", 6, 98, lambda row: "" if row.engine is None else str(row.engine)),
    _Column("age", 10, 90, lambda row: duration(row.age)),
)


def urgent_first(streams: Sequence[StreamView]) -> list[StreamView]:
    """What runs, then what waits, each the oldest first: where only some fit, those that say most."""
    order = list(_STATES)
    return sorted(streams, key=lambda one: (order.index(one.state), -one.age))


def tally(streams: Sequence[StreamView]) -> Iterator[str]:
    """How many are in each state, in words."""
    for state in _STATES:
        count = sum(1 for one in streams if one.state is state)
        if count:
            yield f"{count} {state.value}"


def short(tokens: int) -> str:
    """A number of tokens in little room: 950, 12.3k, 1.5M."""
    if tokens < _THOUSAND:
        return str(tokens)
    if tokens < _THOUSAND**2:
        return f"{tokens / _THOUSAND:.3g}k" if tokens < 999.5 * _THOUSAND else "1M"
    return f"{tokens / _THOUSAND**2:.3g}M"


def _lit(count: int, style: str) -> Text:
    return Text(str(count), style=style if count else "dim")


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.1f}"


def _mean_wait(figures: PersonFigures) -> str:
    return f"{figures.waited / figures.waits:.1f} s" if figures.waits else ""
