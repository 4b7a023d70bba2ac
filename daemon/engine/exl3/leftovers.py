"""Shared memory that a killed engine leaves behind. What talks to worker processes through /dev/shm cannot tidy up after SIGKILL,
and neither can Python's own tracker, which dies with the process group: a hundred megabytes of host memory at each death.

An engine writes down what it shares, and the next one in the same place removes what the last one wrote down. The supervisor
starts it when nothing of the last one is alive any more.
"""

import logging
import re
from pathlib import Path

_log = logging.getLogger(__name__)

FILE = "shared-memory"
"""In the engine's state directory: one name a line."""
_SHM, _MAPS = Path("/dev/shm"), Path("/proc/self/maps")  # noqa: S108 - what Linux calls it, not a file of ours
_MAPPED = re.compile(r" /dev/shm/(?P<name>\S+)(?: \(deleted\))?$", re.MULTILINE)
_OURS = re.compile(r"psm_[0-9a-f]+|[0-9a-f]{32}_(?:g|b|r|s|ll)")
"""Names that Python's shared_memory gives, and those of exllamav3's exchange between cards."""


class Leftovers:
    """The list of one engine. `shm` and `maps` are where Linux keeps the segments, and which of them this process has."""

    def __init__(self, state_dir: Path, shm: Path = _SHM, maps: Path = _MAPS) -> None:
        self._file = state_dir / FILE
        self._shm = shm
        self._maps = maps

    def sweep(self) -> int:
        """Remove what the last engine wrote down and did not remove; how many there were. Memory that is not to be had back, as
        that of another user's engine, is no reason not to load.
        """
        try:
            names = self._file.read_text(encoding="ascii").split()
        except (OSError, UnicodeDecodeError):
            return 0
        left = [self._shm / name for name in names if _OURS.fullmatch(name) and (self._shm / name).exists()]
        try:
            for segment in left:
                segment.unlink(missing_ok=True)
            self._file.unlink(missing_ok=True)
        except OSError as problem:
            _log.warning("shared memory that the last engine left behind stays: %s", problem)
            return 0
        if left:
            _log.info("removed %d segments of shared memory that the last engine left behind", len(left))
        return len(left)

    def note(self) -> None:
        """Write down what this process shares now."""
        mapped = {match["name"] for match in _MAPPED.finditer(self._maps.read_text(encoding="utf-8", errors="replace"))}
        names = sorted(name for name in mapped if _OURS.fullmatch(name))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text("\n".join(names), encoding="ascii")
