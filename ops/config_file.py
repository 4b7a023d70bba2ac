"""The configuration as the daemon reads it. The daemon's own reader is asked, as a process: one reader, one opinion."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from daemon.core.config_report import ConfigReport
from ops.errors import BadConfig, NotUnderstood


def ask(config: Path | None = None, overrides: Sequence[str] = ()) -> ConfigReport:
    """The daemon's report about a file, or about the one it would find. A bad file is a report too, with `problem`."""
    command = [sys.executable, "-m", "daemon.config_check"]
    if config is not None:
        command += ["--config", str(config)]
    for override in overrides:
        command += ["--set", override]
    done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    try:
        return msgspec.json.decode(done.stdout, type=ConfigReport)
    except msgspec.MsgspecError as problem:
        said = done.stderr.decode(errors="replace").strip()
        raise NotUnderstood(
            f"the daemon's configuration reader did not answer (exit code {done.returncode}): {said}"
        ) from problem


def load(config: Path | None = None, overrides: Sequence[str] = ()) -> ConfigReport:
    """A report about a good configuration. Raises BadConfig."""
    report = ask(config, overrides)
    if report.problem is not None:
        raise BadConfig(report.problem)
    return report


def state_dir(config: Path | None, given: Path | None) -> Path:
    """The state directory: the one named on the command line, else the configuration's."""
    return given.expanduser().absolute() if given is not None else Path(load(config).state_dir)
