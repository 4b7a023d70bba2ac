"""Asks a running daemon over its admin socket, `run/exl3d.sock` in the state directory."""

import http.client
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

from daemon.core.ports import Status
from ops.errors import NotRunning, NotUnderstood

_PATIENCE = 5.0
"""Seconds. The daemon answers from memory, whatever the engine does."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a UNIX socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("exl3d", timeout=_PATIENCE)
        self._path = path

    def connect(self) -> None:
        """Open the socket instead of a TCP connection."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_PATIENCE)
        self.sock.connect(str(self._path))


SERVICE_STATE = Path("/var/lib/exl3d")
"""State directory of the daemon that systemd runs."""


def socket_path(state: Path) -> Path:
    """Where the daemon of a state directory listens."""
    return state / "run" / "exl3d.sock"


def running_socket(states: Sequence[Path]) -> Path:
    """The first socket there is among state directories; that of the first directory where there is none."""
    paths = [socket_path(state) for state in states]
    return next((path for path in paths if path.exists()), paths[0])


def fetch_status(path: Path) -> Status:
    """What the daemon says about itself. Raises NotRunning and NotUnderstood."""
    body = _get(path, "/status")
    try:
        return msgspec.json.decode(body, type=Status)
    except msgspec.MsgspecError as problem:
        raise NotUnderstood(f"the daemon on {path} speaks of other things than this exl3ctl: {problem}") from problem


def _get(path: Path, target: str) -> bytes:
    connection = _UnixConnection(path)
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        body = answer.read()
    except PermissionError as problem:
        raise NotRunning(f"{path} belongs to another user; run exl3ctl as the user that runs exl3d") from problem
    except (FileNotFoundError, ConnectionRefusedError) as problem:
        raise NotRunning(f"no exl3d is running (nothing answers on {path})") from problem
    except (OSError, http.client.HTTPException) as problem:
        raise NotUnderstood(f"{path} does not answer as an exl3d would: {problem}") from problem
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise NotUnderstood(f"the daemon on {path} answered {target} with {answer.status}")
    return body
