"""`exl3ctl logs`: the service's lines in the journal."""

from typing import Annotated

import typer

from ops import service
from ops.errors import OpsError

_NEWEST = 100


def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines as they come.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the newest lines.")] = _NEWEST,
    since: Annotated[str | None, typer.Option(help="As journalctl has it: today, '1 hour ago', 2026-11-29 19:00.")] = None,
) -> None:
    """Show the daemon's log."""
    if not service.installed():
        raise OpsError(
            f"{service.UNIT} is not installed here, so there is no journal of it. A daemon that was started by hand writes its"
            " log to stderr, to the terminal or file it was started with"
        )
    argv = ["journalctl", "--unit", service.UNIT, "--lines", str(lines)]
    argv += ["--follow"] if follow else ["--no-pager"]
    if since is not None:
        argv += ["--since", since]
    raise typer.Exit(service.call(argv))
