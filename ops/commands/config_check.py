"""`exl3ctl config check`: say whether a configuration can be used, and where it is wrong."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ops import config_file
from ops.exit_codes import ExitCode
from ops.options import Json, print_json


def config_check(
    file: Annotated[Path | None, typer.Argument(help="The file; default: the one that exl3d would read.")] = None,
    json: Json = False,
) -> None:
    """Check a configuration file and the model directory it names: everything that the daemon would refuse at start."""
    report = config_file.ask(file)
    problem = report.first_problem
    if json:
        print_json(report)
    elif problem is not None:
        print(problem, file=sys.stderr)
    else:
        print(f"{report.source}: good" if report.source else "no config.yaml was found; the defaults are good")
    if problem is not None:
        raise typer.Exit(ExitCode.FAILED)
