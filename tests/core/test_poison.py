"""Who is suspected of killing an engine, who runs alone, and who is refused."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from daemon.core.poison import (
    Acquit,
    Convict,
    Conviction,
    Convictions,
    Effect,
    Fell,
    Generated,
    InFlight,
    Left,
    Poison,
    Policy,
    SetApart,
    Suspect,
    convict,
    decide,
    digest_of,
    limited,
)
from daemon.core.requests import Priority, ValidRequest
from daemon.core.wire import ImageSpan, Sampler, TokenSpan

POLICY = Policy(proof=64, memory=100.0, remembered=3)
TWO = (InFlight(1, 10), InFlight(2, 0))


def fell(*held: InFlight, accuses: bool = True, prefilling: int | None = None) -> Fell:
    return Fell(accuses, prefilling, held)


def test_request_whose_prefill_ran_is_suspected() -> None:
    state, effects = decide(Poison(), fell(*TWO, prefilling=1), POLICY)
    assert effects == (SetApart(1),)
    assert state.suspects == (Suspect(1, 10, 64),)


@pytest.mark.parametrize("prefilling", [None, 77])
def test_newest_in_flight_is_suspected_where_nothing_known_was_prefilled(prefilling: int | None) -> None:
    _, effects = decide(Poison(), fell(*TWO, prefilling=prefilling), POLICY)
    assert effects == (SetApart(2),)


@pytest.mark.parametrize("event", [fell(*TWO, accuses=False, prefilling=1), fell()])
def test_death_that_accuses_nobody_or_held_nobody_has_no_suspect(event: Fell) -> None:
    assert decide(Poison(), event, POLICY) == (Poison(), ())


def test_suspect_that_kills_alone_is_convicted() -> None:
    state, _ = decide(Poison(), fell(*TWO, prefilling=2), POLICY)
    state, effects = decide(state, fell(InFlight(2, 5), prefilling=2), POLICY)
    assert effects == (Convict(2),)
    assert state == Poison()


def test_first_death_of_a_lonely_request_only_makes_it_a_suspect() -> None:
    _, effects = decide(Poison(), fell(InFlight(1, 3)), POLICY)
    assert effects == (SetApart(1),)


def test_suspect_beside_others_is_not_convicted() -> None:
    state, _ = decide(Poison(), fell(*TWO), POLICY)
    assert decide(state, fell(*TWO), POLICY) == (state, ())


def test_death_without_accusation_leaves_a_suspect_one_and_starts_its_proof_anew() -> None:
    state, _ = decide(Poison(), fell(*TWO), POLICY)
    state, effects = decide(state, fell(InFlight(2, 40), accuses=False), POLICY)
    assert effects == ()
    assert decide(state, Generated(2, 103), POLICY) == (state, ())
    assert decide(state, Generated(2, 104), POLICY)[1] == (Acquit(2),)


def test_suspect_that_generates_enough_alone_is_acquitted_and_needs_more_the_next_time() -> None:
    state, _ = decide(Poison(), fell(*TWO), POLICY)
    assert decide(state, Generated(2, 63), POLICY) == (state, ())
    state, effects = decide(state, Generated(2, 64), POLICY)
    assert effects == (Acquit(2),)
    state, effects = decide(state, fell(InFlight(2, 90)), POLICY)
    assert effects == (SetApart(2),)
    assert state.suspects == (Suspect(2, 90, 256),)
    assert decide(state, Generated(2, 345), POLICY) == (state, ())
    assert decide(state, Generated(2, 346), POLICY)[1] == (Acquit(2),)


def test_everybody_in_flight_is_suspected_where_the_accused_was_acquitted() -> None:
    state = Poison(acquitted=(Suspect(3, 0, 64),))
    state, effects = decide(state, fell(*TWO, InFlight(3, 70)), POLICY)
    assert effects == (SetApart(2), SetApart(1), SetApart(3))
    assert [(suspect.id, suspect.proof) for suspect in state.suspects] == [(2, 64), (1, 64), (3, 256)]
    assert state.acquitted == ()


def test_proof_that_is_asked_for_has_an_end() -> None:
    state = Poison(acquitted=(Suspect(1, 0, 1024),))
    state, _ = decide(state, fell(InFlight(1, 70)), POLICY)
    assert state.suspects == (Suspect(1, 70, 1024),)


def test_suspect_that_ends_is_forgotten() -> None:
    state, _ = decide(Poison(), fell(*TWO), POLICY)
    assert decide(state, Left(2), POLICY) == (Poison(), ())


# --- what is remembered ---

REQUEST = ValidRequest("r", "ann", (TokenSpan([1, 2, 3]),), 100, sampler=Sampler(temperature=0.5), seed=7)


def test_convicted_request_is_refused_until_its_time_is_over() -> None:
    known = convict(Convictions(), "aa", 1000.0, POLICY)
    assert known.refuses("aa", 1099.0)
    assert not known.refuses("aa", 1100.0)
    assert not known.refuses("bb", 1000.0)
    assert known.live(1099.0)
    assert not known.live(1100.0)


def test_memory_is_bounded_and_drops_the_oldest() -> None:
    known = Convictions()
    for number in range(5):
        known = convict(known, f"{number}", 1000.0 + number, POLICY)
    assert [one.digest for one in known.known] == ["2", "3", "4"]


def test_times_beyond_what_the_policy_allows_are_cut() -> None:
    """A clock that was far ahead once must not refuse for ever."""
    known = limited([Conviction("aa", 1e12), Conviction("bb", 5.0)], 1000.0, POLICY)
    assert known == Convictions((Conviction("aa", 1100.0),))


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, spans=(TokenSpan([1, 2, 4]),)),
        replace(REQUEST, sampler=Sampler(temperature=0.6)),
        replace(REQUEST, seed=8),
        replace(REQUEST, max_tokens=99),
        replace(REQUEST, spans=(TokenSpan([1, 2, 3]), ImageSpan("d", "image/png", b"x", 1))),
    ],
)
def test_other_prompt_or_parameters_have_another_digest(other: ValidRequest) -> None:
    assert digest_of(other) != digest_of(REQUEST)


def test_same_request_sent_again_has_the_same_digest_whoever_sends_it() -> None:
    again = replace(REQUEST, name="r2", owner="bob", deadline=5.0, priority=Priority.BACKGROUND, request_id="x")
    assert digest_of(again) == digest_of(REQUEST)


# --- any order of deaths ---


class _AnyDeaths(RuleBasedStateMachine):
    """A house in which some requests are poison: they kill any engine that reaches one of their fatal tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Poison()
        self.generated: dict[int, int] = {}
        self.fatal: dict[int, int] = {}
        self.convicted: set[int] = set()
        self.killed_alone: set[int] = set()
        self.names = 0
        self.deaths = 0

    @property
    def inside(self) -> list[int]:
        """Who runs: the first suspect alone, else everybody."""
        if self.state.suspects:
            return [self.state.suspects[0].id]
        return list(self.generated)

    def feed(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Convict(request):
                    self.convicted.add(request)
                    del self.generated[request]
                    self.state, more = decide(self.state, Left(request), POLICY)
                    assert more == ()
                case SetApart() | Acquit():
                    pass

    def die(self, *, accuses: bool, prefilling: int | None) -> None:
        self.deaths += 1
        held = tuple(InFlight(request, self.generated[request]) for request in self.inside)
        if accuses and len(held) == 1 and self.state.suspects:
            self.killed_alone.add(held[0].id)
        self.state, effects = decide(self.state, Fell(accuses, prefilling, held), POLICY)
        self.feed(effects)

    @precondition(lambda self: len(self.generated) < 5)
    @rule(fatal=st.none() | st.integers(1, 400))
    def arrive(self, fatal: int | None) -> None:
        self.names += 1
        self.generated[self.names] = 0
        if fatal is not None:
            self.fatal[self.names] = fatal

    @rule(count=st.integers(1, 80))
    def engine_generates(self, count: int) -> None:
        for request in self.inside:
            fatal = self.fatal.get(request)
            before = self.generated[request]
            if fatal is not None and before + count >= fatal:
                self.generated[request] = max(before, fatal - 1)
                self.die(accuses=True, prefilling=request if before == 0 else None)
                return
            self.generated[request] = before + count
        for suspect in self.state.suspects[:1]:
            self.state, effects = decide(self.state, Generated(suspect.id, self.generated[suspect.id]), POLICY)
            self.feed(effects)

    @rule()
    def engine_is_killed_by_a_person(self) -> None:
        before = [suspect.id for suspect in self.state.suspects]
        self.die(accuses=False, prefilling=None)
        assert [suspect.id for suspect in self.state.suspects] == before

    @precondition(lambda self: bool(self.generated))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.generated)))
        del self.generated[request]
        self.state, effects = decide(self.state, Left(request), POLICY)
        assert effects == ()

    @invariant()
    def only_who_killed_an_engine_alone_is_refused(self) -> None:
        assert self.convicted <= self.killed_alone
        assert all(request in self.fatal for request in self.convicted)

    @invariant()
    def suspects_are_accepted_requests_and_named_once(self) -> None:
        names = [suspect.id for suspect in (*self.state.suspects, *self.state.acquitted)]
        assert len(names) == len(set(names))
        assert set(names) <= set(self.generated)

    def teardown(self) -> None:
        """Engines that only die of poison serve everybody else in the end, after few deaths."""
        before, poisonous = self.deaths, sum(request in self.fatal for request in self.generated)
        while any(count < 500 for count in self.generated.values()):
            self.engine_generates(20)
        assert set(self.generated) & set(self.fatal) == set()
        assert self.deaths - before <= 3 * poisonous


TestAnyDeaths = _AnyDeaths.TestCase
TestAnyDeaths.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
