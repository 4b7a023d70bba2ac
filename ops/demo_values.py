"""What making the demo model and converting it have in common."""

import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TypeAlias

import msgspec

FORMAT = 1
"""Raised when the conversion changes, so that directories made by an older version are made again."""

MARKER = "exl3d-demo.json"


class Stage(Enum):
    """What takes time, in the order in which it happens."""

    FETCH = "fetching the weights"
    UNPACK = "unpacking"
    CONVERT = "converting"
    WRITE = "writing"


Progress: TypeAlias = Callable[[Stage, int, int], None]
"""Called with a stage, how much of it is done, and how much there is in all."""


class Marker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last file written into a model directory."""

    format: int
    source: str
    files: dict[str, int]
    """Size in bytes of each file."""


def sync(path: Path) -> None:
    """Force a file or directory to disk, so that a rename never shows an empty file after a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
