"""Composition root of the engine process: `python -m daemon.engine --link FD --progress FD`."""

import argparse
import logging
import os
import sys
from collections.abc import Callable

from daemon.core.wire import Configure
from daemon.engine.backend import Backend, LoadProgress, LoadStage, PrefillWatch
from daemon.engine.process import EngineProcess, end_with_parent


def load(configure: Configure, watch: PrefillWatch, progress: LoadProgress, wake: Callable[[], None]) -> Backend:
    """Load what `configure` names with exllamav3, which is imported only now and only in this process."""
    progress(LoadStage.IMPORTING, 0, 1)
    from daemon.engine.exl3 import runtime  # noqa: PLC0415 - importing torch takes seconds; the front must see progress first

    device = runtime.prepare(configure.engine)
    progress(LoadStage.EXTENSION, 0, 1)
    from daemon.engine.exl3 import loading  # noqa: PLC0415 - imports exllamav3, which `prepare` must have made ready

    return loading.load(configure, device, watch, progress, wake)


def main() -> None:
    """Run an engine over inherited descriptors and leave without tear-down."""
    arguments = argparse.ArgumentParser(prog="python -m daemon.engine", description="The engine process of exl3d.")
    arguments.add_argument("--link", type=int, required=True, help="descriptor of an AF_UNIX stream socket")
    arguments.add_argument("--progress", type=int, required=True, help="descriptor of the progress page's memfd")
    given = arguments.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    end_with_parent()
    code = EngineProcess(given.link, given.progress, load).run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
