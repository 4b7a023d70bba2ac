"""Who holds how much at this moment, and whether a waiting request fits. Counted once a decision, kept up while it is made.

A page is used if a running request references it (the engine's report), or if a request that was given has not got its pages yet
(our own count). It is spoken for, besides, where a claim waits for it, or where it keeps a conversation warm for somebody who is
guaranteed it. What is left is room.
"""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from daemon.core.admission_book import Book, extent_of, pages_for
from daemon.core.admission_values import Engine, Place, Reason, Request
from daemon.core.settings import SharingOrder

ATTEMPTS = 8
"""People for whom one decision tries to make room, at most; the next decision goes on."""
WORK_PER_STREAM = 256
"""Prompt tokens that a running stream counts as, where engines are compared by their load."""


class Load(msgspec.Struct):
    """What an engine has on it."""

    engine: Engine
    unstarted: int = 0
    """Pages of requests that were given and have not got them yet."""
    coming_pages: int = 0
    """Pages of requests that were told to give their place up."""
    coming_slots: int = 0
    uncached: int = 0
    """Prompt tokens to compute."""
    computing: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """The same, by owner."""
    growing: bool = False
    """Some request in it may ask for more pages."""
    closed: bool = False
    """Nothing is given to it: a suspect runs there, or shall."""
    waiting: list[Request] = msgspec.field(default_factory=list[Request])
    """Requests that wait for pages inside it."""
    claims: dict[int, int] = msgspec.field(default_factory=dict[int, int])
    """Requests for which room is being made, and the pages they need."""
    warm: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """Pages of conversations that are over for now and guaranteed, by owner."""
    warm_total: int = 0
    streams: list[Request] = msgspec.field(default_factory=list[Request])
    """Requests that could give their place up."""
    background: int = 0
    """How many of them are background requests."""

    @property
    def used(self) -> int:
        """Pages that are held, or will be in a moment. What an engine that holds nothing last reported is out of date."""
        return (self.engine.settled if self.engine.inside else 0) + self.unstarted

    def kept_from(self, owner: str) -> int:
        """Pages that stay warm for others than this owner."""
        return self.warm_total - self.warm.get(owner, 0)

    def spoken_pages(self, request: int) -> int:
        """Free pages that claims wait for, beyond what is coming for them. Claimants themselves are served in their order."""
        if not self.claims or request in self.claims:
            return 0
        return max(0, sum(self.claims.values()) - self.coming_pages)

    def spoken_slots(self, request: int) -> int:
        """Free slots that claims wait for, beyond what is coming for them."""
        return 0 if request in self.claims else max(0, len(self.claims) - self.coming_slots)

    def free_slots(self, request: int) -> int:
        """Slots for this request."""
        return self.engine.slots - len(self.engine.inside) - self.spoken_slots(request)

    def free_pages(self, request: Request) -> int:
        """Pages for this request that nobody else holds, claims or is guaranteed."""
        return self.engine.pages - self.used - self.kept_from(request.owner) - self.spoken_pages(request.id)


class Holding(msgspec.Struct):
    """What a person has inside engines."""

    running: int = 0
    """Requests, but for those told to give their place up."""
    pages: int = 0
    """Pages of all of them."""
    inside: int = 0


class Floor:
    """All engines and people at this moment. See the module."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.fair = book.policy.order is SharingOrder.FAIR
        self.loads = {number: Load(engine) for number, engine in book.engines.items()}
        self.page = next((engine.page for engine in book.engines.values()), 1)
        self.holdings: dict[str, Holding] = {}
        for number, engine in book.engines.items():
            self._count(self.loads[number], map(book.requests.__getitem__, engine.inside))
        self._count_claims()
        if self.fair:
            self._count_warm()
        self.slots = sum(engine.slots for engine in book.engines.values())
        self.pages = sum(engine.pages for engine in book.engines.values())
        active = {owner for owner, person in book.people.items() if person.waiting} | self.holdings.keys()
        self.weights = sum(book.weight(owner) for owner in active)
        """Of everybody who wants something."""
        self.attempts = ATTEMPTS
        """How often more in this decision room may be sought for somebody."""

    def _count(self, load: Load, requests: Iterable[Request]) -> None:
        """Count requests inside an engine. What most of them are comes first: this is most of a decision's time."""
        sizes, suspects = self.book.sizes, self.book.suspects
        holding, last = Holding(), None
        for request in requests:
            place = request.place
            if place is None:
                continue
            owner, need = request.owner, place.need
            if owner != last:
                holding, last = self.holding(owner), owner
            holding.inside += 1
            holding.pages += need
            if not place.suspending:
                holding.running += 1
                load.streams.append(request)
                load.background += not request.live
                if place.waits:
                    load.waiting.append(request)
            else:
                load.coming_slots += 1
                load.coming_pages += 0 if place.waits else need
            if not place.started:
                load.unstarted += need
            if place.extent < request.limit:
                load.growing = True
            if sizes[request.id] <= place.base:
                load.uncached += place.uncached
                load.computing[owner] = load.computing.get(owner, 0) + place.uncached
            if suspects and request.id in suspects:
                load.closed = True

    def _count_claims(self) -> None:
        """Only a person's next request has a claim: one that came back before it takes its turn."""
        for person in self.book.people.values():
            if person.live:
                request = self.book.requests[person.live[0]]
                if request.claim is not None and request.claim in self.loads:
                    self.loads[request.claim].claims[request.id] = self.need(request, request.claim)

    def _count_warm(self) -> None:
        for owner, person in self.book.people.items():
            left = self.guaranteed(owner) - self.holding_of(owner).pages if person.warm else 0
            for one in reversed(person.warm):
                if left <= 0:
                    break
                load = self.loads.get(one.engine)
                if load is not None:
                    pages = min(left, one.pages)
                    load.warm[owner] = load.warm.get(owner, 0) + pages
                    load.warm_total += pages
                    left -= pages

    @property
    def crowded(self) -> bool:
        """Whether no slot is free anywhere."""
        return all(len(load.engine.inside) >= load.engine.slots for load in self.loads.values())

    # --- people ---

    def holding(self, owner: str) -> Holding:
        """What an owner has, to be added to."""
        found = self.holdings.get(owner)
        if found is None:
            found = self.holdings[owner] = Holding()
        return found

    def holding_of(self, owner: str) -> Holding:
        """What an owner has."""
        return self.holdings.get(owner) or Holding()

    def guaranteed(self, owner: str) -> int:
        """Pages that are always theirs."""
        if not self.fair:
            return 0
        return -(-self.book.policy.share(owner).guaranteed // self.page)

    def entitled(self, request: Request, pages: int) -> bool:
        """Whether its person stays within their guarantee with so many pages more."""
        guaranteed = self.guaranteed(request.owner)
        return guaranteed > 0 and self.holding_of(request.owner).pages + pages <= guaranteed

    def above(self, owner: str) -> bool:
        """Whether a person holds more than is guaranteed to them."""
        return self.holding_of(owner).pages > self.guaranteed(owner)

    def part(self, owner: str) -> float:
        """The part of everything that is an owner's while the others want it too."""
        weight = self.book.weight(owner)
        known = owner in self.holdings or self.book.person(owner).waiting > 0
        return weight / (self.weights + (0 if known else weight))

    def full(self, owner: str) -> bool:
        """Whether a person runs as many requests as they may."""
        limit = self.book.policy.share(owner).max_concurrent
        return limit is not None and self.holding_of(owner).inside >= limit

    # --- room ---

    def need(self, request: Request, engine: int) -> int:
        """Pages it must have to begin in an engine: as quoted for what is in it now, else as if it shared none."""
        book = self.book
        known = book.engines[engine]
        quote = request.quote
        if quote is not None and quote.pages is not None and (quote.engine, quote.version) == (engine, known.version):
            return quote.pages
        return pages_for(known, extent_of(known, book.sizes[request.id], request.limit, book.policy.reserve))

    def lacks(self, request: Request, number: int) -> Reason | None:
        """Why an engine has no room for a request; None: it has."""
        load = self.loads[number]
        if load.closed:
            return Reason.ALONE
        if load.free_slots(request.id) <= 0:
            return Reason.SLOTS
        need = self.need(request, number)
        if load.waiting and not self.entitled(request, need):
            return Reason.PAGES
        if need + self._margin(request, load, need) > load.free_pages(request) and not self._must_break_in(request, load, need):
            return Reason.PAGES
        if self.fair and request.claim is None and not self._may_compute(request, load, number):
            return Reason.PREFILL
        return None

    def _margin(self, request: Request, load: Load, need: int) -> int:
        """Pages that must be left, so that what was just given is not set aside again for somebody's growth."""
        if not load.engine.inside or self.entitled(request, need):
            return 0
        reserve = self.book.policy.reserve
        if request.suspended:
            left = request.limit - self.book.sizes[request.id]
            return pages_for(load.engine, min(reserve, left))
        return pages_for(load.engine, reserve) if load.growing and self.fair else 0

    def _must_break_in(self, request: Request, load: Load, need: int) -> bool:
        """Whether a request would never fit beside what is kept warm for others, and fits without."""
        kept = load.kept_from(request.owner)
        if not kept or need <= load.engine.pages - kept:
            return False
        return need <= load.free_pages(request) + kept

    def _may_compute(self, request: Request, load: Load, number: int) -> bool:
        """A person's prompts are computed one after the other, unless they are short."""
        mine = load.computing.get(request.owner, 0)
        return mine == 0 or mine + self.uncached(request, number) <= self.book.policy.window

    def uncached(self, request: Request, engine: int) -> int:
        """Prompt tokens that an engine will probably have to compute."""
        size = self.book.sizes[request.id]
        return max(1, size - max((hint.cached for hint in request.hints if hint.engine == engine), default=0))

    def engines_for(self, request: Request) -> list[int]:
        """All engines, the one first that would have it soonest: by what it must compute, for this request and before it."""
        if len(self.loads) == 1:
            return list(self.loads)
        return sorted(
            self.loads,
            key=lambda number: (
                self.uncached(request, number)
                + self.loads[number].uncached
                + WORK_PER_STREAM * len(self.loads[number].engine.inside),
                number,
            ),
        )

    # --- changes ---

    def place(self, request: Request, engine: int) -> None:
        """Give a request to an engine and count it there."""
        book = self.book
        load = self.loads[engine]
        known = book.engines[engine]
        size = book.sizes[request.id]
        need, uncached = self.need(request, engine), self.uncached(request, engine)
        self._cool(request, load, need)
        prices = book.policy.prices
        cost = uncached * prices.prefill + (size - uncached) * prices.cached
        owed = 0.0 if request.charged else cost
        person = book.person(request.owner)
        book.virtual = max(book.virtual, person.done)
        rank = rank_of(request, person.counter + cost / book.weight(request.owner)) if self.fair else request.order
        if owed:
            book.charge(request.owner, owed, owed)
        place = Place(
            engine=engine,
            base=size,
            need=need,
            extent=extent_of(known, size, request.limit, book.policy.reserve),
            uncached=uncached,
            owed=owed,
            rank=rank,
        )
        load.claims.pop(request.id, None)
        book.give(replace(request, charged=True), place)
        load.engine = book.engines[engine]
        self._count(load, (book.requests[request.id],))

    def _cool(self, request: Request, load: Load, need: int) -> None:
        """A request that must break in ends the warmth of others, that of the longest idle first."""
        short = need - load.free_pages(request)
        if short <= 0 or not load.kept_from(request.owner):
            return
        book = self.book
        others = [
            (one, owner)
            for owner, person in book.people.items()
            if owner != request.owner and owner in load.warm
            for one in person.warm
            if book.engines.get(one.engine) is load.engine
        ]
        for one, owner in sorted(others, key=lambda pair: pair[0].at):
            if short <= 0:
                break
            book.go_on_with(owner, one.id)
            short -= one.pages
            pages = min(one.pages, load.warm[owner])
            load.warm[owner] -= pages
            load.warm_total -= pages

    def suspend(self, request: Request) -> None:
        """Tell a running request to give its place up, and count that."""
        place = request.place
        if place is None or place.suspending:
            return
        load = self.loads[place.engine]
        self.book.suspend(request)
        load.coming_slots += 1
        load.coming_pages += 0 if place.waits else place.need
        load.waiting = [one for one in load.waiting if one.id != request.id]
        load.streams = [one for one in load.streams if one.id != request.id]
        load.background -= not request.live
        self.holding(request.owner).running -= 1

    def claim(self, request: Request, engine: int) -> None:
        """Remember that room is being made for a request."""
        if request.claim != engine:
            self.book.requests[request.id] = replace(request, claim=engine)
        self.loads[engine].claims[request.id] = self.need(request, engine)

    def unclaim(self, request: Request) -> None:
        """No room can be made for a request."""
        if request.claim is not None:
            load = self.loads.get(request.claim)
            if load is not None:
                load.claims.pop(request.id, None)
            self.book.requests[request.id] = replace(request, claim=None)

    def streams(self, engine: int) -> list[Request]:
        """The requests inside an engine that could give their place up, the youngest first."""
        return sorted(self.loads[engine].streams, key=_youth)


def _youth(request: Request) -> int:
    return -request.order


_BEHIND = 1 << 52


def rank_of(request: Request, finish: float) -> int:
    """Prefill order: by when the prompt would be done if everybody had their share at every moment; background ones last."""
    return int(finish) + (0 if request.live else _BEHIND)
