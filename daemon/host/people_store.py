"""Who may ask, from config.yaml and from people.json in the state directory, kept up to date while the daemon runs.

For the composition root: 1. `PeopleBook(settings, state_dir)` before the loop runs; it raises ConfigError where nobody could be
told from anybody else on an address that others reach. 2. Hand it to `application.build(people=…)`. 3. `look` in the thread that
reads config.yaml again, then `reload(settings)` on the loop, as any Reloadable. 4. A task for `watch()`, which sees changes of
people.json by itself. 5. `on_change` for whoever keeps shares; `add_check` for whoever may refuse a change.

A damaged people.json stops the start, since keys in it would be ignored. Later the last good people stay, and the log says so. A
door that was closed by a key stays closed until the next start, whatever happens to the keys.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from daemon.core.errors import ConfigError
from daemon.core.people import People, StoredPerson, merge
from daemon.core.people_file import FILE_NAME, MODE, decode
from daemon.core.settings import Settings
from daemon.host.settings_file import is_loopback

_log = logging.getLogger("exl3d.people")

LOOK_SECONDS = 1.0
"""Between two looks at the file. A revoked key is refused after this long at the latest, also where nobody asks for a reload."""
_OTHERS = 0o077

Signature = tuple[int, int, int]
"""Inode, size and time of change in nanoseconds: a file that was replaced differs in one of them."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """What the file said when it was last looked at. `people` are the last good ones where `problem` is not empty."""

    signature: Signature | None
    people: tuple[StoredPerson, ...] = ()
    problem: str = ""
    loose: bool = False
    """Whether others on the machine may read it."""


_ABSENT = _Reading(None)
"""There is no file: nobody is kept in it."""


class PeopleBook:
    """See the module. Implements `ports.Acquaintance`; everything but `look` belongs to the loop's thread."""

    def __init__(self, settings: Settings, state_dir: Path) -> None:
        self._path = state_dir / FILE_NAME
        self._settings = settings
        self._reading = _ABSENT
        self._callbacks: list[Callable[[People], None]] = []
        self._checks: list[Callable[[People], str | None]] = []
        self.look()
        if self._reading.problem:
            raise ConfigError(self._reading.problem, str(self._path))
        self._used = self._reading
        self._people = self._merged(settings)
        refuse_open_door(settings, self._people)
        self._tell(self._people, settings)

    def current(self) -> People:
        """Who may ask now."""
        return self._people

    @property
    def problem(self) -> str:
        """Why people.json is not followed at this moment; empty where it is."""
        return self._reading.problem

    def on_change(self, callback: Callable[[People], None]) -> None:
        """Call with the new people whenever somebody comes, goes or changes."""
        self._callbacks.append(callback)

    def add_check(self, check: Callable[[People], str | None]) -> None:
        """Ask before people change; words refuse the change."""
        self._checks.append(check)

    def look(self) -> None:
        """Read people.json if it was replaced since the last look. Blocks; for a thread. Changes nothing that is in force."""
        before = self._reading
        signature = None
        try:
            found = self._path.stat()
            signature = (found.st_ino, found.st_size, found.st_mtime_ns)
            if signature == before.signature:
                return
            people = decode(self._path.read_bytes())
            self._reading = _Reading(signature, people, loose=bool(found.st_mode & _OTHERS))
        except FileNotFoundError:
            self._reading = _ABSENT
        except OSError as problem:
            self._reading = _Reading(None, before.people, f"cannot be read: {problem.strerror}")
        except ConfigError as problem:
            self._reading = _Reading(signature, before.people, problem.message)

    def reload(self, settings: Settings) -> None:
        """Take over new settings and what was last seen of people.json. Raises ConfigError, and has changed nothing then."""
        reading = self._reading
        if reading.problem:
            raise ConfigError(reading.problem, str(self._path))
        self._take_over(settings, reading)

    async def watch(self) -> None:
        """Follow people.json until cancelled. Problems are logged, once each, and leave the last good people in force."""
        said = ""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self.look)
            problem = self._follow()
            if problem and problem != said:
                _log.error("%s: %s. The people known before stay", self._path, problem)
            said = problem

    def _follow(self) -> str:
        reading = self._reading
        if reading is self._used or reading.problem:
            return reading.problem
        try:
            self._take_over(self._settings, reading)
        except ConfigError as problem:
            return str(problem)
        return ""

    def _take_over(self, settings: Settings, reading: _Reading) -> None:
        people = self._merged(settings, reading)
        people = replace(people, open=people.open and self._people.open)
        for check in self._checks:
            refusal = check(people)
            if refusal is not None:
                raise ConfigError(refusal, "" if reading is self._used else str(self._path))
        self._settings, self._used = settings, reading
        before = self._people
        if people == before:
            return
        self._people = people
        self._tell(people, settings, before)
        for callback in self._callbacks:
            callback(people)

    def _merged(self, settings: Settings, reading: _Reading | None = None) -> People:
        stored = (reading or self._reading).people
        return merge(settings.keys, settings.people, settings.sharing, stored)

    def _tell(self, people: People, settings: Settings, before: People | None = None) -> None:
        if self._reading.loose:
            _log.warning("%s can be read by others on this machine; its permissions should be %o", self._path, MODE)
        for note in people.notes:
            if before is None or note not in before.notes:
                _log.warning("people: %s", note)
        if people.keys:
            _log.info("people: %s", ", ".join(people.names))
        elif not people.open:
            _log.warning(
                "people: the last key is gone; nobody may ask until there is one, or until a restart on a loopback address"
            )
        elif before is None:
            _log.info("people: no keys, so everybody on this machine may ask (host %s)", settings.host)


def refuse_open_door(settings: Settings, people: People) -> None:
    """Raise ConfigError where other machines could ask and nobody needs a key."""
    if people.keys or is_loopback(settings.host):
        return
    raise ConfigError(
        f"host {settings.host} can be reached by other machines, so exl3d wants API keys."
        " Run `exl3ctl user add NAME` for each person, or use host 127.0.0.1"
    )
