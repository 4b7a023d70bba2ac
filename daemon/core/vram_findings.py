"""What can be wrong with a model directory: the values of the directory check."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

_ENOUGH = 3
"""Names that a sentence takes."""


class Gravity(Enum):
    """What a finding means."""

    FATAL = "fatal"
    """It cannot be loaded, or not as what it says it is."""
    WARNING = "warning"
    """It can be served, with something missing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a directory."""

    gravity: Gravity
    words: str


def few(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:_ENOUGH]) + (f" and {len(names) - _ENOUGH} more" if len(names) > _ENOUGH else "")
