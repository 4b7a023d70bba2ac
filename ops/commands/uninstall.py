"""`exl3ctl uninstall`: take the service away again."""

import sys
from typing import Annotated

import typer

from ops.commands.install import Root, ground_of, told
from ops.errors import InstallFailed
from ops.options import Json, print_json
from ops.service_install import uninstall as take_away


def uninstall(
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove configuration, keys, state (models in it, incidents) and the user.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    root: Root = None,
    json: Json = False,
) -> None:
    """Stop the service and remove what `exl3ctl install` laid down. Configuration and state stay, except with --purge."""
    ground = ground_of(root)
    if not yes:
        _ask(purge=purge)
    steps = told(take_away(ground, purge=purge), json=json)
    if json:
        print_json(steps)


def _ask(*, purge: bool) -> None:
    """Raises InstallFailed where nobody can be asked."""
    if not sys.stdin.isatty():
        raise InstallFailed("nobody can be asked here; say --yes to go on")
    what = "the service, its configuration, keys and state" if purge else "the service"
    typer.confirm(f"Stop and remove {what}?", abort=True)
