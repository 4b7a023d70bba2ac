"""Progress on stderr for work with stages: one bar a stage, shown when the stage begins."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import Enum

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


@contextmanager
def bars() -> Generator[Callable[[Enum, int, int], None]]:
    """A callback that takes a stage (its value is what people read), how much is done, and how much there is in all."""
    columns = (TextColumn("{task.description:>20}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[Enum, TaskID] = {}

        def show(stage: Enum, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(str(stage.value), total=total)
            progress.update(tasks[stage], completed=done, total=total)

        yield show
