"""Which requests have killed engines, remembered across restarts of the daemon in a small file. Digests only, never text.

Without it a client that sends its poisonous request again and again could crash a daemon that systemd restarts each time.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from daemon.core.poison import Conviction, Convictions, Policy, convict, limited
from daemon.host.kept_file import KeptFile

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
        self._policy = policy
        self._clock = clock
        self._convictions = Convictions() if path is None else _read(path, clock(), policy)
        words = "cannot remember on disk which requests killed engines"
        self._file = None if path is None else KeptFile(path, mode=0o600, log=_log, complaint=words)

    def any(self) -> bool:
        """Whether any request is refused at all: where none is, none need be hashed."""
        return self._convictions.live(self._clock())

    def refuses(self, digest: str) -> bool:
        """Whether a request with this digest killed an engine not too long ago."""
        return self._convictions.refuses(digest, self._clock())

    def remember(self, digest: str) -> None:
        """Refuse it from now on. It is on disk a moment later; see `flushed`."""
        self._convictions = convict(self._convictions, digest, self._clock(), self._policy)
        if self._file is not None:
            self._file.keep(msgspec.json.encode(_File(list(self._convictions.known))))

    async def flushed(self) -> None:
        """Wait until everything remembered is on disk, or known not to get there."""
        if self._file is not None:
            await self._file.flushed()


def _read(path: Path, now: float, policy: Policy) -> Convictions:
    try:
        return limited(msgspec.json.decode(path.read_bytes(), type=_File).convictions, now, policy)
    except FileNotFoundError:
        return Convictions()
    except (OSError, msgspec.MsgspecError) as problem:
        _log.warning("%s cannot be read; requests that killed engines before may do so once more: %s", path, problem)
        return Convictions()
