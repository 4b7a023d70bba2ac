"""The daemon's status as a panel for a terminal. Pure: facts in, something for rich out."""

from collections.abc import Iterator

from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from daemon.core.ports import EngineStatus, Status
from daemon.core.prefix_watch import MissCause, PrefixFigures
from daemon.core.senses import SenseState

_WIDTH = 76
_BAR = 30
_STYLES = {"ready": "bold green", "failed": "bold red", "starting": "bold yellow", "backoff": "bold yellow", "draining": "yellow"}
_FULL, _TIGHT = 0.9, 0.7


def status_table(facts: Status) -> RenderableType:
    """Everything at a glance: one block for the daemon, one for each engine."""
    ready = Text("● ready", style="bold green") if facts.ready else Text("● not ready", style="bold red")
    title = Text.assemble(("exl3d ", "bold"), (facts.version, "dim"), "  ", ready)
    parts: list[RenderableType] = [_rows(_daemon(facts))]
    for number, engine in enumerate(facts.engines):
        name = f"engine {number}" if len(facts.engines) > 1 else "engine"
        numbers = [str(index) for index, gpu in enumerate(facts.gpus) if gpu.uuid in engine.gpus]
        parts += [Text(), _rows(_engine(name, engine, f"GPU {', '.join(numbers)}" if numbers else ""))]
    return Panel(Group(*parts), title=title, title_align="left", box=ROUNDED, width=_WIDTH, padding=(1, 2))


def _rows(pairs: Iterator[tuple[str, RenderableType]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", width=12)
    table.add_column()
    for name, value in pairs:
        table.add_row(name, value)
    return table


def _daemon(facts: Status) -> Iterator[tuple[str, RenderableType]]:
    yield "model", Text(facts.model, style="bold")
    yield "context", f"{facts.context:,} tokens"
    yield "up", duration(facts.uptime)
    yield "requests", _requests(facts)
    share = f" ({facts.cached_tokens / facts.prompt_tokens:.0%} from cache)" if facts.prompt_tokens else ""
    yield "tokens", f"{facts.prompt_tokens:,} in{share}, {facts.generated_tokens:,} out"
    yield from _prefix(facts.prefix)
    if facts.shut:
        yield "intake", Text(facts.shut, style="bold yellow")
    yield from _surroundings(facts)


def _surroundings(facts: Status) -> Iterator[tuple[str, RenderableType]]:
    """The GPUs, what went wrong since the start, and what the watchdog would see but cannot."""
    for number, gpu in enumerate(facts.gpus):
        used = f"{gpu.used_mib:,} of {gpu.total_mib:,} MiB used" if gpu.used_mib is not None and gpu.total_mib else "no figures"
        heat = "" if gpu.temperature is None else f", {gpu.temperature} °C"
        yield f"GPU {number}", f"{gpu.name}: {used}{heat}"
    if facts.incidents:
        words = ", ".join(f"{count:,} {label.replace('_', ' ')}" for label, count in facts.incidents.items())
        yield "incidents", Text(f"{words} (exl3ctl incidents)", style="yellow")
    for sense in facts.senses:
        if sense.state in {SenseState.STALE, SenseState.ABSENT}:
            yield "not seen", Text(f"{sense.name}: {sense.words}", style="dim")


def _prefix(figures: PrefixFigures) -> Iterator[tuple[str, RenderableType]]:
    """Silent misses of the prefix cache by cause, where there were any."""
    counts = [(cause, figures.count(cause)) for cause in MissCause]
    if not any(count for _, count in counts):
        return
    alarming = any(count for cause, count in counts if cause is not MissCause.TOO_SHORT)
    words = ", ".join(f"{count:,} {cause.value.replace('_', ' ')}" for cause, count in counts if count)
    yield "cache misses", Text(words, style="yellow" if alarming else "")
    if figures.last:
        yield "", Text(f"last: {figures.last}")


def _requests(facts: Status) -> Text:
    queued = Text(f"{facts.queued} queued", style="yellow" if facts.queued else "")
    running = Text(f"{facts.running} running", style="green" if facts.running else "")
    return Text.assemble(running, ", ", queued, f", {facts.requests:,} since start")


def _engine(name: str, engine: EngineStatus, where: str) -> Iterator[tuple[str, RenderableType]]:
    state = Text(engine.state, style=_STYLES.get(engine.state, "bold"))
    yield name, Text.assemble(state, *(f"  {words}" for words in (engine.backend, where) if words))
    if engine.detail:
        yield "", Text(engine.detail)
    if engine.loading is not None:
        yield "loading", _bar(engine.loading, f"{engine.loading:.0%}", "yellow")
    if engine.pid is not None:
        restarts = "no restarts" if engine.restarts == 0 else f"{engine.restarts} restart{'s' if engine.restarts > 1 else ''}"
        yield "process", f"{engine.pid}, up {duration(engine.uptime)}, {restarts}"
    elif engine.restarts:
        yield "restarts", str(engine.restarts)
    pool = engine.pool
    if pool is not None and pool.pages:
        used = pool.referenced / pool.pages
        style = "red" if used >= _FULL else "yellow" if used >= _TIGHT else "green"
        words = f"{pool.referenced * engine.page:,} of {pool.pages * engine.page:,} tokens"
        yield "cache", _bar(used, words, style)
        yield "slots", f"{pool.running} of {pool.slots} in use" + (f", {pool.pending} waiting for room" if pool.pending else "")


def _bar(share: float, words: str, style: str) -> Table:
    row = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=1.0, completed=min(max(share, 0.0), 1.0), width=_BAR, complete_style=style, finished_style=style)
    row.add_row(bar, words)
    return row


def duration(seconds: float) -> str:
    """Seconds as people say them: the two largest units."""
    whole = int(seconds)
    units = (("d", whole // 86400), ("h", whole // 3600 % 24), ("min", whole // 60 % 60), ("s", whole % 60))
    first = next((index for index, (_, amount) in enumerate(units) if amount), len(units) - 1)
    return " ".join(f"{amount} {unit}" for unit, amount in units[first : first + 2])
