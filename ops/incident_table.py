"""Incidents for a terminal. Pure: records in, something for rich out."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from daemon.core.incidents import MEANWHILE, IncidentClosed, IncidentRecord

_STYLES = {"none": "yellow", "process_restart": "bold yellow", "engine_rebuild": "bold yellow"}
_MOST_SEEN = 6


def incident_table(records: Sequence[IncidentRecord], *, running: bool) -> RenderableType:
    """One block an incident, newest first. `running`: whether a daemon runs that may still close what is open."""
    blocks: list[RenderableType] = []
    for record in records:
        blocks += [_head(record), _body(record, running=running), Text()]
    return Group(*blocks[:-1]) if blocks else Text("no incidents")


def _head(record: IncidentRecord) -> Text:
    opened = record.opened
    when = datetime.fromtimestamp(opened.t_wall).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    who = "the machine" if opened.engine is None else f"engine {opened.engine}"
    boot = "" if opened.boot is None else f", start {opened.boot}"
    style = _STYLES.get(opened.remedy, "bold red")
    remedy = "" if opened.remedy == "none" else f" → {opened.remedy.replace('_', ' ')}"
    kind = Text.assemble((opened.label.replace("_", " "), style), remedy)
    return Text.assemble((f"#{record.number}", "bold"), f"  {when}  ", kind, (f"  {who}{boot}", "dim"))


def _body(record: IncidentRecord, *, running: bool) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", width=9)
    table.add_column()
    seen = record.opened.seen
    left = len(seen) - _MOST_SEEN
    lines = [*seen[:_MOST_SEEN], *([f"and {left} more (--json shows all)"] if left > 0 else [])]
    for name, value in (("seen", "\n".join(lines)), ("decided", record.opened.decided), *_end(record, running=running)):
        table.add_row(name, Text(value))
    return table


def _end(record: IncidentRecord, *, running: bool) -> list[tuple[str, str]]:
    closed = record.closed
    if closed is None:
        return [("ended", "not yet" if running else MEANWHILE)]
    after = "" if record.duration is None else f", after {record.duration:.1f} s"
    return [("ended", f"{closed.outcome}{after}"), *_cost(closed)]


def _cost(closed: IncidentClosed) -> list[tuple[str, str]]:
    costs: list[str] = []
    if closed.waited:
        count = len(closed.waited)
        who = "1 request waited" if count == 1 else f"{count} requests waited at most"
        costs.append(f"{who} {max(closed.waited):.1f} s")
    if closed.reprefilled:
        costs.append(f"{closed.reprefilled:,} prompt tokens were prefilled again")
    return [("cost", ", ".join(costs))] if costs else []
