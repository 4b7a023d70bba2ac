"""`exl3ctl status`: how the running daemon does, at a glance."""

from rich.console import Console

from ops.admin_socket import fetch_status, find_socket
from ops.options import Config, Json, StateDir, print_json
from ops.status_table import status_table


def status(config: Config = None, state_dir: StateDir = None, json: Json = False) -> None:
    """Show how the running daemon does: model, engines, memory, requests.

    Exit code 3 where none is running.
    """
    facts = fetch_status(find_socket(config, state_dir))
    if json:
        print_json(facts)
    else:
        Console().print(status_table(facts))
