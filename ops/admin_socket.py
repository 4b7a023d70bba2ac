"""Asks and commands a running daemon over its admin socket, `run/exl3d.sock` in the state directory."""

import http.client
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from daemon.core.incidents import IncidentRecord
from daemon.core.operating import SOCKET, Outcome, Reloaded
from daemon.core.ports import Health, Overview, Status
from ops import config_file, service
from ops.errors import BadConfig, NotRunning, NotUnderstood

T = TypeVar("T")

_PATIENCE = 5.0
"""Seconds. The daemon answers from memory, whatever the engine does."""
_LONG_PATIENCE = 30.0
"""Seconds for what takes time: an engine that is asked for a token, a file that is read."""
_ANSWERS = frozenset({http.client.OK, http.client.CONFLICT})
"""409: the command was understood and not carried out; the body says why."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a UNIX socket."""

    def __init__(self, path: Path, patience: float) -> None:
        super().__init__("exl3d", timeout=patience)
        self._path = path
        self._patience = patience

    def connect(self) -> None:
        """Open the socket instead of a TCP connection."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self._patience)
        self.sock.connect(str(self._path))


def socket_path(state: Path) -> Path:
    """Where the daemon of a state directory listens."""
    return state / SOCKET


def running_socket(states: Sequence[Path]) -> Path:
    """The first socket there is among state directories; that of the first directory where there is none."""
    paths = [socket_path(state) for state in states]
    return next((path for path in paths if _exists(path)), paths[0])


def _exists(path: Path) -> bool:
    """Whether something is there. What others may not look at may well be a socket: asking it tells."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def find_socket(config: Path | None, state_dir: Path | None, *, with_bad_config: bool = False) -> Path:
    """The socket of the daemon that is meant: that of a named state directory, else the configuration's, else the service's.
    Where the configuration cannot be read, the default places are tried: a broken line says nothing about a daemon that runs.
    Raises BadConfig where nothing is there either, except `with_bad_config`.
    """
    if state_dir is not None:
        return running_socket([state_dir.expanduser().absolute()])
    report = config_file.ask(config)
    path = running_socket([Path(report.state_dir), service.STATE])
    if report.problem is not None and not with_bad_config and not _exists(path):
        raise BadConfig(report.problem)
    return path


def fetch_status(path: Path) -> Status:
    """What the daemon says about itself. Raises NotRunning and NotUnderstood, as everything here."""
    return _exchange(path, "GET", "/status", Status)


def fetch_overview(path: Path) -> Overview:
    """The same with every accepted request."""
    return _exchange(path, "GET", "/top", Overview)


def fetch_health(path: Path, depth: str) -> Health:
    """One of its health checks: live, ready or deep."""
    return _exchange(path, "GET", f"/health?depth={depth}", Health, _LONG_PATIENCE)


def fetch_incidents(path: Path, limit: int) -> list[IncidentRecord]:
    """The newest incidents, newest first."""
    return _exchange(path, "GET", f"/incidents?limit={limit}", list[IncidentRecord])


def command_restart(path: Path, engine: int | None) -> Outcome:
    """Have an engine replaced; None: all of them."""
    return command(path, "restart" if engine is None else f"restart?engine={engine}")


def command(path: Path, name: str) -> Outcome:
    """Have it do something: restart, drain or resume."""
    return _exchange(path, "POST", f"/{name}", Outcome)


def command_reload(path: Path) -> Reloaded:
    """Have it read its configuration again."""
    return _exchange(path, "POST", "/reload", Reloaded, _LONG_PATIENCE)


def _exchange(path: Path, method: str, target: str, kind: type[T], patience: float = _PATIENCE) -> T:
    connection = _UnixConnection(path, patience)
    try:
        connection.request(method, target)
        answer = connection.getresponse()
        body = answer.read()
    except PermissionError as problem:
        raise NotRunning(f"{path} belongs to another user; {_as_that_user(path)}") from problem
    except (FileNotFoundError, ConnectionRefusedError) as problem:
        raise NotRunning(f"no exl3d is running (nothing answers on {path})") from problem
    except (OSError, http.client.HTTPException) as problem:
        raise NotUnderstood(f"{path} does not answer as an exl3d would: {problem}") from problem
    finally:
        connection.close()
    if answer.status not in _ANSWERS:
        raise NotUnderstood(f"the daemon on {path} answered {method} {target} with {answer.status}")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as problem:
        raise NotUnderstood(f"the daemon on {path} speaks of other things than this exl3ctl: {problem}") from problem


def _as_that_user(path: Path) -> str:
    if path.is_relative_to(service.STATE) and os.geteuid() != 0:
        return "run exl3ctl with sudo"
    return "run exl3ctl as the user that runs exl3d"
