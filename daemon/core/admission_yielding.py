"""Whose request gives its place up. Nothing fails here: what is set aside goes on later from what was delivered.

Room is made in this order, and only if enough can be made:

1. Background requests yield to live ones, those of the same person first, the youngest first.
2. For a person within their guarantee, the youngest streams of whoever is above theirs yield.
3. For a person below their fair part, streams of those above their fair part yield, as long as that leaves those no worse off.

Inside an engine a request that wants to grow waits. Then the same rules apply; where nobody has a better right, the youngest of
those above their guarantee yields, which may be the one that waits.
"""

from daemon.core.admission_floor import Floor, Load
from daemon.core.admission_values import Request

EVEN = 1e-9
"""Parts that differ by less are the same."""


def relieve(floor: Floor) -> None:
    """Let requests that wait inside engines for pages go on, at the expense of others if need be."""
    for number, load in floor.loads.items():
        waiting = sorted(load.waiting, key=lambda one: (not _stays_entitled(floor, one), one.order))
        for one in waiting:
            _relieve(floor, number, load, one)
        if floor.fair:
            _protect(floor, number, load)


def _stays_entitled(floor: Floor, request: Request) -> bool:
    """Whether a running request's person is within their guarantee, as they are."""
    return floor.guaranteed(request.owner) > 0 and not floor.above(request.owner)


def _relieve(floor: Floor, number: int, load: Load, waiting: Request) -> None:
    place = waiting.place
    if place is None or place.suspending or len(load.engine.inside) == 1:
        return
    short = place.waits - (load.engine.pages - load.engine.referenced) - load.coming_pages
    if short <= 0:
        return
    for victim in _growth_victims(floor, number, waiting):
        floor.suspend(victim)
        if victim.id == waiting.id:
            return
        short -= _pages(victim)
        if short <= 0:
            return


def _growth_victims(floor: Floor, number: int, waiting: Request) -> list[Request]:
    """Who yields to a request that wants to grow, in order. Those that wait themselves hold nothing and are no help."""
    streams = [one for one in floor.streams(number) if one.id == waiting.id or not _waits(one)]
    if not floor.fair:
        return streams
    others = [one for one in streams if one.id != waiting.id]
    background = [one for one in others if not one.live] if waiting.live else []
    if _stays_entitled(floor, waiting):
        over = [one for one in others if one.live and floor.above(one.owner)]
        rest = [one for one in others if one.live and not floor.above(one.owner)]
        return [*background, *over, *rest]
    over = [one for one in streams if one.live == waiting.live and floor.above(one.owner)]
    rest = [one for one in streams if one.live == waiting.live and not floor.above(one.owner) and one.id != waiting.id]
    return [*background, *over, *rest]


def _protect(floor: Floor, number: int, load: Load) -> None:
    """What is kept warm under guarantees is not grown over: whoever is above theirs makes room before that."""
    warm = load.warm_total
    if not warm:
        return
    over = load.used + warm - load.engine.pages - load.coming_pages
    for one in floor.streams(number):
        if over <= 0:
            return
        if floor.above(one.owner) and not _waits(one):
            floor.suspend(one)
            over -= _pages(one)


def make_room(floor: Floor, request: Request) -> None:
    """Have others give their places up for a live request that has no room, if the rules allow it and it is enough."""
    if not request.live or not floor.fair:
        return
    for number in floor.engines_for(request):
        victims = _plan(floor, number, request)
        if victims is not None:
            for victim in victims:
                floor.suspend(victim)
            floor.claim(request, number)
            return
    floor.unclaim(request)


def _plan(floor: Floor, number: int, request: Request) -> list[Request] | None:
    """Whom to suspend. None: not enough can be gained here."""
    load = floor.loads[number]
    if load.closed:
        return None
    need = floor.need(request, number)
    entitled = floor.entitled(request, need)
    if not load.background and not entitled and not _below_part(floor, request, need):
        return None
    claims = [pages for claimant, pages in load.claims.items() if claimant != request.id]
    slots = 1 - load.free_slots(request.id) - max(0, load.coming_slots - len(claims))
    pages = need - load.free_pages(request) - max(0, load.coming_pages - sum(claims))
    chosen: list[Request] = []
    left = Shares(floor)
    for victim in _room_victims(floor, number, request, need, left):
        if slots <= 0 and pages <= 0:
            break
        if not left.may_yield(victim, slots > 0, pages > 0):
            continue
        left.take(victim)
        chosen.append(victim)
        slots -= 1
        pages -= _pages(victim)
    return chosen if slots <= 0 and pages <= 0 else None


class Shares:
    """What people would be left with while a plan is made."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self._slots: dict[str, int] = {}
        self._pages: dict[str, int] = {}
        self.right: dict[int, bool] = {}
        """Victims by request: whether they yield to a guarantee (True) or to fairness only (False)."""

    def take(self, victim: Request) -> None:
        """Count a victim."""
        self._slots[victim.owner] = self._slots.get(victim.owner, 0) + 1
        self._pages[victim.owner] = self._pages.get(victim.owner, 0) + _pages(victim)

    def may_yield(self, victim: Request, slots: bool, pages: bool) -> bool:
        """Whether its person is still above what they may keep."""
        floor, owner = self._floor, victim.owner
        holding = floor.holding_of(owner)
        held = holding.pages - self._pages.get(owner, 0)
        if not victim.live:
            return True
        if held <= floor.guaranteed(owner):
            return False
        if self.right[victim.id]:
            return True
        part = floor.part(owner)
        running = holding.running - self._slots.get(owner, 0)
        over_slots = running >= 2 and running - 1 >= floor.slots * part - EVEN  # noqa: PLR2004 - one stays
        over_pages = held > floor.pages * part
        return (not slots or over_slots) and (not pages or over_pages)


def _room_victims(floor: Floor, number: int, request: Request, need: int, left: Shares) -> list[Request]:
    """Who may yield to a waiting request, in order."""
    streams = floor.streams(number)
    background = [one for one in streams if not one.live]
    background.sort(key=lambda one: one.owner != request.owner)
    others = [one for one in streams if one.live and one.owner != request.owner]
    if floor.entitled(request, need):
        victims = [one for one in others if floor.above(one.owner)]
        left.right.update((one.id, True) for one in victims)
    elif _below_part(floor, request, need):
        least = floor.book.person(request.owner).done - floor.book.policy.quantum
        victims = [one for one in others if floor.book.person(one.owner).done >= least]
        victims.sort(key=lambda one: -_over(floor, one.owner))
        left.right.update((one.id, False) for one in victims)
    else:
        victims = []
    return [*background, *victims]


def _below_part(floor: Floor, request: Request, need: int) -> bool:
    """Whether a person stays within their fair part of slots and pages with this request."""
    holding = floor.holding_of(request.owner)
    part = floor.part(request.owner)
    slots = holding.running + 1 <= max(1.0, floor.slots * part) + EVEN
    return slots and holding.pages + need <= floor.pages * part


def _over(floor: Floor, owner: str) -> float:
    """How far a person is above their part of the slots."""
    return floor.holding_of(owner).running / floor.book.weight(owner)


def _pages(request: Request) -> int:
    return 0 if request.place is None or request.place.waits else request.place.need


def _waits(request: Request) -> bool:
    return request.place is not None and request.place.waits > 0
