"""Which requests have killed engines, remembered across restarts of the daemon in a small file. Digests only, never text.

Without it a client that sends its poisonous request again and again could crash a daemon that systemd restarts each time.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from daemon.core.poison import Conviction, Convictions, Policy, convict, limited

_log = logging.getLogger("exl3d.poison")

NAME = "poison.json"
"""In the state directory."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file holds."""

    convictions: list[Conviction]


class ConvictionStore:
    """Lives on the event loop's thread, but for its construction: that reads the file. `path` None keeps everything in memory.
    `clock` is wall-clock time.
    """

    def __init__(self, path: Path | None, policy: Policy, clock: Callable[[], float]) -> None:
        self._path = path
        self._policy = policy
        self._clock = clock
        self._convictions = Convictions() if path is None else _read(path, clock(), policy)
        self._writing: asyncio.Task[None] | None = None
        self._written = self._convictions

    def any(self) -> bool:
        """Whether any request is refused at all: where none is, none need be hashed."""
        return self._convictions.live(self._clock())

    def refuses(self, digest: str) -> bool:
        """Whether a request with this digest killed an engine not too long ago."""
        return self._convictions.refuses(digest, self._clock())

    def remember(self, digest: str) -> None:
        """Refuse it from now on. It is on disk a moment later; see `flushed`."""
        self._convictions = convict(self._convictions, digest, self._clock(), self._policy)
        if self._path is not None and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self._write(self._path), name="poison memory")

    async def flushed(self) -> None:
        """Wait until everything remembered is on disk, or known not to get there."""
        if self._writing is not None:
            await self._writing

    async def _write(self, path: Path) -> None:
        while self._written is not self._convictions:
            convictions = self._convictions
            try:
                await asyncio.to_thread(_replace, path, msgspec.json.encode(_File(list(convictions.known))))
            except OSError as problem:
                _log.error("cannot remember on disk which requests killed engines: %s", problem)
            self._written = convictions


def _read(path: Path, now: float, policy: Policy) -> Convictions:
    try:
        return limited(msgspec.json.decode(path.read_bytes(), type=_File).convictions, now, policy)
    except FileNotFoundError:
        return Convictions()
    except (OSError, msgspec.MsgspecError) as problem:
        _log.warning("%s cannot be read; requests that killed engines before may do so once more: %s", path, problem)
        return Convictions()


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".tmp")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, opened with the right mode
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
