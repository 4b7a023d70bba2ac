"""Silent misses of the prefix cache in `exl3ctl status`."""

from dataclasses import replace

from rich.console import Console

from daemon.core.ports import Status
from daemon.core.prefix_watch import PrefixFigures
from ops.status_table import status_table

STATUS = Status(
    version="1",
    uptime=1.0,
    ready=True,
    model="m",
    context=8192,
    engines=(),
    running=0,
    queued=0,
    requests=2,
    prompt_tokens=10,
    cached_tokens=0,
    generated_tokens=5,
)


def drawn(figures: PrefixFigures) -> str:
    console = Console(width=90, no_color=True)
    with console.capture() as capture:
        console.print(status_table(replace(STATUS, prefix=figures)))
    return capture.get()


def test_misses_are_shown_by_cause_with_the_last_in_words() -> None:
    shown = drawn(PrefixFigures(evicted=2, no_checkpoint=1, last="chatcmpl-1 of ann found 0 of 512 tokens"))
    assert "2 evicted, 1 no checkpoint" in shown
    assert "last: chatcmpl-1 of ann found 0 of 512 tokens" in shown


def test_cache_without_misses_takes_no_line() -> None:
    assert "cache misses" not in drawn(PrefixFigures(queries=100, hits=50))
