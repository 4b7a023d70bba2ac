"""Admission: order, bounds, and that no request is ever lost."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from daemon.core.admission import (
    Admission,
    Arrived,
    EngineDown,
    EngineUp,
    Event,
    Give,
    Left,
    Policy,
    Pressure,
    Refuse,
    Returned,
    decide,
)
from daemon.core.requests import Priority

POLICY = Policy(max_queued=3)


def play(*events: Event, policy: Policy = POLICY) -> tuple[Admission, list[int], list[int]]:
    """The state after `events`, what was given in order, and what was refused."""
    state = Admission()
    given: list[int] = []
    refused: list[int] = []
    for event in events:
        state, effects = decide(state, event, policy)
        given += [effect.id for effect in effects if isinstance(effect, Give)]
        refused += [effect.id for effect in effects if isinstance(effect, Refuse)]
    return state, given, refused


def live(*ids: int) -> list[Arrived]:
    return [Arrived(request, Priority.LIVE) for request in ids]


def test_requests_within_the_slots_are_given_at_once() -> None:
    _, given, _ = play(EngineUp(2), *live(1, 2, 3))
    assert given == [1, 2]


def test_request_that_leaves_makes_room_in_order_of_arrival() -> None:
    _, given, _ = play(EngineUp(1), *live(1, 2, 3), Left(1), Left(2))
    assert given == [1, 2, 3]


def test_background_waits_for_live_requests() -> None:
    _, given, _ = play(EngineUp(1), *live(1), Arrived(2, Priority.BACKGROUND), *live(3), Left(1), Left(3))
    assert given == [1, 3, 2]


def test_full_queue_refuses_the_newcomer_alone() -> None:
    state, given, refused = play(EngineUp(1), *live(1, 2, 3, 4, 5))
    assert (given, refused) == ([1], [5])
    assert state.live == (2, 3, 4)


def test_requests_queue_while_there_is_no_engine() -> None:
    _, given, refused = play(*live(1, 2, 3, 4), EngineUp(2))
    assert (given, refused) == ([1, 2], [4])


def test_interrupted_requests_come_back_first_in_the_named_order() -> None:
    _, given, _ = play(EngineUp(3), *live(1, 2, 3, 4), EngineDown((3, 1, 2)), EngineUp(2))
    assert given == [1, 2, 3, 3, 1]


def test_engine_that_waits_for_pages_gets_nothing_more() -> None:
    _, given, _ = play(EngineUp(4), *live(1), Pressure(1), *live(2, 3), Pressure(0))
    assert given == [1, 2, 3]
    state, given, _ = play(EngineUp(4), *live(1), Pressure(1), *live(2))
    assert (given, state.live) == ([1], (2,))


def test_pressure_without_requests_inside_holds_nobody_up() -> None:
    _, given, _ = play(EngineUp(4), *live(1), Pressure(1), Left(1), *live(2))
    assert given == [1, 2]


def test_suspended_request_waits_before_newcomers() -> None:
    state, given, _ = play(EngineUp(1), *live(1, 2), Returned(1))
    assert given == [1, 1]
    assert state.live == (2,)


class _AnyOrder(RuleBasedStateMachine):
    """Whatever happens, each accepted request is in exactly one place, and slots are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Admission()
        self.next = 1
        self.accepted: set[int] = set()
        self.inside: set[int] = set()

    def feed(self, event: Event) -> None:
        self.state, effects = decide(self.state, event, POLICY)
        for effect in effects:
            match effect:
                case Give(request):
                    assert request in self.accepted
                    assert request not in self.inside
                    self.inside.add(request)
                case Refuse(request):
                    assert isinstance(event, Arrived)
                    assert request == event.id
                    self.accepted.discard(request)

    @rule(priority=st.sampled_from(Priority))
    def arrive(self, priority: Priority) -> None:
        self.accepted.add(self.next)
        self.next += 1
        self.feed(Arrived(self.next - 1, priority))

    @precondition(lambda self: bool(self.accepted))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        leaving = data.draw(st.sampled_from(sorted(self.accepted)))
        self.accepted.discard(leaving)
        self.inside.discard(leaving)
        self.feed(Left(leaving))

    @precondition(lambda self: self.state.slots == 0)
    @rule(slots=st.integers(1, 4))
    def engine_comes(self, slots: int) -> None:
        self.feed(EngineUp(slots))

    @rule(data=st.data())
    def engine_dies(self, data: st.DataObject) -> None:
        order = data.draw(st.permutations(sorted(self.inside)))
        self.inside.clear()
        self.feed(EngineDown(tuple(order)))

    @rule(pending=st.integers(0, 2))
    def engine_tells_pressure(self, pending: int) -> None:
        self.feed(Pressure(pending))

    @precondition(lambda self: bool(self.inside))
    @rule(data=st.data())
    def engine_suspends(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.inside)))
        self.inside.discard(request)
        self.feed(Returned(request))

    @invariant()
    def each_accepted_request_is_in_one_place(self) -> None:
        state = self.state
        places = [*state.returned, *state.live, *state.background, *state.given]
        assert sorted(places) == sorted(self.accepted)
        assert set(state.given) == self.inside

    @invariant()
    def slots_are_kept(self) -> None:
        assert len(self.state.given) <= self.state.slots

    @invariant()
    def nobody_waits_before_a_free_slot(self) -> None:
        if not (self.state.pressed and self.state.given):
            assert not self.state.queued or len(self.state.given) == self.state.slots


TestAnyOrder = _AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
