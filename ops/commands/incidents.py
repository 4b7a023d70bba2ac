"""`exl3ctl incidents`: what went wrong, what was done, how it ended."""

from typing import Annotated

import typer
from rich.console import Console

from ops.admin_socket import fetch_incidents, find_socket
from ops.errors import NotRunning
from ops.incident_file import read_incidents
from ops.incident_table import incident_table
from ops.options import Config, Json, StateDir, print_json


def incidents(
    config: Config = None,
    state_dir: StateDir = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many, newest first.")] = 10,
    json: Json = False,
) -> None:
    """Show what went wrong, what was done about it, how it ended and what it cost people.

    Asks the running daemon; where none runs, reads what the last one wrote. Exit code 3 where there is neither.
    """
    socket = find_socket(config, state_dir, with_bad_config=True)
    running = True
    try:
        records = fetch_incidents(socket, limit)
    except NotRunning:
        running = False
        stored = read_incidents(socket.parent.parent, limit)
        if stored is None:
            raise
        records = stored
    if json:
        print_json(records)
    else:
        Console().print(incident_table(records, running=running))
