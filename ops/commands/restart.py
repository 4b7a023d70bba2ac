"""`exl3ctl restart`: a fresh engine under the running streams, or a fresh daemon."""

from typing import Annotated

import typer

from ops import service
from ops.admin_socket import command_restart, fetch_status, find_socket
from ops.errors import OpsError
from ops.options import Config, Json, StateDir
from ops.outcomes import show


def restart(
    engine: Annotated[
        bool, typer.Option("--engine", help="Replace engines only: running streams pause and go on where they were.")
    ] = False,
    number: Annotated[
        int | None, typer.Argument(help="With --engine: the one with this number in `exl3ctl status`, not all.", min=0)
    ] = None,
    config: Config = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Restart the service, or its engines alone.

    Without --engine systemd restarts the daemon: running streams may finish within server.drain_seconds, the rest ends.
    """
    if engine:
        show(command_restart(find_socket(config, state_dir), number), json=json)
        return
    if number is not None:
        raise typer.BadParameter("a number means an engine: `exl3ctl restart --engine N`", param_hint="NUMBER")
    path = find_socket(config, state_dir, with_bad_config=True)
    if service.installed() and ((config is None and state_dir is None) or path.is_relative_to(service.STATE)):
        raise typer.Exit(service.call(["systemctl", "restart", service.UNIT]))
    fetch_status(path)
    raise OpsError(
        "this daemon was started by hand, not by systemd: end it where it was started (Ctrl-C or SIGTERM; running streams"
        " may finish) and start it again with `exl3d`. `exl3ctl restart --engine` replaces only the engine"
    )
