"""Talking to systemd: READY, STATUS, STOPPING, more time while loading, and the watchdog.

`sdnotify` encodes Latin-1 and swallows a datagram it cannot encode, so every message goes alone and STATUS is folded to ASCII:
a model's name in another script must never take a WATCHDOG=1 down with it.
"""

import asyncio
import time
import unicodedata
from collections.abc import Callable, Mapping
from typing import Protocol

import sdnotify

_SHARE = 3
"""Pings in a watchdog interval."""
_STATUS_LIMIT = 400


class Notifier(Protocol):
    """`sdnotify.SystemdNotifier`, or a test's."""

    def notify(self, state: str) -> None:
        """Send one datagram."""
        ...


class _Nobody:
    """Stands in where no systemd listens."""

    def notify(self, state: str) -> None:
        """Say it to nobody."""


def notifier_for(environment: Mapping[str, str]) -> Notifier:
    """systemd's, where it gave us a socket. A systemd that does not read must not stop the event loop."""
    if not environment.get("NOTIFY_SOCKET"):
        return _Nobody()
    notifier = sdnotify.SystemdNotifier()
    if notifier.socket is not None:
        notifier.socket.settimeout(0.0)
    return notifier


def fold(text: str) -> str:
    """ASCII for STATUS: accents dropped, anything else foreign as `?`, one line."""
    plain = unicodedata.normalize("NFKD", text)
    plain = "".join(character for character in plain if not unicodedata.combining(character))
    return " ".join(plain.encode("ascii", "replace").decode().split())[:_STATUS_LIMIT]


def watchdog_seconds(environment: Mapping[str, str], pid: int) -> float | None:
    """The watchdog interval systemd expects from this process; None where it expects none."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    given = environment.get("WATCHDOG_USEC", "")
    return int(given) / 1e6 if given.isdecimal() and int(given) > 0 else None


class Systemd:
    """What systemd has been told so far; says nothing twice."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._ready = False
        self._stopping = False
        self._status = ""

    def ready(self) -> None:
        """The service can generate."""
        if not self._ready:
            self._ready = True
            self._notifier.notify("READY=1")

    def stopping(self) -> None:
        """The service goes down on purpose."""
        if not self._stopping:
            self._stopping = True
            self._notifier.notify("STOPPING=1")

    def reloading(self) -> None:
        """The service reads its configuration again; `reloaded` ends it."""
        if self._ready and not self._stopping:
            self._notifier.notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """The service goes on, with whatever configuration."""
        if self._ready and not self._stopping:
            self._notifier.notify("READY=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        folded = fold(text)
        if folded != self._status:
            self._status = folded
            self._notifier.notify(f"STATUS={folded}")

    def more_time(self, seconds: float) -> None:
        """Start or stop takes longer, and is known to move."""
        self._notifier.notify(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    async def ping(self, interval: float, healthy: Callable[[], bool]) -> None:
        """WATCHDOG=1 for ever, `_SHARE` times an `interval`, while `healthy()`. That this runs shows that the loop does."""
        while True:
            if healthy():
                self._notifier.notify("WATCHDOG=1")
            await asyncio.sleep(interval / _SHARE)
