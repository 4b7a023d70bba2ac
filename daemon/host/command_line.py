"""The daemon's own options. Each is another way to write a line of config.yaml."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """What was typed."""

    config: Path | None
    overrides: tuple[str, ...]
    """`section.key=value`, the most specific last."""


def parse_options(arguments: Sequence[str], version: str) -> Options:
    """Read the command line. Ends the program with code 2 on wrong usage, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="exl3d",
        description="Serves one EXL3 model to several people at once. Without options: ./config.yaml if there is one, else"
        " ~/.config/exl3d/config.yaml, /etc/exl3d/config.yaml, or the defaults.",
        epilog="`exl3ctl config example` prints every setting; `exl3ctl status` shows a running daemon.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings to read instead")
    parser.add_argument("--model", metavar="DIR", help="model directory (model)")
    parser.add_argument("--host", help="address to listen on (host)")
    parser.add_argument("--port", type=int, help="TCP port (port)")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any setting, as in engine.cache_tokens=65536; may be repeated",
    )
    parser.add_argument("--force", action="store_true", help="load even what cannot fit by the memory plan (engine.force)")
    parser.add_argument("--version", action="version", version=f"exl3d {version}")
    found = parser.parse_args(arguments)
    short = [f"{name}={_quoted(value)}" for name, value in (("model", found.model), ("host", found.host)) if value is not None]
    if found.port is not None:
        short.append(f"port={found.port}")
    if found.force:
        short.append("engine.force=true")
    return Options(found.config, (*found.overrides, *short))


def _quoted(text: str) -> str:
    """A YAML string, whatever it looks like."""
    return "'" + text.replace("'", "''") + "'"
