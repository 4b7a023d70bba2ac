"""`exl3ctl status`: how the running daemon does, at a glance."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ops import config_file
from ops.admin_socket import SERVICE_STATE, fetch_status, running_socket
from ops.options import Config, Json, print_json
from ops.status_table import status_table


def status(
    config: Config = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="State directory; default: the configuration's, then the service's.")
    ] = None,
    json: Json = False,
) -> None:
    """Show how the running daemon does: model, engines, memory, requests.

    Exit code 3 where none is running.
    """
    state = config_file.state_dir(config, state_dir)
    facts = fetch_status(running_socket([state] if state_dir is not None else [state, SERVICE_STATE]))
    if json:
        print_json(facts)
    else:
        Console().print(status_table(facts))
