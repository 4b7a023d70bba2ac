"""Reads configuration and model directory exactly as the daemon would and prints one line of JSON (`core.config_report`).

A root of its own, imported by nobody: `exl3ctl` runs it as a process, so that there is one reader of config.yaml and the tool
never says good to a file that the daemon refuses.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec

from daemon.core.config_report import ConfigReport
from daemon.core.errors import ConfigError
from daemon.core.layout import layout_of, places
from daemon.core.people import People
from daemon.core.promises import promise_problem
from daemon.core.settings import BackendKind, Settings
from daemon.core.vram_values import Layout
from daemon.host.fit import wants_gpu
from daemon.host.model_directory import read_model_directory
from daemon.host.people_store import PeopleBook
from daemon.host.picture_rule import read_picture_rule
from daemon.host.settings_file import Configuration, find_file, read_configuration, state_directory


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. The exit code is 0 also for a bad configuration: the question was answered."""
    parser = argparse.ArgumentParser(prog="python -m daemon.config_check", description=__doc__)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    logging.disable()  # the answer is the report
    report = check(cast("Path | None", options.config), cast("list[str]", options.set))
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    return 0


def check(given: Path | None, overrides: Sequence[str]) -> ConfigReport:
    """The report for a file, or for the one that the daemon would find."""
    source = find_file(given, os.environ)
    name = str(source) if source else None
    try:
        read = read_configuration(given, overrides, os.environ)
    except ConfigError as problem:
        default = state_directory(Settings(), os.environ).absolute()
        return ConfigReport(problem=str(problem), source=name, state_dir=str(default))
    people, people_problem = _people(read)
    return ConfigReport(
        problem=None,
        model_problem=_model_problem(read.settings),
        people_problem=people_problem,
        engine_problem=_engine_problem(read.settings, people),
        source=name,
        state_dir=str(read.state_dir.absolute()),
        settings=read.settings,
    )


def _people(configuration: Configuration) -> tuple[People | None, str | None]:
    """Everybody who could be let in as configured, or why nobody could."""
    try:
        return PeopleBook(configuration.settings, configuration.state_dir).current(), None
    except ConfigError as problem:
        return None, str(problem)


def _engine_problem(settings: Settings, people: People | None) -> str | None:
    """Why engines could not run as configured. GPUs are not counted, since that may take long: the daemon knows more."""
    try:
        if wants_gpu(settings.engine.backend):
            count = settings.engine.replicas if layout_of(settings.engine) is Layout.REPLICAS else 1
        else:
            count = len(places(settings.engine, None, os.cpu_count() or 1))
    except ConfigError as problem:
        return str(problem)
    return None if people is None or count is None else promise_problem(people, settings, count)


def _model_problem(settings: Settings) -> str | None:
    """Why the daemon could not serve the configured model; None where it could, or where none is configured."""
    if settings.model is None:
        return None
    weights = settings.engine.backend is not BackendKind.NULL
    try:
        model = read_model_directory(Path(settings.model), settings.model_name, weights=weights).model
        if settings.engine.vision:
            read_picture_rule(Path(model.path))
    except ConfigError as problem:
        return str(problem)
    return None


if __name__ == "__main__":
    sys.exit(main())
