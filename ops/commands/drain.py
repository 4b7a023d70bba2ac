"""`exl3ctl drain`: take no new requests, and wait until the accepted ones have ended if asked to."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ops.admin_socket import command, fetch_status, find_socket
from ops.options import Config, Json, StateDir
from ops.outcomes import show

_LOOK_SECONDS = 0.5


def drain(
    wait: Annotated[bool, typer.Option("--wait", help="Return when no request is left.")] = False,
    config: Config = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Refuse new requests (503, come back later); those accepted go on to their end. `exl3ctl resume` undoes it."""
    path = find_socket(config, state_dir)
    show(command(path, "drain"), json=json)
    if wait:
        _wait(path)


def _wait(path: Path) -> None:
    said = -1
    while True:
        facts = fetch_status(path)
        left = facts.running + facts.queued
        if left == 0:
            print("no request is left", file=sys.stderr)
            return
        if left != said:
            print(f"{facts.running} running, {facts.queued} queued", file=sys.stderr)
            said = left
        time.sleep(_LOOK_SECONDS)
