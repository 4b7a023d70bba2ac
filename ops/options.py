"""Options that commands share, and how results are printed: data on stdout, talk on stderr."""

from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer

Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", "-c", help="Configuration file; default: the one that exl3d would read.")
]
StateDir: TypeAlias = Annotated[
    Path | None, typer.Option("--state-dir", help="State directory; default: the configuration's, then the service's.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines.")]


def print_json(value: object) -> None:
    """A result as one line of JSON on stdout."""
    print(msgspec.json.encode(value).decode())
