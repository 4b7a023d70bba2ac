"""`exl3ctl reload`: have the daemon read its configuration again."""

import sys

import typer

from ops.admin_socket import command_reload, find_socket
from ops.exit_codes import ExitCode
from ops.options import Config, Json, StateDir, print_json


def reload(config: Config = None, state_dir: StateDir = None, json: Json = False) -> None:
    """Take over what may change of config.yaml: keys, people, limits, the log level. Running streams go on.

    A bad file changes nothing: exit code 1, with its place. What needs a restart is named.
    """
    reloaded = command_reload(find_socket(config, state_dir))
    if json:
        print_json(reloaded)
    else:
        print(reloaded.words, file=sys.stderr if reloaded.problem else sys.stdout)
    if reloaded.problem:
        raise typer.Exit(ExitCode.FAILED)
