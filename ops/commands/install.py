"""`exl3ctl install`: make exl3d a service of this machine."""

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ops import service
from ops.errors import InstallFailed
from ops.exit_codes import ExitCode
from ops.options import Json, print_json
from ops.service_install import Ground, Step, Verb, next_commands
from ops.service_install import install as lay_down

Root = Annotated[Path | None, typer.Option(help="Lay the files under this directory instead and touch nothing else.")]


def install(
    user: Annotated[str, typer.Option(help="Who the service runs as; the default is made if it is not there.")] = service.USER,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="What to make /etc/exl3d/config.yaml from where there is none.")
    ] = None,
    root: Root = None,
    json: Json = False,
) -> None:
    """Install the systemd service: unit, drop-ins, configuration, user, state directory; then check all of it.

    Your config.yaml is never overwritten. Nothing is started: the last lines say what to do next.
    """
    ground = ground_of(root)
    steps = told(lay_down(ground, user, config), json=json)
    problems = [step for step in steps if step.verb is Verb.PROBLEM]
    if json:
        print_json(steps)
    elif not problems:
        print("\nNext:")
        for line in next_commands(ground.at(service.CONFIG)):
            print(f"  {line}")
    if problems:
        raise typer.Exit(ExitCode.FAILED)


def ground_of(root: Path | None) -> Ground:
    """Where to work. Raises InstallFailed where that needs systemd or root, with the command that has it."""
    if root is not None:
        return Ground(root.absolute())
    if not service.booted():
        raise InstallFailed(
            "systemd does not run this machine. Under WSL, put `systemd=true` under `[boot]` in /etc/wsl.conf and run"
            " `wsl --shutdown` on the Windows side, once"
        )
    if os.geteuid() != 0:
        again = shlex.join([f"{sys.prefix}/bin/exl3ctl", *sys.argv[1:]])
        raise InstallFailed(f"this changes the system, which takes root. Run: sudo {again}")
    return Ground()


def told(steps: Iterator[Step], *, json: bool) -> list[Step]:
    """Show steps as they are taken, and remember them."""
    taken: list[Step] = []
    for step in steps:
        taken.append(step)
        if not json:
            print(f"{step.verb.value:9} {step.what}", file=sys.stderr if step.verb is Verb.PROBLEM else sys.stdout)
    return taken
