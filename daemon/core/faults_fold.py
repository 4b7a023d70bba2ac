"""Verdicts over time: what belongs together is one incident, and echoes of our own kills are none.

`correlate(state, event, policy) -> (state, effects)`, pure; time stands in the events (CLOCK_MONOTONIC seconds). Rules:

1. A loud verdict opens an incident, or joins the open one if that is still fresh (`burst`). Joining never opens a second.
2. Quiet hints (memory pressure, refused calls) alone open nothing. One within `join` seconds of an exception, a stall or a
   failed probe, before or after, says that the next engine needs a smaller budget.
3. For `mask` seconds after we killed an engine, what only calls for a new engine is an echo of that kill, if it is about that
   engine or about none. What calls for more than that counts.
"""

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from daemon.core.faults_values import Label, Remedy, Verdict

MAX_EVIDENCE = 24
"""Lines an incident keeps; the first ones say most."""
MAX_HINTS = 64

_HINTS = frozenset({Label.DXGKRNL_RESIDENCY, Label.DXGKRNL_IOCTL_FAILURE, Label.HOST_GPU_ERROR, Label.XID_OTHER})
_PRESSURE = frozenset({Label.DXGKRNL_RESIDENCY, Label.DXGKRNL_IOCTL_FAILURE})


@dataclass(frozen=True, slots=True)
class FoldPolicy:
    """Windows in seconds."""

    join: float = 5.0
    burst: float = 30.0
    mask: float = 10.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A verdict at the time its evidence was made. `about` is the boot name of the engine it speaks of; empty: the machine."""

    t: float
    verdict: Verdict
    about: str = ""


@dataclass(frozen=True, slots=True)
class OwnKill:
    """We sent SIGKILL or SIGTERM to an engine."""

    t: float
    about: str


TimedEvidence: TypeAlias = Seen | OwnKill


@dataclass(frozen=True, slots=True)
class Incident:
    """One thing that went wrong, however many lines told of it."""

    number: int
    began: float
    latest: float
    remedy: Remedy
    label: Label
    about: str
    evidence: tuple[str, ...]
    count: int = 1
    """Pieces of loud evidence."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A new incident: act on it."""

    incident: Incident


@dataclass(frozen=True, slots=True)
class Escalated:
    """The open incident needs more than was thought: act on the difference."""

    incident: Incident


FoldEffect: TypeAlias = Opened | Escalated


@dataclass(frozen=True, slots=True)
class Correlation:
    """What the fold remembers."""

    opened: int = 0
    """Incidents so far."""
    incident: Incident | None = None
    """The latest one; joined while it is fresh."""
    hints: tuple[Seen, ...] = ()
    kills: tuple[OwnKill, ...] = ()
    masked: int = 0
    """Loud verdicts that were echoes of our own kills."""


@dataclass(frozen=True, slots=True)
class _Near:
    """Hints around a moment."""

    pressure: bool
    lines: tuple[str, ...] = field(default=())


def _near(hints: tuple[Seen, ...], t: float, policy: FoldPolicy) -> _Near:
    close = [hint for hint in hints if abs(hint.t - t) <= policy.join]
    return _Near(
        any(hint.verdict.label in _PRESSURE for hint in close), tuple(line for hint in close for line in hint.verdict.evidence)
    )


def _is_echo(seen: Seen, kills: tuple[OwnKill, ...], policy: FoldPolicy) -> bool:
    if seen.verdict.remedy > Remedy.ENGINE_REBUILD:
        return False
    return any(0 <= seen.t - kill.t <= policy.mask and seen.about in {"", kill.about} for kill in kills)


def _with_pressure(remedy: Remedy, *, pressure: bool) -> Remedy:
    """The same engine again would run into the same wall."""
    return Remedy.ENGINE_REBUILD if pressure and remedy is Remedy.PROCESS_RESTART else remedy


def _hint(state: Correlation, seen: Seen, policy: FoldPolicy) -> tuple[Correlation, tuple[FoldEffect, ...]]:
    if seen.verdict.label not in _HINTS:
        return state, ()
    kept = tuple(hint for hint in state.hints if seen.t - hint.t <= policy.join)[-(MAX_HINTS - 1) :]
    state = replace(state, hints=(*kept, seen))
    incident = state.incident
    if incident is None or abs(seen.t - incident.latest) > policy.join or seen.verdict.label not in _PRESSURE:
        return state, ()
    if _is_pressure_proof(incident):
        return state, ()
    remedy = _with_pressure(incident.remedy, pressure=True)
    grown = replace(incident, remedy=remedy, evidence=(*incident.evidence, *seen.verdict.evidence)[:MAX_EVIDENCE])
    effects = (Escalated(grown),) if remedy > incident.remedy else ()
    return replace(state, incident=grown), effects


def _is_pressure_proof(incident: Incident) -> bool:
    """A lost VMBus message brings a refused call along as its own echo: that is no memory pressure."""
    return incident.label is Label.DXGKRNL_VMBUS


def _loud(state: Correlation, seen: Seen, policy: FoldPolicy) -> tuple[Correlation, tuple[FoldEffect, ...]]:
    verdict = seen.verdict
    if _is_echo(seen, state.kills, policy):
        return replace(state, masked=state.masked + 1), ()
    near = _near(state.hints, seen.t, policy)
    pressure = near.pressure and verdict.label is not Label.DXGKRNL_VMBUS
    remedy = _with_pressure(verdict.remedy, pressure=pressure)
    incident = state.incident
    fresh = incident is not None and abs(seen.t - incident.latest) <= policy.burst
    if incident is None or not fresh or (seen.about and incident.about not in {"", seen.about}):
        number = state.opened + 1
        evidence = (*verdict.evidence, *near.lines)[:MAX_EVIDENCE]
        new = Incident(number, seen.t, seen.t, remedy, verdict.label, seen.about, evidence)
        return replace(state, opened=number, incident=new), (Opened(new),)
    higher = remedy > incident.remedy
    grown = replace(
        incident,
        latest=max(incident.latest, seen.t),
        remedy=max(incident.remedy, remedy),
        label=verdict.label if higher else incident.label,
        about=incident.about or seen.about,
        evidence=(*incident.evidence, *verdict.evidence)[:MAX_EVIDENCE],
        count=incident.count + 1,
    )
    return replace(state, incident=grown), ((Escalated(grown),) if higher else ())


def correlate(
    state: Correlation, event: TimedEvidence, policy: FoldPolicy | None = None
) -> tuple[Correlation, tuple[FoldEffect, ...]]:
    """Take one event into account. At most one effect comes back."""
    windows = policy or FoldPolicy()
    match event:
        case OwnKill():
            kept = tuple(kill for kill in state.kills if event.t - kill.t <= windows.mask)
            return replace(state, kills=(*kept, event)), ()
        case Seen():
            return _hint(state, event, windows) if event.verdict.quiet else _loud(state, event, windows)
