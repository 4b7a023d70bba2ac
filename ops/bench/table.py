"""A ladder's figures as a table for a terminal."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ops.bench.summary import Level, Spread


def ladder_table(title: str, levels: Sequence[Level]) -> Table:
    """One row a level."""
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    for heading in (
        "streams",
        "tok/s",
        "each",
        "TTFT\np50",
        "ms\np99",
        "ITL\np50",
        "ms\np99",
        "prompt\ntokens",
        "cached",
        "failed",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for level in levels:
        table.add_row(
            str(level.streams),
            f"{level.tok_s:,.1f}",
            f"{level.tok_s_stream:,.1f}",
            *_pair(level.ttft_ms),
            *_pair(level.itl_ms),
            f"{level.prompt_tokens:,}",
            f"{level.cached_tokens / level.prompt_tokens:.0%}" if level.prompt_tokens else "-",
            str(level.failed) if not level.failed else f"[red]{level.failed}[/red]",
        )
    return table


def _pair(times: Spread | None) -> tuple[str, str]:
    return ("-", "-") if times is None else (f"{times.p50:,.1f}", f"{times.p99:,.1f}")
