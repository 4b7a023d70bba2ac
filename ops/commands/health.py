"""`exl3ctl health`: one health check, for people and for scripts."""

from enum import Enum
from typing import Annotated

import typer

from ops.admin_socket import fetch_health, find_socket
from ops.exit_codes import ExitCode
from ops.options import Config, Json, StateDir, print_json


class Depth(Enum):
    """How closely to look."""

    LIVE = "live"
    READY = "ready"
    DEEP = "deep"


def health(
    depth: Annotated[
        Depth, typer.Argument(help="live: it answers; ready: it takes requests and makes progress; deep: it generates a token.")
    ] = Depth.READY,
    config: Config = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Say whether the daemon is well.

    Exit code 0: yes. 1: no, with the reason. 3: no daemon is running.
    """
    answer = fetch_health(find_socket(config, state_dir, with_bad_config=True), depth.value)
    if json:
        print_json(answer)
    else:
        print(f"{'well' if answer.ok else 'not well'}: {answer.reason}")
    if not answer.ok:
        raise typer.Exit(ExitCode.FAILED)
