"""What the watchdog can look at on this machine, as people see it in status."""

from dataclasses import dataclass
from enum import Enum


class SenseState(Enum):
    """Whether a source of evidence works."""

    STARTING = "starting"
    WORKING = "working"
    STALE = "stale"
    """It worked, and does not answer now."""
    ABSENT = "absent"
    """The system does not have it or does not permit it."""
    OFF = "off"
    """The configuration does not want it."""


@dataclass(frozen=True, slots=True)
class Sense:
    """One source of evidence."""

    name: str
    state: SenseState
    words: str
    """One sentence: where it comes from, or why it is missing and what would change that."""
