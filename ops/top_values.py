"""What happened between two looks at the daemon: tokens a second, all together and by person."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from daemon.core.ports import Overview


@dataclass(frozen=True, slots=True)
class Flow:
    """Generated tokens a second. None and empty where there was no earlier look, or another daemon gave it."""

    total: float | None = None
    people: Mapping[str, float] = field(default_factory=dict[str, float])


def flow_between(before: Overview | None, now: Overview) -> Flow:
    """The flow between two looks, by the daemon's own clock."""
    if before is None:
        return Flow()
    seconds = now.status.uptime - before.status.uptime
    if seconds <= 0:
        return Flow()
    earlier = before.status.sharing.people
    rates: dict[str, float] = {}
    for name, person in now.status.sharing.people.items():
        known = earlier.get(name)
        rates[name] = max(0, person.served - (0 if known is None else known.served)) / seconds
    return Flow(sum(rates.values()), rates)


def shares(now: Overview, flow: Flow) -> Mapping[str, float]:
    """Each person's part of what is generated now, 0 to 1; where nothing is or that is not known, of everything so far."""
    parts = flow.people if flow.total else {name: float(one.served) for name, one in now.status.sharing.people.items()}
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items()} if total else {}
