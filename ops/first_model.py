"""Run by `make serve` before the daemon: where no model is configured and no GPU is here, make the demo model ready."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from rich.console import Console

from ops import config_file, demo_model
from ops.errors import OpsError
from ops.machine import ThisMachine, look
from ops.progress_bars import bars


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; `arguments` are the daemon's own, of which those about the model are read."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--set", action="append", default=[])
    options, _ = parser.parse_known_args(arguments)
    try:
        report = config_file.load(cast("Path | None", options.config), cast("list[str]", options.set))
        if options.model or report.settings.model is not None or look(ThisMachine()).gpus:
            return 0
        state = Path(report.state_dir)
        if not demo_model.is_ready(demo_model.directory(state)):
            Console(stderr=True).print("No model is configured and no GPU is here: making the demo model ready, once.")
            with bars() as progress:
                demo_model.make_ready(state, progress)
    except OpsError as problem:
        print(f"make serve: {problem}", file=sys.stderr)
        return int(problem.code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
