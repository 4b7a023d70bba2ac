"""Questions about a state of admission: is a newcomer refused, why do requests wait, what did people have, do guarantees fit.

Nothing here changes anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from daemon.core.admission_book import Book
from daemon.core.admission_events import (
    Refuse,
)
from daemon.core.admission_floor import Floor
from daemon.core.admission_serving import find_room
from daemon.core.admission_values import (
    Admission,
    Policy,
    Reason,
    Request,
)
from daemon.core.settings import SharingOrder

LEAST_WAIT = 1.0
LONGEST_WAIT = 300.0
"""Bounds of `Refuse.retry_after`, in seconds."""
_OPEN_TO_ALL = 0.75
"""Up to this part of the queue anybody may wait; beyond it only people with less than an equal part of it."""
_UNMEASURED = 5.0
"""Seconds to come back after, before any rate was measured."""


@dataclass(frozen=True, slots=True)
class PersonFigures:
    """One person, now and since the daemon started."""

    running: int = 0
    queued: int = 0
    pages: int = 0
    """Pages of their running requests."""
    warm_tokens: int = 0
    """Tokens of their conversations that are over for now and stand in a cache, as far as known."""
    guaranteed: int = 0
    """Tokens."""
    weight: float = 1.0
    counter: float = 0.0
    """Service charged, divided by weight. Only differences between people mean something."""
    served: int = 0
    """Tokens generated."""
    waits: int = 0
    """Requests that were given a first time."""
    waited: float = 0.0
    """Seconds those waited, together."""


@dataclass(frozen=True, slots=True)
class SharingFigures:
    """How the engines are shared."""

    people: Mapping[str, PersonFigures] = field(default_factory=dict[str, PersonFigures])
    queued: Mapping[Reason, int] = field(default_factory=dict[Reason, int])
    """Requests that wait, by what they wait for."""
    suspensions: int = 0
    resumes: int = 0
    rate: float | None = None
    """Service a second, all engines together; None: not measured yet."""


def figures(state: Admission, policy: Policy, t: float) -> SharingFigures:
    """How things stand."""
    book = Book(state, policy, t)
    floor = Floor(book)
    people: dict[str, PersonFigures] = {}
    queued = dict.fromkeys(Reason, 0)
    page = next((engine.page for engine in state.engines.values()), 0)
    away = _away(state)
    queued[Reason.ENGINE] += len(away) - len(away & set(state.suspects))
    queued[Reason.ALONE] += len(away & set(state.suspects))
    for owner, person in state.people.items():
        holding = floor.holding_of(owner)
        share = policy.share(owner)
        people[owner] = PersonFigures(
            running=holding.inside,
            queued=person.waiting + sum(state.requests[one].owner == owner for one in away),
            pages=holding.pages,
            warm_tokens=sum(one.pages for one in person.warm) * page,
            guaranteed=share.guaranteed,
            weight=share.weight,
            counter=person.counter,
            served=person.served,
            waits=person.waits,
            waited=person.waited,
        )
        if person.waiting:
            queued[_reason(floor, owner)] += person.waiting
    return SharingFigures(people, queued, state.suspensions, state.resumes, state.pulse.rate)


def _away(state: Admission) -> set[int]:
    """Requests that wait and stand in no queue."""
    resting = {one for ids in state.resting.values() for one in ids}
    return resting | {one for one in state.suspects if state.requests[one].place is None}


def _reason(floor: Floor, owner: str) -> Reason:
    """What a person's first waiting request waits for; those behind it wait for the same."""
    person = floor.book.person(owner)
    if floor.full(owner):
        return Reason.OWN_LIMIT
    first = floor.book.requests[(person.live or person.background)[0]]
    number, reason = find_room(floor, first)
    return Reason.TURN if number is not None else reason


# --- refusals ---


def refusal(book: Book, owner: str, newcomer: int) -> Refuse | None:
    """Whether the newcomer, which stands in its queue already, must be refused."""
    share = book.policy.share(owner)
    person = book.person(owner)
    if share.max_queued is not None and person.waiting > share.max_queued:
        already = person.waiting - 1
        words = f"{already} of your requests are waiting already, and {share.max_queued} may (max_queued of {owner})."
        return Refuse(newcomer, own_limit=True, why=words, retry_after=_until_own(book, owner))
    queued, most = book.queued, book.policy.max_queued
    if queued > most:
        words = f"{queued - 1} requests are waiting already (server.max_queued)."
        return Refuse(newcomer, own_limit=False, why=words, retry_after=_until_any(book))
    if book.policy.order is SharingOrder.FAIR and queued > most * _OPEN_TO_ALL:
        waiting = sum(1 for one in book.people.values() if one.waiting)
        if waiting > 1 and person.waiting > most / waiting:
            words = (
                f"{queued - 1} requests are waiting already, {person.waiting - 1} of them yours;"
                " the rest of the queue is for others (server.max_queued)."
            )
            return Refuse(newcomer, own_limit=False, why=words, retry_after=_until_own(book, owner))
    return None


def _cost(book: Book, request: Request) -> float:
    """What is probably left to do for a request."""
    prices = book.policy.prices
    size = book.sizes[request.id]
    cached = max((hint.cached for hint in request.hints), default=0)
    generated = 0 if request.place is None else size - request.place.base
    answer = max(1.0, min(float(request.limit - size), book.pulse.answer - generated))
    prompt = 0.0 if generated else max(0, size - cached) * prices.prefill
    return prompt + answer * prices.decode


def _until_own(book: Book, owner: str) -> float:
    """Seconds until one of a person's waiting requests has probably been given: their share of the measured rate, and the least
    that must be done for one of theirs to end.
    """
    mine = [one for one in book.requests.values() if one.owner == owner]
    running = [one for one in mine if one.place is not None]
    weights = sum(book.weight(name) for name in {one.owner for one in book.requests.values()})
    rate = book.pulse.rate
    if rate is None or rate <= 0 or not mine:
        return _UNMEASURED
    part = rate * book.weight(owner) / weights
    ahead = min(_cost(book, one) for one in running or mine) * max(1, len(running))
    return _bounded(ahead / part)


def _until_any(book: Book) -> float:
    """Seconds until the queue has probably moved on by one: the mean of what is left to do for one request."""
    rate = book.pulse.rate
    if rate is None or rate <= 0 or not book.requests:
        return _UNMEASURED
    costs = [_cost(book, one) for one in book.requests.values()]
    return _bounded(sum(costs) / len(costs) / rate)


def _bounded(seconds: float) -> float:
    return min(LONGEST_WAIT, max(LEAST_WAIT, seconds))


# --- guarantees ---


def guarantee_problem(policy: Policy, pools: Sequence[tuple[int, int]]) -> str | None:
    """Why guarantees cannot hold in engines with these pools, each (pages, tokens a page), in words with the arithmetic; None:
    they can. Each person's guarantee must fit one engine, since a conversation does not spread over two.
    """
    promised = {owner: share.guaranteed for owner, share in policy.people.items() if share.guaranteed}
    if not promised or not pools or policy.order is SharingOrder.FIFO:
        return None
    left = sorted((pages for pages, _ in pools), reverse=True)
    page = pools[0][1]
    total = sum(pages for pages in left)
    needed = {owner: -(-tokens // page) for owner, tokens in promised.items()}
    if sum(needed.values()) <= total and _packs(sorted(needed.values(), reverse=True), left):
        return None
    parts = " + ".join(f"{tokens:,} ({owner})" for owner, tokens in promised.items())
    have = " + ".join(f"{pages * page:,}" for pages in left)
    sum_words = f"guaranteed_context promises {parts} = {sum(promised.values()):,} tokens"
    pages_words = f"in pages of {page} that is {sum(needed.values())}"
    return (
        f"{sum_words}; {pages_words}, and the cache holds {have} tokens ({total} pages)."
        " Promise less, or enlarge engine.cache_tokens (smaller k_bits and v_bits make room)."
    )


def _packs(needed: list[int], pools: list[int]) -> bool:
    """Whether each guarantee finds a pool, the largest placed first."""
    free = list(pools)
    for pages in needed:
        roomiest = max(range(len(free)), key=lambda one: free[one])
        if free[roomiest] < pages:
            return False
        free[roomiest] -= pages
    return True
