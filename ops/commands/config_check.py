"""`exl3ctl config check`: say whether a configuration can be used, and where it is wrong."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ops import config_file
from ops.errors import BadConfig
from ops.exit_codes import ExitCode
from ops.options import Json, print_json


def config_check(
    file: Annotated[Path | None, typer.Argument(help="The file; default: the one that exl3d would read.")] = None,
    json: Json = False,
) -> None:
    """Check a configuration file: unknown keys, wrong values, what the daemon would refuse."""
    try:
        loaded = config_file.load(file)
    except BadConfig as problem:
        if json:
            print_json({"ok": False, "file": str(file) if file else None, "problem": str(problem)})
        else:
            print(problem, file=sys.stderr)
        raise typer.Exit(ExitCode.FAILED) from problem
    if json:
        settings = msgspec.to_builtins(loaded.settings)
        print_json({"ok": True, "file": str(loaded.path) if loaded.path else None, "settings": settings})
    else:
        print(f"{loaded.path}: good" if loaded.path else "no config.yaml was found; the defaults are good")
