"""What the supervisor remembers besides the state of an engine: why engines ended, and what outlives them."""

from dataclasses import dataclass
from enum import Enum

from daemon.core.faults_values import Label, Remedy
from daemon.core.settings import EngineSettings


class Cause(Enum):
    """Why an engine ends."""

    ASKED = "asked"
    """The daemon or a person wanted it."""
    REFUSED = "refused"
    """It can never serve here."""
    DIED = "died"
    """By itself, without a word."""
    ANNOUNCED = "announced"
    """By itself, with its reason."""
    HUNG = "hung"
    """It made no progress."""
    JUDGED = "judged"
    """The watchdog saw what the engine did not."""


class Awaits(Enum):
    """What a wait without an engine is for."""

    TIME = "time"
    """Deaths in a row are spread out."""
    MEMORY = "memory"
    """The last engine's GPU memory has not come back yet."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """The watchdog holds a serving engine for broken since `t`. Tokens are the proof that it is not."""

    t: float
    label: Label
    words: str
    small: bool
    """Whether the next engine must need less memory."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What only a person can do about what was seen at `t`."""

    t: float
    remedy: Remedy
    label: Label
    words: str
    """What was seen, and the command that cures it."""


@dataclass(frozen=True, slots=True)
class Fallen:
    """An engine that ended while it had requests, until somebody is told."""

    t: float
    boot: int
    why: str
    accuses: bool
    """Whether one of its requests may have caused it."""


@dataclass(frozen=True, slots=True)
class History:
    """What outlives an engine."""

    boots: int = 0
    """Engines spawned since the daemon started; also the name of the newest."""
    restarts: tuple[float, ...] = ()
    """Times of the restarts within the window."""
    row: int = 0
    """Deaths since tokens were last served for a while."""
    rebuilds: tuple[float, ...] = ()
    """Times at which a smaller engine was decided on, within the window."""
    smaller: EngineSettings | None = None
    """What engines are told instead of the configuration, since that did not fit."""
    changes: str = ""
    """How the two differ, for people."""
    room: int | None = None
    """Tokens of cache that the last engine had."""
    tight: str | None = None
    """Why the next death calls for a smaller engine."""
    advice: Advice | None = None
    suspected: float | None = None
    """When the whole device was last seen to be at fault."""
    fallen: Fallen | None = None
    trouble: float | None = None
    """When the open incident began."""
