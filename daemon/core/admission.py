"""Which waiting request goes to the engine next: `decide(state, event, policy) -> (state, effects)`.

Pure, and to be replaced by fair sharing among people; whoever runs it sees only events and effects. The rules now:

1. At most as many requests are inside the engine as it has slots, and none is added while one of them waits in there for
   pages: the engine's own queue stays almost empty, so that the order is ours.
2. Requests that lost their engine come first, in the order the runner names them (the shortest first).
3. Then live requests, then background ones, each in order of arrival.
4. The queue is bounded; what does not fit is refused at once. A request that was accepted is never refused later.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

from daemon.core.requests import Priority


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds."""

    max_queued: int
    """Requests that may wait."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Who waits and who runs, by request id."""

    slots: int = 0
    """Requests the engine may hold; 0 while there is no engine."""
    pressed: bool = False
    """A request inside the engine waits for pages."""
    returned: tuple[int, ...] = ()
    live: tuple[int, ...] = ()
    background: tuple[int, ...] = ()
    given: tuple[int, ...] = ()
    """Requests inside the engine, in the order they were given."""

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self.returned) + len(self.live) + len(self.background)


@dataclass(frozen=True, slots=True)
class Arrived:
    """A new request asks to be accepted."""

    id: int
    priority: Priority


@dataclass(frozen=True, slots=True)
class Left:
    """A request ended, was cancelled, or timed out, wherever it was."""

    id: int


@dataclass(frozen=True, slots=True)
class Returned:
    """The engine set a request aside; it must be given again."""

    id: int


@dataclass(frozen=True, slots=True)
class EngineUp:
    """An engine takes requests."""

    slots: int


@dataclass(frozen=True, slots=True)
class EngineDown:
    """The engine is gone. `order` names the requests it held, as they should come back."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pressure:
    """`pending` requests inside the engine wait for pages."""

    pending: int


Event: TypeAlias = Arrived | Left | Returned | EngineUp | EngineDown | Pressure


@dataclass(frozen=True, slots=True)
class Give:
    """Submit this request now."""

    id: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """The queue is full."""

    id: int


Effect: TypeAlias = Give | Refuse
Decision: TypeAlias = tuple[Admission, tuple[Effect, ...]]


def decide(state: Admission, event: Event, policy: Policy) -> Decision:
    """The next state and what to do now."""
    match event:
        case Arrived(arriving, priority):
            return _arrived(state, arriving, priority, policy)
        case Left(leaving):
            return _give(_without(state, leaving))
        case Returned(returning):
            if returning not in state.given:
                return state, ()
            state = _without(state, returning)
            return _give(replace(state, returned=(*state.returned, returning)))
        case EngineUp(slots):
            return _give(replace(state, slots=slots, pressed=False))
        case EngineDown(order):
            back = (*(request for request in order if request in state.given), *state.returned)
            lost = tuple(request for request in state.given if request not in order)
            return replace(state, slots=0, pressed=False, given=(), returned=(*back, *lost)), ()
        case Pressure(pending):
            return _give(replace(state, pressed=pending > 0))


def _arrived(state: Admission, arriving: int, priority: Priority, policy: Policy) -> Decision:
    match priority:
        case Priority.LIVE:
            joined = replace(state, live=(*state.live, arriving))
        case Priority.BACKGROUND:
            joined = replace(state, background=(*state.background, arriving))
    joined, effects = _give(joined)
    if joined.queued > policy.max_queued and Give(arriving) not in effects:
        return state, (Refuse(arriving),)
    return joined, effects


def _without(state: Admission, leaving: int) -> Admission:
    def rest(ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(request for request in ids if request != leaving) if leaving in ids else ids

    return replace(
        state,
        returned=rest(state.returned),
        live=rest(state.live),
        background=rest(state.background),
        given=rest(state.given),
    )


def _give(state: Admission) -> Decision:
    if state.pressed and state.given:
        return state, ()
    room = state.slots - len(state.given)
    if room <= 0 or not state.queued:
        return state, ()
    taken = (*state.returned, *state.live, *state.background)[:room]
    chosen = frozenset(taken)
    state = replace(
        state,
        returned=tuple(request for request in state.returned if request not in chosen),
        live=tuple(request for request in state.live if request not in chosen),
        background=tuple(request for request in state.background if request not in chosen),
        given=(*state.given, *taken),
    )
    return state, tuple(Give(request) for request in taken)
