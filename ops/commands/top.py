"""`exl3ctl top`: people, streams, shares, cache and GPUs as they are now, in the terminal."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from daemon.core.ports import Overview
from ops.admin_socket import fetch_overview, find_socket
from ops.errors import OpsError
from ops.options import Config, Json, StateDir, print_json
from ops.top_frame import frame
from ops.top_values import Flow, flow_between


def top(
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end; so it is where no terminal is.")] = False,
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.1, help="Seconds between two looks.")] = 1.0,
    config: Config = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Watch people, streams, shares, cache and GPUs live. Ctrl-C ends it.

    Exit code 3 where no daemon is running at the start; one that goes later is waited for.
    """
    path = find_socket(config, state_dir, with_bad_config=True)
    first = fetch_overview(path)
    console = Console()
    if json:
        print_json(first)
    elif once or not console.is_terminal:
        console.print(frame(first, Flow(), console.width))
    else:
        with suppress(KeyboardInterrupt):
            _watch(console, path, first, interval)


def _watch(console: Console, path: Path, now: Overview, interval: float) -> None:
    flow, notice = Flow(), ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(frame(now, flow, console.width, console.height, notice), refresh=True)
            time.sleep(interval)
            try:
                before, now, notice = now, fetch_overview(path), ""
            except OpsError as problem:
                flow, notice = Flow(), str(problem)
            else:
                flow = flow_between(before, now)
