"""people.json, as `exl3ctl user` changes it: one writer at a time, the file replaced as a whole, and never readable by others.

The daemon only reads it. Where root writes for a service, the file belongs to whoever owns the state directory.
"""

import fcntl
import os
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from daemon.core.errors import ConfigError
from daemon.core.people import StoredPerson
from daemon.core.people_file import FILE_NAME, MODE, decode, encode
from ops import config_file
from ops.admin_socket import running_socket, socket_path
from ops.errors import UserFailed
from ops.service import CONFIG, STATE

_LOCK_NAME = ".people.lock"


class PeopleFile:
    """The file of one state directory. Everything here raises UserFailed, with what to do."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.path = state / FILE_NAME

    def read(self) -> tuple[StoredPerson, ...]:
        """Who is in it; nobody where there is no file."""
        with self._spoken():
            try:
                return decode(self.path.read_bytes())
            except FileNotFoundError:
                return ()

    def restore(self, people: Sequence[StoredPerson]) -> None:
        """Put people back as they were."""
        with self.changing() as now:
            now[:] = people

    @contextmanager
    def changing(self) -> Generator[list[StoredPerson]]:
        """The people, in a list to be changed; written when the block ends well, before anybody else may change them."""
        with self._spoken():
            self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self.state / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
        try:
            with self._spoken():
                self._give(lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
            people = list(self.read())
            before = tuple(people)
            yield people
            if tuple(people) != before:
                with self._spoken():
                    self._write(people)
        finally:
            os.close(lock)

    def _write(self, people: Sequence[StoredPerson]) -> None:
        handle, name = tempfile.mkstemp(prefix=f".{FILE_NAME}.", dir=self.state)
        try:
            with os.fdopen(handle, "wb") as fresh:
                self._give(fresh.fileno())
                fresh.write(encode(people))
                fresh.flush()
                os.fsync(fresh.fileno())
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        directory = os.open(self.state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _give(self, descriptor: int) -> None:
        """Let the file belong to the owner of the directory, where root writes for somebody else."""
        os.fchmod(descriptor, MODE)
        if os.geteuid() == 0:
            owner = self.state.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)

    @contextmanager
    def _spoken(self) -> Generator[None]:
        try:
            yield
        except PermissionError as problem:
            raise UserFailed(f"{self.path} belongs to whoever runs exl3d: use sudo, or run this as that user") from problem
        except OSError as problem:
            raise UserFailed(f"{self.path}: {problem.strerror}") from problem
        except ConfigError as problem:
            raise UserFailed(f"{self.path} {problem.message}. Repair it, or move it away and add everybody again") from problem


def find_people(config: Path | None, state_dir: Path | None) -> PeopleFile:
    """The file of the daemon that is meant.

    1. That of a named state directory. 2. That of the one that config.yaml names. 3. That of a daemon that runs. 4. Where
    config.yaml is the service's, the service's. 5. The first that is there. 6. That of the state directory
    that exl3d would use here.
    """
    if state_dir is not None:
        return PeopleFile(state_dir.expanduser().absolute())
    report = config_file.load(config)
    own = Path(report.state_dir)
    if report.settings.state_dir is not None:
        return PeopleFile(own)
    places = [own, STATE]
    socket = running_socket(places)
    running = [place for place in places if socket_path(place) == socket and socket.exists()]
    service = [STATE] if report.source == str(CONFIG) and STATE.exists() else []
    kept = [place for place in places if (place / FILE_NAME).exists()]
    return PeopleFile([*running, *service, *kept, own][0])
