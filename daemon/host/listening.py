"""Sockets the daemon listens on. A port that is taken is an error with words, never a reason to take another."""

import errno
import logging
import os
import socket
import stat
from pathlib import Path

from daemon.core.errors import ConfigError, Exl3dError
from daemon.core.operating import SOCKET

_BACKLOG = 1024
_log = logging.getLogger("exl3d")


class AddressTaken(Exl3dError):
    """Somebody else listens there: the daemon ends with exit code 1."""


def listen_tcp(host: str, port: int) -> list[socket.socket]:
    """Listen on every address that `host` means. Raises AddressTaken or ConfigError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as problem:  # a label of more than 63 characters is the latter
        raise ConfigError(f"host {host!r} is no address of this machine: {problem}") from problem
    sockets: list[socket.socket] = []
    for family, _, _, _, address in dict.fromkeys(found):
        chosen = sockets[0].getsockname()[1] if sockets else port  # all addresses share the port that the system chose
        try:
            sockets.append(_listen(family, (address[0], chosen, *address[2:])))
        except OSError as problem:
            for opened in sockets:
                opened.close()
            raise _refused(problem, host, port) from problem
    return sockets


def _listen(family: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.settimeout(0.0)
    except OSError:
        listener.close()
        raise
    return listener


def _refused(problem: OSError, host: str, port: int) -> Exl3dError:
    if problem.errno == errno.EADDRINUSE:
        return AddressTaken(
            f"port {port} on {host} is in use by another program (`ss -ltnp 'sport = :{port}'` names it)."
            " Stop it, or choose another port with `port:` in config.yaml or --port"
        )
    if problem.errno == errno.EACCES:
        return AddressTaken(f"port {port} on {host} may not be used by this user; ports below 1024 need privileges")
    return ConfigError(f"cannot listen on {host} port {port}: {problem.strerror or problem}")


def listen_unix(state_dir: Path) -> socket.socket:
    """The admin socket, for this user only. Raises AddressTaken if another daemon uses this state directory, and ConfigError
    where nothing can be written there.
    """
    path = state_dir / SOCKET
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _clear(path)
    except OSError as problem:
        raise ConfigError(
            f"the state directory cannot be used: {problem.strerror or problem}; set another `state_dir:`, or mend this one",
            str(state_dir),
        ) from problem
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as problem:
        listener.close()
        raise ConfigError(f"cannot make the admin socket: {problem.strerror or problem}", str(path)) from problem
    finally:
        os.umask(mask)
    listener.listen(_BACKLOG)
    listener.settimeout(0.0)
    return listener


def remove_unix(state_dir: Path) -> None:
    """Take our own admin socket away: whoever asks then learns at once that no daemon runs."""
    (state_dir / SOCKET).unlink(missing_ok=True)


def _clear(path: Path) -> None:
    """Remove a socket that a dead daemon left; refuse to take one from a living one."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigError("is in the way of the admin socket; remove it", str(path))
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as problem:  # it lives: too busy to answer, or somebody else's
            _log.debug("asking %s: %s", path, problem)
    raise AddressTaken(
        f"another exl3d is running with the state directory {path.parent.parent}; stop it, or set another `state_dir:`"
    )
