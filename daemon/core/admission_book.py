"""The state of admission while one decision is made: copied, changed, and closed into a new state.

Nothing here decides. Every change of a queue, of an engine's inside or of an account goes through a method of `Book`, so that the
three agree.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from daemon.core.admission_events import (
    Decision,
    Effect,
    Give,
    Suspend,
)
from daemon.core.admission_values import (
    Admission,
    Engine,
    Person,
    Place,
    Policy,
    Request,
    Warm,
)

MOST_WARM = 16
"""Conversations remembered of a person."""
_PULSE_SECONDS = 2.0
_SMOOTHING = 0.3
_DUST = 1e-6
"""What rounding may leave of a debt."""


class Book:
    """A working copy of an `Admission`. See the module."""

    def __init__(self, state: Admission, policy: Policy, t: float) -> None:
        self.policy = policy
        self.t = t
        self.people = dict(state.people)
        self.requests = dict(state.requests)
        self.sizes = dict(state.sizes)
        self.engines = dict(state.engines)
        self.resting = dict(state.resting)
        self.expected = state.expected
        self.suspects = state.suspects
        self.arrivals = state.arrivals
        self.virtual = state.virtual
        self.pulse = state.pulse
        self.suspensions = state.suspensions
        self.resumes = state.resumes
        self.effects: list[Effect] = []
        self.kept_changed = False
        """What engines should keep may differ from what they were told."""

    def close(self) -> Decision:
        """The new state and what to do."""
        state = Admission(
            people=self.people,
            requests=self.requests,
            sizes=self.sizes,
            engines=self.engines,
            resting=self.resting,
            expected=self.expected,
            suspects=self.suspects,
            arrivals=self.arrivals,
            virtual=self.virtual,
            pulse=self.pulse,
            suspensions=self.suspensions,
            resumes=self.resumes,
        )
        return state, tuple(self.effects)

    # --- reading ---

    def person(self, owner: str) -> Person:
        """What is known of an owner."""
        return self.people.get(owner) or Person()

    def weight(self, owner: str) -> float:
        """An owner's weight."""
        return self.policy.share(owner).weight

    def waiting(self) -> Iterator[int]:
        """Everything that stands in a queue."""
        for person in self.people.values():
            yield from person.live
            yield from person.background

    def was_given(self, request: int) -> bool:
        """Whether a request was inside an engine before. Those that were stand before others in their queue."""
        return self.requests[request].given > 0

    @property
    def running(self) -> int:
        """Requests inside engines."""
        return sum(len(engine.inside) for engine in self.engines.values())

    @property
    def queued(self) -> int:
        """Requests that wait, wherever."""
        return len(self.requests) - self.running

    # --- queues ---

    def leads(self, request: int) -> bool:
        """Whether a request is the first in one of its person's queues."""
        person = self.person(self.requests[request].owner)
        return request in (person.live[:1] + person.background[:1])

    def line_up(self, request: Request) -> None:
        """Put a request into its person's queue, before those that arrived after it."""
        person = self.person(request.owner)
        queue = person.live if request.live else person.background
        place = len(queue)
        if request.order < self.arrivals:
            place = next((index for index, one in enumerate(queue) if self.requests[one].order > request.order), place)
        self._queue(request, (*queue[:place], request.id, *queue[place:]))

    def line_up_first(self, request: Request) -> None:
        """Put a request into its person's queue, before all others."""
        person = self.person(request.owner)
        self._queue(request, (request.id, *(person.live if request.live else person.background)))

    def _queue(self, request: Request, queue: tuple[int, ...]) -> None:
        person = self.person(request.owner)
        self.people[request.owner] = replace(person, live=queue) if request.live else replace(person, background=queue)
        self.requests[request.id] = request

    def step_out(self, request: Request) -> None:
        """Take a request out of its person's queue, if it stands there."""
        person = self.person(request.owner)
        if request.id in person.live:
            self.people[request.owner] = replace(person, live=_without(person.live, request.id))
        elif request.id in person.background:
            self.people[request.owner] = replace(person, background=_without(person.background, request.id))

    # --- engines ---

    def give(self, request: Request, place: Place) -> None:
        """Put a request into an engine."""
        self.step_out(request)
        engine = self.engines[place.engine]
        self.engines[place.engine] = replace(engine, inside=(*engine.inside, request.id), version=engine.version + 1)
        person = self.person(request.owner)
        if request.given:
            self.resumes += 1
        else:
            waited = person.waited + self.t - request.arrived
            self.people[request.owner] = replace(person, waits=person.waits + 1, waited=waited)
        self.requests[request.id] = replace(
            request, place=place, given=request.given + 1, suspended=False, claim=None, passed=0, quote=None
        )
        self.effects.append(Give(request.id, place.engine, place.rank))
        self.kept_changed = True

    def suspend(self, request: Request) -> Request:
        """Tell a request inside an engine to give its place up."""
        place = request.place
        if place is None or place.suspending:
            return request
        self.suspensions += 1
        self.effects.append(Suspend(request.id, place.engine))
        changed = replace(request, place=replace(place, suspending=True))
        self.requests[request.id] = changed
        return changed

    def take_out(self, request: Request) -> Request:
        """Take a request out of its engine. Its pages are free before anything else can be given, since commands keep their
        order; the engine's next report will confirm it. Its account is settled: a prompt that never got its pages was no service.
        """
        place = request.place
        if place is None:
            return request
        engine = self.engines.get(place.engine)
        if engine is not None:
            inside = _without(engine.inside, request.id)
            freed = place.need if place.started else 0
            self.engines[place.engine] = replace(
                engine,
                inside=inside,
                version=engine.version + 1,
                settled=max(0, engine.settled - freed),
                referenced=max(0, engine.referenced - (0 if place.waits else freed)),
            )
        charged = request.charged
        if place.owed and not place.started:
            self.charge(request.owner, -place.owed, -place.owed)
            charged = False
        elif place.owed:
            self.charge(request.owner, 0.0, -place.owed)
        changed = replace(request, place=None, charged=charged)
        self.requests[request.id] = changed
        self.kept_changed = True
        return changed

    # --- accounts ---

    def charge(self, owner: str, service: float, owed: float) -> None:
        """Add service, and service that is charged but not done, to a person's account."""
        weight = self.weight(owner)
        person = self.person(owner)
        owing = person.owed + owed / weight
        owing = owing if owing > _DUST else 0.0
        self.people[owner] = replace(
            person,
            counter=person.counter + service / weight,
            owed=owing,
        )

    def beat(self, service: float) -> None:
        """Service was done: measure its rate."""
        pulse = self.pulse
        since = self.t if pulse.since == 0.0 else pulse.since
        total = pulse.service + service
        spent = self.t - since
        if spent < _PULSE_SECONDS:
            self.pulse = replace(pulse, since=since, service=total)
            return
        rate = total / spent
        blended = rate if pulse.rate is None else pulse.rate + _SMOOTHING * (rate - pulse.rate)
        self.pulse = replace(pulse, since=self.t, service=0.0, rate=blended)

    # --- conversations ---

    def remember(self, request: Request) -> None:
        """A request that ended in an engine leaves its sequence in the prefix cache there."""
        place = request.place
        engine = None if place is None else self.engines.get(place.engine)
        if place is None or engine is None or not place.started or not request.live:
            return
        pages = self.sizes[request.id] // engine.page
        if pages:
            person = self.person(request.owner)
            warm = (*person.warm, Warm(request.id, place.engine, pages, self.t))[-MOST_WARM:]
            self.people[request.owner] = replace(person, warm=warm)
            self.kept_changed = True

    def go_on_with(self, owner: str, earlier: int) -> None:
        """A conversation that was over goes on: it is running now."""
        person = self.person(owner)
        warm = tuple(one for one in person.warm if one.id != earlier)
        if len(warm) < len(person.warm):
            self.people[owner] = replace(person, warm=warm)
            self.kept_changed = True

    def forget_engine(self, engine: int) -> None:
        """Its cache is gone."""
        for owner, person in list(self.people.items()):
            warm = tuple(one for one in person.warm if one.engine != engine)
            if len(warm) < len(person.warm):
                self.people[owner] = replace(person, warm=warm)
        self.kept_changed = True


def _without(ids: tuple[int, ...], gone: int) -> tuple[int, ...]:
    """The same without one that is in it, once."""
    place = ids.index(gone)
    return ids[:place] + ids[place + 1 :]


def pages_for(engine: Engine, tokens: int) -> int:
    """Whole pages for a number of tokens, and never more than there are."""
    return min(engine.pages, -(-tokens // engine.page))


def extent_of(engine: Engine, size: int, limit: int, reserve: int) -> int:
    """Tokens for which an engine claims pages when a sequence of `size` enters it or grows: the reserve, up to the next page or
    recurrent checkpoint, or the rest of the answer and the token after it.
    """
    left = limit - size
    if left <= reserve:
        return limit + 1
    boundary = engine.interval or engine.page
    return -(-(size - 1 + reserve) // boundary) * boundary
