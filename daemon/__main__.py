"""`exl3d`: the console script. Reads the configuration, runs the daemon, and turns errors into words and exit codes."""

import asyncio
import os
import signal
import sys
from importlib import metadata
from pathlib import Path

from daemon.composition import Origin, context_of
from daemon.core.errors import ConfigError, Exl3dError
from daemon.core.exit_codes import ExitCode
from daemon.core.settings import BackendKind
from daemon.host.command_line import parse_options
from daemon.host.fit import Forecast, forecast
from daemon.host.logs import set_up_logging
from daemon.host.model_directory import Reading, read_model_directory
from daemon.host.open_files import allow_open_files
from daemon.host.people_store import PeopleBook
from daemon.host.plan_store import known_overheads
from daemon.host.settings_file import Configuration, read_configuration
from daemon.lifecycle import Daemon

DEMO = Path("models") / "smollm2-135m-instruct"
"""In the state directory; made by `exl3ctl model demo`, which writes its marker last."""
DEMO_MARKER = "exl3d-demo.json"


def main() -> None:
    """Entry point."""
    version = metadata.version("exl3d")
    options = parse_options(sys.argv[1:], version)
    allow_open_files()

    def read() -> Configuration:
        return read_configuration(options.config, options.overrides, os.environ)

    try:
        configuration = read()
        set_up_logging(configuration.settings.log, journal="JOURNAL_STREAM" in os.environ)
        people = PeopleBook(configuration.settings, configuration.state_dir)
        reading = _read_model(configuration)
        expected = _forecast(configuration, reading)
        with asyncio.Runner(loop_factory=_loop_factory()) as loop:
            code = loop.run(Daemon(Origin(configuration, read, people, reading, version, expected)).run())
    except ConfigError as problem:
        _complain(str(problem))
        code = ExitCode.CONFIG
    except Exl3dError as problem:
        _complain(str(problem))
        code = ExitCode.FAILED
    except KeyboardInterrupt:  # Ctrl-C before the daemon has handlers of its own: while configuration and model are read
        sys.exit(128 + signal.SIGINT)
    sys.exit(code)


def _forecast(configuration: Configuration, reading: Reading) -> Forecast:
    """Whether it can be loaded, asked before an engine touches a GPU."""
    model, settings = reading.model, configuration.settings
    learned = known_overheads(configuration.state_dir)
    return forecast(Path(model.path), model.name, settings.engine, context_of(settings, model.context), learned, os.environ)


def _complain(words: str) -> None:
    sys.stderr.write(f"exl3d: {words}\n")


def _loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    """Uvloop where it is installed: it halves what a token costs on its way through the front."""
    try:
        import uvloop  # noqa: PLC0415  # absent where it does not build
    except ImportError:
        return None
    return uvloop.Loop


def _read_model(configuration: Configuration) -> Reading:
    settings = configuration.settings
    weights = settings.engine.backend is not BackendKind.NULL
    if settings.model is not None:
        return read_model_directory(Path(settings.model), settings.model_name, weights=weights)
    demo = configuration.state_dir / DEMO
    if not (demo / DEMO_MARKER).is_file():
        raise ConfigError(
            "no model is configured. Put `model: /path/to/a/model/directory` into config.yaml,"
            f" or run `exl3ctl model demo` to make a small one ready in {demo}"
        )
    return read_model_directory(demo, settings.model_name)


if __name__ == "__main__":
    main()
