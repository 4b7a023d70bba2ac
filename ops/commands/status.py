"""`exl3ctl status`: how the running daemon does, at a glance."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ops import config_file
from ops.admin_socket import fetch_status, socket_path
from ops.options import Config, Json, print_json
from ops.status_table import status_table


def status(
    config: Config = None,
    state_dir: Annotated[Path | None, typer.Option(help="State directory; default: the one in the configuration.")] = None,
    json: Json = False,
) -> None:
    """Show how the running daemon does: model, engines, memory, requests. Exit code 3 where none is running."""
    facts = fetch_status(socket_path(config_file.state_dir(config, state_dir)))
    if json:
        print_json(facts)
    else:
        Console().print(status_table(facts))
