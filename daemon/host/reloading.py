"""Reads the configuration again while the daemon runs, and has its parts take over what may change.

All or nothing: a bad file, or a part that refuses, leaves everything as it was.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from daemon.core.errors import ConfigError
from daemon.core.operating import Reloaded
from daemon.core.reloading import Reloadable, compare
from daemon.core.settings import Settings
from daemon.host.notify import Systemd
from daemon.host.settings_file import Configuration

_log = logging.getLogger("exl3d")


class Reloader:
    """Knows the settings in force. `read` reads the file as at the start; `systemd` is told that we are at it."""

    def __init__(self, settings: Settings, read: Callable[[], Configuration], systemd: Systemd) -> None:
        self._settings = settings
        self._read = read
        self._systemd = systemd
        self._parts: Sequence[Reloadable] = ()
        self._thread = ThreadPoolExecutor(1, "exl3d-reload")
        """One, so that of two reloads the one asked for later reads the file later."""

    @property
    def settings(self) -> Settings:
        """What holds now."""
        return self._settings

    def take(self, parts: Sequence[Reloadable]) -> None:
        """Whom to hand new settings to, in this order."""
        self._parts = parts

    async def reload(self) -> Reloaded:
        """Read the file and take over what can be. Never raises for a bad file: the answer says what is wrong with it."""
        self._systemd.reloading()
        try:
            configuration = await asyncio.get_running_loop().run_in_executor(self._thread, self._read)
            reloaded = self._take_over(configuration.settings)
        except ConfigError as problem:
            reloaded = Reloaded(str(problem))
        finally:
            self._systemd.reloaded()
        _log.log(logging.ERROR if reloaded.problem else logging.INFO, "reload: %s", reloaded.words)
        return reloaded

    def close(self) -> None:
        """Let go of the thread."""
        self._thread.shutdown(wait=False)

    def _take_over(self, wanted: Settings) -> Reloaded:
        change = compare(self._settings, wanted)
        taken: list[Reloadable] = []
        try:
            for part in self._parts:
                part.reload(change.settings)
                taken.append(part)
        except ConfigError:
            for part in taken:
                part.reload(self._settings)
            raise
        self._settings = change.settings
        return Reloaded("", change.applied, change.waiting)
