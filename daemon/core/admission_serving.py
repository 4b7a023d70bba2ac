"""Who is given next. Called after every event, with what it has changed already in the book.

1. Suspects (requests that may have killed an engine) go first, one at a time, into an empty engine of their own. If none is empty
   and none is expected back, the emptiest one is cleared.
2. Requests that wait inside an engine for pages are let go on (`admission_yielding.py`).
3. Then, again and again, the first of everybody's next requests that has room is given. First are those for which room was made;
   then live before background; then whoever has had the least for their weight; then whoever has the fewest waiting; then the
   oldest.
4. A live request without room holds up those after it, except: a person within their guarantee; and a few times others that stay
   within their fair part. Room is made for it where the rules of yielding allow. One that waits for its own person's sake (limit,
   prompts still to be computed) holds up nobody else.
5. Background requests wait while any live one waits for room.

In order of arrival (`SharingOrder.FIFO`) only 1, 2 and "the first is given when it has room" remain.
"""

from functools import partial
from itertools import takewhile

from msgspec.structs import replace

from daemon.core.admission_book import Book
from daemon.core.admission_events import (
    AskQuote,
    Keep,
)
from daemon.core.admission_floor import Floor
from daemon.core.admission_values import (
    Quote,
    Reason,
    Request,
)
from daemon.core.admission_yielding import make_room, relieve

PASSES = 16
"""How often others may go before a request for which there is no room."""
KEPT = 48
"""Conversations an engine is asked to keep, at most."""


def serve(book: Book) -> None:
    """Give what can be given, make room for what cannot, and say what is to be kept."""
    if book.suspects:
        _serve_suspects(book)
    if book.engines and (book.queued or _pressed(book)):
        floor = Floor(book)
        _close_for_suspects(floor)
        relieve(floor)
        while _give_next(floor):
            pass
    if book.kept_changed:
        _keep(book)


def _pressed(book: Book) -> bool:
    return any(engine.pending for engine in book.engines.values())


# --- suspects ---


def _next_suspect(book: Book) -> Request | None:
    """The first suspect that waits, unless another one runs."""
    waiting: Request | None = None
    for one in book.suspects:
        request = book.requests[one]
        if request.place is not None:
            return None
        if waiting is None:
            waiting = request
    return waiting


def _serve_suspects(book: Book) -> None:
    suspect = _next_suspect(book)
    if suspect is None:
        return
    for number, engine in book.engines.items():
        if not engine.inside:
            Floor(book).place(suspect, number)
            return


def _close_for_suspects(floor: Floor) -> None:
    """Clear an engine for a suspect that found none empty, unless one is expected back."""
    book = floor.book
    if not book.suspects or _next_suspect(book) is None or book.expected:
        return
    number = min(floor.loads, key=lambda one: (len(floor.streams(one)), one))
    for stream in floor.streams(number):
        floor.suspend(stream)
    floor.loads[number].closed = True


# --- order ---


def heads(floor: Floor) -> list[Request]:
    """Everybody's next request, in the order in which they are looked at. People at their own limit have none."""
    book = floor.book
    found: list[Request] = []
    for owner, person in book.people.items():
        if person.waiting and not floor.full(owner):
            queues = (person.live or person.background,) if floor.fair else (person.live, person.background)
            first = min((queue[0] for queue in queues if queue), key=lambda one: book.requests[one].order)
            found.append(book.requests[first])
    if len(found) > 1:
        found.sort(key=partial(_fairness, floor) if floor.fair else _arrival)
    return found


def _arrival(request: Request) -> tuple[bool, int]:
    return request.given == 0, request.order


def _fairness(floor: Floor, request: Request) -> tuple[bool, bool, float, int, int]:
    person = floor.book.person(request.owner)
    account = person.counter - _bonus(floor, request)
    return (request.claim is None, not request.live, account, person.waiting, request.order)


def _bonus(floor: Floor, request: Request) -> float:
    """How far a prefix that is in a cache now, and may be gone later, brings a request forward."""
    if not request.hints:
        return 0.0
    policy = floor.book.policy
    cached = max((hint.cached for hint in request.hints), default=0)
    saved = cached * (policy.prices.prefill - policy.prices.cached)
    return max(0.0, min(policy.quantum, saved)) / floor.book.weight(request.owner)


# --- giving ---


def _give_next(floor: Floor) -> bool:
    """Give one request. False: none can be given now."""
    held_up: Request | None = None
    for request in heads(floor):
        if held_up is not None and not request.live:
            return False
        if held_up is not None and not _may_pass(floor, held_up, request):
            continue
        number, reason = find_room(floor, request)
        if number is not None:
            if held_up is not None:
                floor.book.requests[held_up.id] = replace(held_up, passed=held_up.passed + 1)
            floor.place(request, number)
            return True
        if not floor.fair:
            return False
        if reason is not Reason.PREFILL:
            _seek_room(floor, request)
            held_up = floor.book.requests[(held_up or request).id]
            if floor.crowded and floor.attempts <= 0:
                return False
    return False


def _seek_room(floor: Floor, request: Request) -> None:
    """Ask what it would need, if the answer might be less than counted; else have others make room."""
    if floor.attempts > 0 and not _ask(floor, request):
        floor.attempts -= 1
        make_room(floor, request)


def find_room(floor: Floor, request: Request) -> tuple[int | None, Reason]:
    """The best engine that has room for a request, or why none has."""
    why: Reason | None = None
    for number in floor.engines_for(request):
        lack = floor.lacks(request, number)
        if lack is None:
            return number, Reason.TURN
        if why is None or why is Reason.ALONE:
            why = lack
    return None, why or Reason.ENGINE


def _may_pass(floor: Floor, held_up: Request, request: Request) -> bool:
    """Whether a request may go before one that has no room."""
    if request.owner == held_up.owner:
        return False
    need = min(floor.need(request, number) for number in floor.loads)
    if floor.entitled(request, need):
        return True
    if held_up.passed >= PASSES or not request.live:
        return False
    return floor.holding_of(request.owner).pages + need <= floor.pages * floor.part(request.owner)


def _ask(floor: Floor, request: Request) -> bool:
    """Ask an engine what a request would need, where it may share pages with what runs there. True: an answer is awaited."""
    book = floor.book
    for number in floor.engines_for(request):
        load = floor.loads[number]
        if load.closed or load.free_slots(request.id) <= 0 or not load.engine.inside:
            continue
        quote = request.quote
        if quote is not None and (quote.engine, quote.version) == (number, load.engine.version):
            return quote.pages is None
        kin = any(book.requests[one].owner == request.owner for one in load.engine.inside)
        if kin or any(hint.engine == number for hint in request.hints):
            book.requests[request.id] = replace(request, quote=Quote(number, load.engine.version))
            book.effects.append(AskQuote(request.id, number))
            return True
    return False


# --- keeping ---


def _keep(book: Book) -> None:
    """Tell engines which prefixes to evict last, where that has changed."""
    for number, engine in book.engines.items():
        ids = _precious(book, number)
        if ids != engine.kept:
            book.engines[number] = replace(engine, kept=ids)
            book.effects.append(Keep(number, ids))


def _precious(book: Book, number: int) -> tuple[int, ...]:
    """Live conversations that are over for now; then what was set aside; then what is guaranteed. Each group the newest last."""
    ordinary: list[tuple[float, int]] = []
    guaranteed: list[tuple[float, int]] = []
    for owner, person in book.people.items():
        left = book.policy.share(owner).guaranteed
        for one in reversed(person.warm):
            if one.engine == number:
                (guaranteed if left > 0 else ordinary).append((one.at, one.id))
            left -= one.pages * book.engines[number].page
    aside = [one for person in book.people.values() for one in takewhile(book.was_given, (*person.live, *person.background))]
    promised = {owner for owner in book.people if book.policy.share(owner).guaranteed > 0}
    running = [one for one in book.engines[number].inside if book.requests[one].owner in promised] if promised else []
    ids = [one for _, one in sorted(ordinary)] + aside + [one for _, one in sorted(guaranteed)] + running
    return tuple(ids[-KEPT:])
