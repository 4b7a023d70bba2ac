"""Who is served when: `decide(state, event, policy) -> (state, effects)`. Fair among people, by what they were served.

Pure: time and everything measured arrive inside events. `host/giving.py` owns the state, carries effects out and tells what came
of them. What stands where: values `admission_values.py`, events and effects `admission_events.py`; the copy a decision works on
`admission_book.py`; who holds how much, and whether a request fits `admission_floor.py`; whose turn it is
`admission_serving.py`; who makes room `admission_yielding.py`; questions about a state `admission_views.py`; which conversation a
prompt goes on with `admission_prefixes.py`. docs/adr/0004-fair-admission.md says where the rules come from.

This file takes events in. What holds for all of them:

1. A request that was accepted is never refused later. It waits in its person's queue, is inside one engine, or rests because its
   engine died and it is not known why.
2. A person's account is charged for a prompt when it is given (corrected when the engine tells what its cache held), and for
   tokens as they are generated. Coming back after a suspension or an engine's death costs nothing.
3. Whoever begins to wait is lifted to the least account among those who wait already, or to where accounts stood when somebody
   was last served: nobody saves service up, and nobody pays for having been alone.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from daemon.core.admission_book import Book, extent_of, pages_for
from daemon.core.admission_events import (
    Acquitted,
    Arrived,
    Began,
    Decision,
    EngineDown,
    EngineUp,
    Event,
    Isolated,
    Left,
    Quoted,
    Rank,
    Returned,
    Served,
    Stepped,
    SuspendAsked,
    Ticked,
    Understood,
)
from daemon.core.admission_floor import rank_of
from daemon.core.admission_serving import serve
from daemon.core.admission_values import (
    Admission,
    Engine,
    Place,
    Policy,
    Request,
)
from daemon.core.admission_views import refusal
from daemon.core.requests import Priority
from daemon.core.settings import SharingOrder

_BLEND = 0.1
MOST_PEOPLE = 4096
"""Owners remembered; whoever asks for nothing is forgotten beyond it."""


def decide(state: Admission, event: Event, policy: Policy) -> Decision:
    """The next state and what to do now."""
    if isinstance(event, Arrived):
        return _arrived(state, event, policy)
    book = Book(state, policy, event.t)
    _take_in(book, event)
    if _may_move(state, book, event):
        serve(book)
    return book.close()


def _may_move(state: Admission, book: Book, event: Event) -> bool:
    """Whether anything can come of an event. `Served` comes before another one, as what has happened up to it; a step in
    which nobody grew or waited makes no room while all slots are taken. Pages of those that began were counted when they were
    given.
    """
    if isinstance(event, Served):
        return False
    if isinstance(event, Stepped) and not (event.waits or event.pending):
        before = state.engines.get(event.engine)
        if before is None:
            return False
        if any(len(engine.inside) < engine.slots for engine in book.engines.values()):
            return True
        return not event.began and event.referenced > before.referenced
    return True


def _take_in(book: Book, event: Event) -> None:
    match event:
        case EngineUp() | EngineDown() | Understood() | Stepped():
            _about_engine(book, event)
        case Arrived() | Left() | Returned() | Quoted() | Isolated() | Acquitted() | SuspendAsked():
            _about_request(book, event)
        case Served(tokens=tokens):
            _served(book, tokens)
        case Ticked():
            pass


def _about_engine(book: Book, event: EngineUp | EngineDown | Understood | Stepped) -> None:
    match event:
        case EngineUp():
            _engine_up(book, event)
        case EngineDown(engine=engine):
            _engine_down(book, engine)
        case Understood(engine=engine, lost=lost):
            _understood(book, engine, lost=lost)
        case Stepped():
            _stepped(book, event)


def _about_request(book: Book, event: Arrived | Left | Returned | Quoted | Isolated | Acquitted | SuspendAsked) -> None:
    """What is told of a request that is over already changes nothing."""
    if isinstance(event, Arrived):
        _arrive(book, event)
        return
    request = book.requests.get(event.id)
    if request is None:
        return
    match event:
        case Left():
            _leave(book, request)
        case Returned():
            _return(book, request)
        case Quoted():
            _quoted(book, request, event)
        case Isolated():
            _isolate(book, request)
        case Acquitted():
            _acquit(book, request)
        case SuspendAsked():
            book.suspend(request)


# --- requests ---


def _arrived(state: Admission, event: Arrived, policy: Policy) -> Decision:
    """Accepted if it is given at once or there is room in the queues; else nothing changes but that it is refused. One that
    stands behind others of its person changes nothing about who is next.
    """
    book = Book(state, policy, event.t)
    _arrive(book, event)
    if book.leads(event.id):
        serve(book)
    if book.requests[event.id].place is None:
        refuse = refusal(book, event.owner, event.id)
        if refuse is not None:
            return state, (refuse,)
    return book.close()


def _arrive(book: Book, event: Arrived) -> None:
    owner = event.owner
    live = event.priority is Priority.LIVE
    person = book.person(owner)
    if not person.waiting:
        book.people[owner] = replace(person, counter=max(person.counter, _least(book, live=live) + person.owed))
    book.people[owner] = replace(book.person(owner), seen=event.t)
    book.arrivals += 1
    request = Request(
        id=event.id,
        owner=owner,
        live=live,
        order=book.arrivals,
        arrived=event.t,
        limit=event.prompt + event.answer,
        hints=event.hints,
    )
    book.sizes[event.id] = event.prompt
    book.line_up(request)
    if len(book.people) > MOST_PEOPLE:
        _forget_somebody(book)


def _least(book: Book, *, live: bool) -> float:
    """Where the account of somebody starts who begins to wait: beside the least of those who wait; if nobody does, nobody is owed
    anything, and all begin where accounts stand.
    """
    inside: dict[str, int] = {}
    for engine in book.engines.values():
        for one in engine.inside:
            owner = book.requests[one].owner
            inside[owner] = inside.get(owner, 0) + 1
    waiting = [
        person.done
        for owner, person in book.people.items()
        if (person.live or (person.background and not live)) and not _at_limit(book, owner, inside.get(owner, 0))
    ]
    if waiting:
        return min(waiting)
    return max(book.virtual, *(book.person(owner).done for owner in inside), 0.0)


def _at_limit(book: Book, owner: str, inside: int) -> bool:
    limit = book.policy.share(owner).max_concurrent
    return limit is not None and inside >= limit


def _forget_somebody(book: Book) -> None:
    """Forget who asks for nothing and has asked longest ago."""
    busy = {request.owner for request in book.requests.values()}
    idle = [(person.seen, owner) for owner, person in book.people.items() if owner not in busy]
    if idle:
        del book.people[min(idle)[1]]


def _leave(book: Book, request: Request) -> None:
    leaving = request.id
    if request.place is not None:
        book.remember(request)
        made = book.sizes[leaving] - request.place.base
        if request.place.started and made:
            pulse = book.pulse
            book.pulse = replace(pulse, answer=pulse.answer + _BLEND * (made - pulse.answer))
        book.virtual = max(book.virtual, book.person(request.owner).done)
    request = book.take_out(request)
    book.step_out(request)
    book.suspects = tuple(one for one in book.suspects if one != leaving)
    for engine, ids in book.resting.items():
        if leaving in ids:
            book.resting[engine] = tuple(one for one in ids if one != leaving)
    book.people[request.owner] = replace(book.person(request.owner), seen=book.t)
    del book.requests[leaving]
    del book.sizes[leaving]


def _return(book: Book, request: Request) -> None:
    if request.place is None:
        return
    request = replace(book.take_out(request), suspended=True, quote=None)
    book.requests[request.id] = request
    if request.id not in book.suspects:
        book.line_up(request)


def _quoted(book: Book, request: Request, event: Quoted) -> None:
    quote = request.quote
    if quote is not None and request.place is None and quote.engine == event.engine:
        book.requests[event.id] = replace(request, quote=replace(quote, pages=event.pages))


def _began(book: Book, event: Began) -> None:
    """The engine's cache held more or less than was expected: the account and the prefill order are put right."""
    request = book.requests.get(event.id)
    if request is None or request.place is None:
        return
    place = replace(request.place, started=True, waits=0)
    if event.extends is not None and event.cached:
        book.go_on_with(request.owner, event.extends)
    uncached = max(1, place.base - event.cached)
    prices = book.policy.prices
    change = (uncached - place.uncached) * (prices.prefill - prices.cached)
    if place.owed and change:
        book.charge(request.owner, change, change)
        place = replace(place, owed=max(0.0, place.owed + change))
    fair = book.policy.order is SharingOrder.FAIR
    if fair and abs(change) > book.policy.quantum:
        first = rank_of(request, 0.0)
        moved = max(first, place.rank + int(change / book.weight(request.owner)))
        place = replace(place, rank=moved)
        book.effects.append(Rank(place.engine, {request.id: moved}))
    book.requests[request.id] = replace(request, place=replace(place, uncached=uncached))


def _served(book: Book, tokens: Mapping[int, int]) -> None:
    """Tokens were generated: sequences grow, and their people pay."""
    totals: dict[str, int] = {}
    done = 0.0
    for served, count in tokens.items():
        request = book.requests.get(served)
        if request is None:
            continue
        totals[request.owner] = totals.get(request.owner, 0) + count
        size = book.sizes[served] = book.sizes[served] + count
        place = request.place
        if place is not None and (place.owed or place.waits or not place.started or size >= place.extent):
            done += place.owed
            _advance(book, request, place, size)
    price = book.policy.prices.decode
    for owner, count in totals.items():
        person = book.person(owner)
        counter = person.counter + count * price / book.weight(owner)
        book.people[owner] = replace(person, counter=counter, served=person.served + count)
        done += count * price
    book.beat(done)


def _advance(book: Book, request: Request, place: Place, size: int) -> None:
    """Its prompt is computed, or it has grown into more pages."""
    if place.owed:
        book.charge(request.owner, 0.0, -place.owed)
    engine = book.engines[place.engine]
    extent, need = place.extent, place.need
    if size >= extent and extent < request.limit:
        extent = extent_of(engine, size, request.limit, book.policy.reserve)
        need = max(need, pages_for(engine, extent))
    changed = replace(place, owed=0.0, waits=0, started=True, extent=extent, need=need)
    book.requests[request.id] = replace(request, place=changed)


# --- engines ---


def _engine_up(book: Book, event: EngineUp) -> None:
    book.engines[event.engine] = Engine(slots=event.slots, pages=event.pages, page=event.page, interval=event.interval)
    book.expected -= {event.engine}
    book.pulse = replace(book.pulse, since=0.0, service=0.0)


def _engine_down(book: Book, engine: int) -> None:
    """What it held rests, the shortest first: it has the least to compute again. Claims on it are void."""
    gone = book.engines.get(engine)
    book.expected |= {engine}
    if gone is None:
        return
    held = sorted(gone.inside, key=lambda one: (book.sizes[one], book.requests[one].order))
    for one in held:
        request = book.take_out(book.requests[one])
        book.requests[one] = replace(request, suspended=False, quote=None)
    del book.engines[engine]
    book.forget_engine(engine)
    for one in list(book.waiting()):
        request = book.requests[one]
        if request.claim == engine:
            book.requests[one] = replace(request, claim=None)
    resting = tuple(one for one in held if one not in book.suspects)
    book.resting[engine] = (*book.resting.get(engine, ()), *resting)


def _understood(book: Book, engine: int, *, lost: bool) -> None:
    for one in reversed(book.resting.pop(engine, ())):
        book.line_up_first(book.requests[one])
    if lost:
        book.expected -= {engine}


def _stepped(book: Book, event: Stepped) -> None:
    engine = book.engines.get(event.engine)
    if engine is None:
        return
    if not event.pending and engine.pending:
        for one in engine.inside:
            _wait(book, one, 0)
    settled = event.referenced if not event.pending else max(engine.settled, event.referenced)
    book.engines[event.engine] = replace(engine, referenced=event.referenced, settled=settled, pending=event.pending)
    for began in event.began:
        _began(book, began)
    for waits in event.waits:
        _wait(book, waits.id, waits.pages)


def _wait(book: Book, waiting: int, pages: int) -> None:
    request = book.requests.get(waiting)
    if request is not None and request.place is not None and request.place.waits != pages:
        book.requests[waiting] = replace(request, place=replace(request.place, waits=pages))


# --- suspects ---


def _isolate(book: Book, request: Request) -> None:
    suspect = request.id
    if suspect in book.suspects:
        return
    book.step_out(request)
    for engine, ids in book.resting.items():
        if suspect in ids:
            book.resting[engine] = tuple(one for one in ids if one != suspect)
    book.suspects = (*book.suspects, suspect)


def _acquit(book: Book, request: Request) -> None:
    """It goes on where it runs, but for when another suspect waits: that one shall not wait for the whole of its answer."""
    if request.id not in book.suspects:
        return
    book.suspects = tuple(one for one in book.suspects if one != request.id)
    if request.place is None:
        book.line_up(request)
    elif book.suspects:
        book.suspend(request)
