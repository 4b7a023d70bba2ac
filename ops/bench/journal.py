"""What a daemon's log says about its engine: when it left which state. The log is JSON, a document a line."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

_CHANGE = re.compile(r"^engine(?: (?P<number>\d+))?: (?P<before>[a-z]+) -> (?P<after>[a-z]+)\b")


class _Line(msgspec.Struct):
    time: str
    message: str
    logger: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """The engine went from one state of the supervisor to another. `t`: seconds since the epoch."""

    t: float
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """One engine's end and the next one's beginning, in seconds since the epoch."""

    lost: float
    """The daemon knew."""
    gone: float
    """The old process had been reaped."""
    served: float
    """The next engine was ready."""


_decode = msgspec.json.Decoder(_Line).decode


def changes(log: str) -> Iterator[Change]:
    """All changes of state in a log; lines of other kinds are passed over."""
    for line in log.splitlines():
        try:
            said = _decode(line)
        except msgspec.MsgspecError:
            continue
        found = _CHANGE.match(said.message)
        if found is not None:
            yield Change(datetime.fromisoformat(said.time).timestamp(), found["before"], found["after"])


def recovery_after(found: Sequence[Change], t: float) -> Recovery | None:
    """What followed a fault at `t`: None while the next engine does not serve yet.

    The engine leaves `ready`, its process is gone when `stopping` is left (or at once, where it was reaped before anything
    else was heard), and the next engine makes the state `ready` again.
    """
    lost: float | None = None
    gone: float | None = None
    for change in found:
        if change.t < t:
            continue
        if lost is None:
            if change.before != "ready":
                continue
            lost = change.t
            gone = None if change.after == "stopping" else change.t
        elif gone is None and change.before == "stopping":
            gone = change.t
        if change.after == "ready" and gone is not None:
            return Recovery(lost, gone, change.t)
    return None
