"""How what a daemon did is shown, the same for every command."""

import sys

import typer

from daemon.core.operating import Outcome
from ops.exit_codes import ExitCode
from ops.options import print_json


def show(outcome: Outcome, *, json: bool) -> None:
    """Print it. Ends the command with exit code 1 where it was not done."""
    if json:
        print_json(outcome)
    else:
        print(outcome.words, file=sys.stdout if outcome.done else sys.stderr)
    if not outcome.done:
        raise typer.Exit(ExitCode.FAILED)
