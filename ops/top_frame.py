"""One picture of `exl3ctl top`. Pure: facts and the size of the terminal in, something for rich out."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from daemon.core.gpu import GpuReading
from daemon.core.ports import EngineStatus, Overview, Status
from ops.status_table import duration
from ops.top_tables import people_table, short, streams_table, tally, urgent_first
from ops.top_values import Flow

_FULL, _TIGHT = 0.9, 0.7
_NARROW = 70
_WIDE_BAR, _SHORT_BAR = 24, 10
_STYLES = {"ready": "bold green", "failed": "bold red"}
_LEAST_STREAMS = 3
"""Streams that are shown however low the terminal is."""


def frame(now: Overview, flow: Flow, width: int, height: int | None = None, notice: str = "") -> RenderableType:
    """The picture for a terminal of `width` columns. With `height` lines only as many streams are shown as fit. `notice` is
    why the facts are old.
    """
    status = now.status
    head = [*_head(status, flow, width), *(_engines(status, width)), *_gpus(status, width)]
    if notice:
        head.insert(0, Text(notice, style="bold red", no_wrap=True, overflow="ellipsis"))
    people = len(status.sharing.people)
    parts = [*head, _rule("people"), people_table(now, flow, width)] if people else head
    parts.append(_rule(", ".join(tally(now.streams)) or "no request"))
    used = len(parts) + people + 1 if people else len(parts)
    streams = urgent_first(now.streams)
    room = len(streams) if height is None else max(_LEAST_STREAMS, height - used - 2)
    shown = streams if len(streams) <= room else streams[: room - 1]
    if shown:
        parts.append(streams_table(shown, width))
    if len(shown) < len(streams):
        parts.append(Text(f"and {len(streams) - len(shown)} more", style="dim"))
    return Group(*parts)


def _rule(words: str) -> Rule:
    return Rule(Text(words, style="dim"), style="dim", align="left")


def _head(status: Status, flow: Flow, width: int) -> Iterator[RenderableType]:
    ready = ("● ready", "bold green") if status.ready else ("● not ready", "bold red")
    yield _line(("exl3d ", "bold"), (status.model, "bold"), "  ", ready, f"  up {duration(status.uptime)}")
    reasons = ", ".join(f"{count} {reason.value.replace('_', ' ')}" for reason, count in status.sharing.queued.items() if count)
    parts = [
        f"{status.running} running",
        f"{status.queued} waiting" + (f" ({reasons})" if reasons and width >= _NARROW else ""),
        *([] if flow.total is None else [f"{flow.total:,.1f} tok/s"]),
        *([f"{status.cached_tokens / status.prompt_tokens:.0%} of prompts cached"] if status.prompt_tokens else []),
        *([f"{status.suspensions} suspensions"] if status.suspensions else []),
    ]
    yield _line(", ".join(parts))
    if status.shut:
        yield _line((status.shut, "bold yellow"))
    if status.incidents:
        words = ", ".join(f"{count} {label.replace('_', ' ')}" for label, count in status.incidents.items())
        yield _line((f"incidents: {words}", "yellow"))


def _engines(status: Status, width: int) -> Iterator[RenderableType]:
    for number, engine in enumerate(status.engines):
        name = f"engine {number}" if len(status.engines) > 1 else "engine"
        if engine.pool is None or engine.state != "ready":
            state = (engine.state, _STYLES.get(engine.state, "bold yellow"))
            yield _line(f"{name:<10}", state, f"  {engine.detail}" if engine.detail else "")
            if engine.loading is not None:
                yield _bar("", engine.loading, f"{engine.loading:.0%} loaded", width)
        if engine.pool is not None and engine.pool.pages:
            yield _bar(name, engine.pool.referenced / engine.pool.pages, _pool(engine), width)


def _pool(engine: EngineStatus) -> str:
    pool = engine.pool
    if pool is None:
        return ""
    tokens = f"{short(pool.referenced * engine.page)} of {short(pool.pages * engine.page)} tokens"
    restarts = f", {engine.restarts} restarts" if engine.restarts else ""
    return f"{tokens}, {pool.running} of {pool.slots} slots{restarts}"


def _gpus(status: Status, width: int) -> Iterator[RenderableType]:
    for number, gpu in enumerate(status.gpus):
        yield _bar(f"GPU {number}", gpu.fullness or 0.0, _gpu(gpu), width)


def _gpu(gpu: GpuReading) -> str:
    known = [
        "no figures" if gpu.used_mib is None or gpu.total_mib is None else f"{gpu.used_mib:,} of {gpu.total_mib:,} MiB",
        *([] if gpu.utilisation is None else [f"{gpu.utilisation:.0%} busy"]),
        *([] if gpu.temperature is None else [f"{gpu.temperature} °C"]),
        *([] if gpu.power_watts is None else [f"{gpu.power_watts:.0f} W"]),
        gpu.name,
    ]
    return ", ".join(known)


def _bar(name: str, share: float, words: str, width: int) -> RenderableType:
    style = "red" if share >= _FULL else "yellow" if share >= _TIGHT else "green"
    length = _SHORT_BAR if width < _NARROW else _WIDE_BAR
    row = Table.grid(padding=(0, 1), expand=False)
    row.add_column(width=9, no_wrap=True)
    row.add_column(width=length)
    row.add_column(max_width=max(1, width - length - 11), no_wrap=True, overflow="ellipsis")
    bar = ProgressBar(total=1.0, completed=min(max(share, 0.0), 1.0), width=length, complete_style=style, finished_style=style)
    row.add_row(name, bar, words)
    return row


def _line(*parts: str | tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")
