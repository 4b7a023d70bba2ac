"""Fair admission under anything that may happen: nobody is lost, nobody starves, guarantees and orders hold."""

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from daemon.core.admission_events import (
    Acquitted,
    Event,
    Give,
    Isolated,
    Refuse,
    Suspend,
    SuspendAsked,
    Ticked,
)
from daemon.core.admission_values import (
    Admission,
    Policy,
    Share,
)
from daemon.core.requests import Priority
from daemon.core.settings import SharingOrder
from tests.core.admission_world import PAGE, Ask, Machine, World

OWNERS = ("ada", "bob", "cem", "guest")
POOLS = ((3, 16), (2, 20))
"""Slots and pages of two engines."""


def policy(order: SharingOrder) -> Policy:
    """Guarantees that fit one engine each; a limit of each kind."""
    people = {
        "ada": Share(weight=2.0, guaranteed=6 * PAGE),
        "bob": Share(guaranteed=8 * PAGE, max_concurrent=2),
        "cem": Share(weight=0.5, max_queued=2),
    }
    return Policy(people=people, order=order, max_queued=8, reserve=512, window=1024, quantum=200.0)


class Watched(World):
    """A world that looks at each decision."""

    asked_aside: frozenset[int] = frozenset()

    def feed(self, event: Event) -> tuple[()]:
        before = self.state
        effects = super().feed(event)
        known = {**before.requests, **self.state.requests}
        for effect in effects:
            match effect:
                case Give(request, engine):
                    assert before.engines.get(engine) or engine in self.state.engines
                    self._check_order(before, request)
                case Refuse(request):
                    assert request not in self.state.requests
                    assert effect.retry_after >= 1
                    assert self.state is before
                case Suspend(request):
                    self._check_suspension(before, event, known[request].owner, request)
                case _:
                    pass
        return ()

    def _check_order(self, before: Admission, request: int) -> None:
        """First gives of a person follow the order of arrival, each class for itself."""
        given = self.state.requests.get(request) or before.requests[request]
        if given.given > 1 or self.policy.order is SharingOrder.FIFO:
            return
        queue = self.state.people[given.owner].live if given.live else self.state.people[given.owner].background
        older = [one for one in queue if self.state.requests[one].given == 0 and self.state.requests[one].order < given.order]
        assert not older or request in self.state.suspects

    def _check_suspension(self, before: Admission, event: Event, owner: str, request: int) -> None:
        """Nobody within their guarantee yields, but background requests, suspects' engines and those told to."""
        if isinstance(event, SuspendAsked) or before.suspects or self.state.suspects:
            return
        if self.policy.order is SharingOrder.FIFO or not self.state.requests[request].live:
            return
        inside = [one for engine in self.state.engines.values() for one in engine.inside]
        places = [self.state.requests[one].place for one in inside if self.state.requests[one].owner == owner]
        pages = sum(place.need for place in places if place is not None)
        assert pages * PAGE > self.policy.share(owner).guaranteed


class _AnyOrder(RuleBasedStateMachine):
    """People ask and leave, engines work, die and come back."""

    world: Watched

    @initialize(order=st.sampled_from(SharingOrder), engines=st.integers(1, 2), interval=st.sampled_from([0, 512]))
    def begin(self, order: SharingOrder, engines: int, interval: int) -> None:
        machines = [Machine(slots, pages, interval, reserve=512, chunk=512, stride=32) for slots, pages in POOLS[:engines]]
        self.world = Watched(policy(order), machines)
        self.fallen: set[int] = set()

    def _waiting_suspects(self) -> list[int]:
        return [one for one in self.world.open if self.world.state.requests[one].place is None]

    @rule(
        owner=st.sampled_from(OWNERS),
        prompt=st.integers(1, 2500),
        answer=st.integers(1, 1500),
        priority=st.sampled_from(Priority),
        cached=st.integers(0, 2) | st.integers(0, 2000),
    )
    def ask(self, owner: str, prompt: int, answer: int, priority: Priority, cached: int) -> None:
        self.world.ask(Ask(self.world.now, owner, prompt, answer, priority, min(cached, prompt - 1)))

    @precondition(lambda self: bool(self.world.open))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.world.leave(data.draw(st.sampled_from(sorted(self.world.open))))

    @rule(count=st.integers(1, 12), engine=st.integers(0, 1))
    def work(self, count: int, engine: int) -> None:
        if engine in self.world.machines and engine not in self.fallen:
            for _ in range(count):
                self.world.turn(engine)

    @precondition(lambda self: len(self.fallen) < len(self.world.machines))
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.world.machines.keys() - self.fallen)))
        self.fallen.add(number)
        self.world.engine_dies(number)

    @precondition(lambda self: bool(self.fallen))
    @rule(data=st.data(), accuse=st.booleans())
    def come_back(self, data: st.DataObject, accuse: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.fallen)))
        resting = self.world.state.resting.get(number, ())
        if accuse and resting:
            self.world.feed(Isolated(self.world.now, data.draw(st.sampled_from(resting))))
        self.world.understood(number)
        self.fallen.discard(number)
        self.world.engine_up(number)

    @precondition(lambda self: bool(self.world.state.suspects))
    @rule()
    def acquit(self) -> None:
        self.world.feed(Acquitted(self.world.now, self.world.state.suspects[0]))

    @precondition(lambda self: self.world.state.running > 0)
    @rule(data=st.data())
    def set_aside(self, data: st.DataObject) -> None:
        inside = sorted(one for engine in self.world.state.engines.values() for one in engine.inside)
        self.world.feed(SuspendAsked(self.world.now, data.draw(st.sampled_from(inside))))

    @rule()
    def tick(self) -> None:
        self.world.feed(Ticked(self.world.now))

    # --- what holds ---

    @invariant()
    def each_accepted_request_is_in_one_place(self) -> None:
        state = self.world.state
        queues = [one for person in state.people.values() for one in (*person.live, *person.background)]
        inside = [one for engine in state.engines.values() for one in engine.inside]
        resting = [one for ids in state.resting.values() for one in ids]
        apart = [one for one in state.suspects if state.requests[one].place is None]
        assert sorted([*queues, *inside, *resting, *apart]) == sorted(self.world.open) == sorted(state.requests)
        assert all((state.requests[one].place is not None) == (one in inside) for one in state.requests)
        assert state.sizes == {one: self.world.sizes[one] for one in self.world.open}

    @invariant()
    def engines_hold_what_was_given(self) -> None:
        for number, engine in self.world.state.engines.items():
            assert sorted(engine.inside) == sorted(job.id for job in self.world.machines[number].jobs())
            assert len(engine.inside) <= engine.slots
            assert engine.kept == self.world.machines[number].kept

    @invariant()
    def suspects_run_alone(self) -> None:
        state = self.world.state
        for engine in state.engines.values():
            assert len(engine.inside) <= 1 or not set(engine.inside) & set(state.suspects)

    @invariant()
    def limits_are_kept(self) -> None:
        state, rules = self.world.state, self.world.policy
        assert state.queued <= rules.max_queued + sum(engine.slots for engine in state.engines.values()) + len(POOLS) * 3
        for owner in OWNERS:
            running = [one for one in state.requests.values() if one.owner == owner and one.place is not None]
            limit = rules.share(owner).max_concurrent
            assert limit is None or len([one for one in running if one.id not in state.suspects]) <= limit

    @invariant()
    def accounts_agree(self) -> None:
        state, rules = self.world.state, self.world.policy
        for owner, person in state.people.items():
            mine = [one.place for one in state.requests.values() if one.owner == owner]
            owed = sum(place.owed for place in mine if place is not None) / rules.share(owner).weight
            assert person.owed == pytest.approx(owed, abs=1e-3)
            assert person.counter >= -1e-3

    @invariant()
    def an_idle_engine_means_that_nobody_can_run(self) -> None:
        state = self.world.state
        if not state.engines or state.running or state.suspects:
            return
        assert not any(person.waiting for person in state.people.values())

    def teardown(self) -> None:
        """Nobody starves and nothing hangs: once no more is asked, everything accepted comes to its end."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for number in sorted(self.fallen):
            world.understood(number)
            world.engine_up(number)
        for suspect in world.state.suspects:
            world.feed(Acquitted(world.now, suspect))
        for _ in range(4_000):
            if not world.open:
                break
            for number in world.machines:
                world.turn(number)
        assert not world.open
        assert not world.state.requests
        assert all(machine.referenced == 0 for machine in world.machines.values())


WITHOUT_EXPLANATION = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
"""Hypothesis explains failures by tracing every line, which takes minutes here."""

TestAnyOrder = _AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=15, stateful_step_count=40, deadline=None, phases=WITHOUT_EXPLANATION)
