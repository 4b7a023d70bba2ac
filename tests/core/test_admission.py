"""Fair admission, rule by rule. What holds whatever happens stands in `test_admission_machine.py`."""

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from daemon.core.admission import decide
from daemon.core.admission_events import (
    Arrived,
    AskQuote,
    Began,
    EngineDown,
    EngineUp,
    Event,
    Give,
    Isolated,
    Keep,
    Left,
    Quoted,
    Rank,
    Refuse,
    Returned,
    Served,
    Stepped,
    Suspend,
    Ticked,
    Understood,
    Waits,
)
from daemon.core.admission_values import (
    Admission,
    Hint,
    Policy,
    Share,
)
from daemon.core.requests import Priority
from daemon.core.settings import SharingOrder

PAGE = 256


class Scene:
    """A state of admission, and what it said."""

    def __init__(
        self, *, slots: int = 2, pages: int = 1000, people: Mapping[str, Share] | None = None, engines: int = 1, **policy: object
    ) -> None:
        self.policy = Policy(people=MappingProxyType(dict(people or {})), **policy)  # pyright: ignore[reportArgumentType]  # by name
        self.state = Admission()
        self.t = 0.0
        self.given: list[int] = []
        self.places: dict[int, int] = {}
        self.ranks: dict[int, int] = {}
        self.suspended: list[int] = []
        self.asked: list[AskQuote] = []
        self.refused: list[Refuse] = []
        self.kept: dict[int, tuple[int, ...]] = {}
        for number in range(engines):
            self.feed(EngineUp(0.0, number, slots, pages, PAGE))

    def feed(self, event: Event) -> None:
        """Let admission decide."""
        self.state, effects = decide(self.state, event, self.policy)
        for effect in effects:
            match effect:
                case Give(request, engine, rank):
                    self.given.append(request)
                    self.places[request] = engine
                    self.ranks[request] = rank
                case Suspend(request):
                    self.suspended.append(request)
                case Rank(_, ranks):
                    self.ranks.update(ranks)
                case AskQuote():
                    self.asked.append(effect)
                case Refuse():
                    self.refused.append(effect)
                case Keep(engine, ids):
                    self.kept[engine] = ids

    def ask(
        self,
        request: int,
        owner: str = "ada",
        prompt: int = 100,
        answer: int = 100,
        priority: Priority = Priority.LIVE,
        hints: tuple[Hint, ...] = (),
    ) -> None:
        """Somebody asks."""
        self.feed(Arrived(self.t, request, owner, priority, prompt, answer, hints))

    def begin(self, *requests: int, cached: int = 0, extends: int | None = None) -> None:
        """Requests get their pages and their first token: their prompts are computed."""
        for request in requests:
            self.step(began=(Began(request, cached, extends),))
            self.feed(Served(self.t, {request: 1}))
        self.step()

    def step(self, *, began: tuple[Began, ...] = (), waits: tuple[Waits, ...] = (), engine: int = 0) -> None:
        """A step of an engine in which everybody who began holds the pages that they are counted with."""
        places = [self.state.requests[one].place for one in self.state.engines[engine].inside]
        starting = {one.id for one in began}
        held = sum(
            place.need
            for one, place in zip(self.state.engines[engine].inside, places, strict=True)
            if place is not None and (place.started or one in starting) and one not in {wait.id for wait in waits}
        )
        self.feed(Stepped(self.t, engine, held, len(waits), began, waits))

    def serve(self, **tokens: int) -> None:
        """Tokens are generated: `_7=100` are 100 of request 7."""
        self.feed(Served(self.t, {int(name[1:]): count for name, count in tokens.items()}))

    def leave(self, *requests: int) -> None:
        """Requests end."""
        for request in requests:
            self.feed(Left(self.t, request))


# --- order among people ---


def test_person_who_asks_once_goes_before_the_hundredth_request_of_another() -> None:
    scene = Scene(slots=1)
    for request in range(1, 6):
        scene.ask(request, "agent")
    scene.begin(1)
    scene.serve(_1=50)
    scene.ask(9, "ada")
    scene.leave(1)
    assert scene.given == [1, 9]


def test_people_take_turns_by_what_they_were_served() -> None:
    """Ada's requests cost 3.4 times as much as Bob's: of 44 turns she gets ten."""
    scene = Scene(slots=1)
    for request in range(1, 45):
        scene.ask(request, "ada")
        scene.ask(100 + request, "bob")
    for _ in range(44):
        [running] = scene.state.engines[0].inside
        scene.begin(running)
        scene.feed(Served(0.0, {running: 400 if running < 100 else 100}))
        scene.leave(running)
    assert sum(request < 100 for request in scene.given[:44]) == 10


def test_weight_buys_a_larger_part() -> None:
    scene = Scene(slots=1, people={"ada": Share(weight=3.0), "bob": Share()})
    for request in range(1, 13):
        scene.ask(request, "ada")
        scene.ask(100 + request, "bob")
    for _ in range(12):
        [running] = scene.state.engines[0].inside
        scene.begin(running)
        scene.feed(Served(0.0, {running: 99}))
        scene.leave(running)
    assert sum(request < 100 for request in scene.given[:12]) == 9


def test_nobody_saves_service_up_by_staying_away() -> None:
    """Bob was away while Ada was served much; he does not have her wait until he has had as much."""
    scene = Scene(slots=1)
    scene.ask(1, "ada")
    scene.begin(1)
    scene.serve(_1=100_000)
    for request in range(2, 6):
        scene.ask(request, "ada")
    for request in range(11, 16):
        scene.ask(request, "bob")
    for _ in range(6):
        [running] = scene.state.engines[0].inside
        scene.begin(running)
        scene.feed(Served(0.0, {running: 100}))
        scene.leave(running)
    assert {request < 10 for request in scene.given[1:4]} == {True, False}


def test_nobody_pays_for_having_been_alone() -> None:
    """Ada was served much before Bob came: his first request does not push hers back for long."""
    scene = Scene(slots=1)
    scene.ask(1, "ada")
    scene.begin(1)
    scene.serve(_1=100_000)
    scene.leave(1)
    scene.ask(2, "bob")
    scene.begin(2)
    scene.ask(3, "bob")
    scene.ask(4, "ada")
    scene.serve(_2=100)
    scene.leave(2)
    assert scene.given == [1, 2, 4]


def test_cached_prompt_costs_less_than_a_computed_one() -> None:
    scene = Scene(slots=2)
    scene.ask(1, "ada", prompt=10_000)
    scene.ask(2, "bob", prompt=10_000)
    scene.begin(1)
    scene.begin(2, cached=9_728)
    assert scene.state.people["bob"].counter < scene.state.people["ada"].counter / 10


def test_request_that_never_got_its_pages_costs_nothing() -> None:
    scene = Scene()
    scene.ask(1, "ada", prompt=10_000)
    assert scene.state.people["ada"].counter > 0
    scene.leave(1)
    assert scene.state.people["ada"].counter == 0


def test_coming_back_costs_nothing() -> None:
    scene = Scene()
    scene.ask(1, "ada", prompt=10_000)
    scene.begin(1)
    before = scene.state.people["ada"].counter
    scene.feed(Returned(0.0, 1))
    scene.begin(1)
    assert scene.given == [1, 1]
    assert scene.state.people["ada"].counter == pytest.approx(before + 4.0)


def test_prefix_in_the_cache_brings_a_request_forward_within_the_quantum() -> None:
    scene = Scene(slots=1, quantum=500.0)
    scene.ask(1, "eve")
    scene.begin(1)
    scene.ask(2, "ada", prompt=4000)
    scene.ask(3, "bob", prompt=4000, hints=(Hint(0, 3840),))
    scene.leave(1)
    assert scene.given == [1, 3]


# --- order within a person ---


def test_live_goes_before_background_of_anybody() -> None:
    scene = Scene(slots=1)
    scene.ask(1, "ada")
    scene.ask(2, "bob", priority=Priority.BACKGROUND)
    scene.ask(3, "ada")
    scene.begin(1)
    scene.leave(1)
    assert scene.given == [1, 3]


def test_background_waits_while_a_live_request_waits_for_room() -> None:
    scene = Scene(slots=2, pages=10)
    scene.ask(1, "ada", prompt=1400)
    scene.begin(1)
    scene.ask(2, "bob", prompt=1400)
    scene.ask(3, "cem", priority=Priority.BACKGROUND)
    assert scene.given == [1]


def test_live_request_has_a_background_one_give_up_its_slot() -> None:
    """That of the same person, though another's is younger."""
    scene = Scene(slots=2)
    scene.ask(1, "ada", priority=Priority.BACKGROUND)
    scene.ask(2, "bob", priority=Priority.BACKGROUND)
    scene.begin(1, 2)
    scene.ask(3, "ada")
    assert scene.suspended == [1]
    scene.feed(Returned(0.0, 1))
    assert scene.given == [1, 2, 3]


def test_requests_that_lost_their_engine_come_back_first_the_shortest_first() -> None:
    scene = Scene(slots=3)
    for request, prompt in ((1, 3000), (2, 100), (3, 900)):
        scene.ask(request, prompt=prompt)
        scene.begin(request)
    scene.ask(4)
    scene.feed(EngineDown(0.0, 0))
    scene.feed(Understood(0.0, 0))
    scene.feed(EngineUp(0.0, 0, 1, 1000, PAGE))
    for _ in range(3):
        scene.leave(scene.given[-1])
    assert scene.given[3:] == [2, 3, 1, 4]


def test_requests_of_a_dead_engine_rest_until_its_death_is_understood() -> None:
    scene = Scene(engines=2)
    scene.ask(1)
    scene.feed(EngineDown(0.0, scene.places[1]))
    assert (scene.given, scene.state.queued) == ([1], 1)
    scene.feed(Understood(0.0, 0))
    assert scene.given == [1, 1]
    assert scene.places[1] == 1


# --- slots ---


def test_newcomer_below_their_part_has_the_youngest_stream_of_whoever_is_above_set_aside() -> None:
    scene = Scene(slots=4)
    for request in range(1, 5):
        scene.ask(request, "agent")
        scene.begin(request)
    scene.ask(9, "ada")
    assert scene.suspended == [4]
    scene.feed(Returned(0.0, 4))
    assert scene.given == [1, 2, 3, 4, 9]


def test_two_who_want_everything_end_up_with_half_each_and_leave_it_at_that() -> None:
    scene = Scene(slots=4)
    for request in range(1, 9):
        scene.ask(request, "ada")
        scene.begin(*(one for one in scene.state.engines[0].inside if one == request))
    for request in range(11, 19):
        scene.ask(request, "bob")
    for _ in range(8):
        for request in [one for one in scene.suspended if one in scene.state.engines[0].inside]:
            scene.feed(Returned(0.0, request))
        scene.begin(*(one for one in scene.state.engines[0].inside if one > 10))
    inside = scene.state.engines[0].inside
    assert sorted(request > 10 for request in inside) == [False, False, True, True]
    assert len(scene.suspended) == 2


def test_prompts_of_a_person_are_computed_one_after_the_other() -> None:
    scene = Scene(slots=8, window=2000)
    scene.ask(1, "agent", prompt=50_000)
    scene.ask(2, "agent", prompt=50_000)
    scene.ask(3, "ada", prompt=500)
    scene.ask(4, "ada", prompt=500)
    assert scene.given == [1, 3, 4]
    scene.begin(1)
    assert scene.given == [1, 3, 4, 2]


def test_short_prompt_of_a_light_person_overtakes_a_long_one_that_is_being_computed() -> None:
    scene = Scene(slots=8)
    scene.ask(1, "agent", prompt=80_000)
    scene.ask(2, "ada", prompt=500)
    scene.ask(3, "bob", prompt=100, priority=Priority.BACKGROUND)
    assert scene.ranks[2] < scene.ranks[1] < scene.ranks[3]


def test_rank_follows_what_the_cache_really_held() -> None:
    scene = Scene(slots=8)
    scene.ask(1, "ada", prompt=80_000)
    scene.ask(2, "bob", prompt=5_000)
    assert scene.ranks[2] < scene.ranks[1]
    scene.step(began=(Began(1, 79_872),))
    assert scene.ranks[1] < scene.ranks[2]


# --- pages ---


def test_request_waits_for_pages_and_runs_when_they_are_free() -> None:
    scene = Scene(pages=10)
    scene.ask(1, prompt=1500, answer=200)
    scene.begin(1)
    scene.ask(2, prompt=1500, answer=200)
    assert scene.given == [1]
    scene.leave(1)
    scene.step()
    assert scene.given == [1, 2]


def test_engine_is_asked_what_a_request_needs_only_where_the_pool_is_tight() -> None:
    scene = Scene(slots=8, pages=10)
    scene.ask(1, prompt=1000, answer=100)
    scene.begin(1)
    scene.ask(2, prompt=500, answer=100)
    scene.begin(2)
    assert scene.asked == []
    scene.ask(3, prompt=1000, answer=100)
    assert [(one.id, one.engine) for one in scene.asked] == [(3, 0)]
    scene.feed(Quoted(0.0, 3, 0, pages=2, cached=768))
    assert scene.given == [1, 2, 3]
    assert scene.suspended == []


def test_small_requests_pass_a_large_one_without_room_a_few_times_only() -> None:
    scene = Scene(slots=8, pages=40, window=100_000)
    scene.ask(1, "eve", prompt=5000, answer=10)
    scene.begin(1)
    scene.ask(2, "ada", prompt=6000, answer=10)
    for request in range(3, 40):
        scene.ask(request, f"p{request}", prompt=300, answer=10)
        if request in scene.given:
            scene.begin(request)
            scene.leave(request)
            scene.step()
    assert scene.given == [1, *range(3, 19)]
    scene.leave(1)
    scene.step()
    assert scene.given[17] == 2


def test_growth_sets_the_youngest_above_their_guarantee_aside_which_may_be_the_one_that_grows() -> None:
    scene = Scene(slots=4, pages=30, reserve=512)
    for request in (1, 2, 3):
        scene.ask(request, f"p{request}", prompt=1500, answer=5000)
        scene.begin(request)
    scene.serve(_1=700, _2=700, _3=700)
    scene.step(waits=(Waits(1, 11),))
    assert scene.suspended == [3]
    scene.feed(Returned(0.0, 3))
    scene.step(waits=(Waits(2, 24),))
    assert scene.suspended == [3, 2]


def test_what_was_set_aside_comes_back_only_with_room_to_grow() -> None:
    scene = Scene(slots=4, pages=24, reserve=512)
    scene.ask(1, "ada", prompt=3000, answer=5000)
    scene.begin(1)
    scene.ask(2, "bob", prompt=1500, answer=5000)
    scene.begin(2)
    scene.serve(_1=600)
    scene.step()
    scene.feed(Returned(0.0, 2))
    scene.step()
    assert scene.given == [1, 2]
    scene.leave(1)
    scene.step()
    assert scene.given == [1, 2, 2]


# --- guarantees ---


def test_person_within_their_guarantee_gets_room_from_the_youngest_above_theirs() -> None:
    scene = Scene(slots=8, pages=40, people={"ada": Share(guaranteed=20 * PAGE), "bob": Share(guaranteed=10 * PAGE)})
    scene.ask(1, "bob", prompt=2000, answer=100)
    scene.begin(1)
    for request in (2, 3, 4):
        scene.ask(request, "guest", prompt=2000, answer=100)
        scene.begin(request)
    assert scene.given == [1, 2, 3, 4]
    scene.ask(5, "ada", prompt=4000, answer=100)
    assert scene.suspended == [4, 3]
    scene.feed(Returned(0.0, 4))
    scene.feed(Returned(0.0, 3))
    scene.step()
    assert scene.suspended == [4, 3]
    assert scene.given == [1, 2, 3, 4, 5]


def test_nobody_within_their_guarantee_is_set_aside_for_another_guarantee() -> None:
    scene = Scene(slots=8, pages=40, people={"ada": Share(guaranteed=20 * PAGE), "bob": Share(guaranteed=20 * PAGE)})
    scene.ask(1, "bob", prompt=4800, answer=100)
    scene.begin(1)
    scene.ask(2, "ada", prompt=4800, answer=100)
    assert (scene.given, scene.suspended) == ([1, 2], [])


def test_conversation_stays_warm_between_turns_where_it_is_guaranteed() -> None:
    """A stranger's request waits rather than evict it, and the engine is told to keep it longest."""
    scene = Scene(slots=8, pages=40, people={"ada": Share(guaranteed=20 * PAGE)})
    scene.ask(1, "ada", prompt=4800, answer=100)
    scene.begin(1)
    scene.leave(1)
    scene.ask(2, "guest", prompt=2000, answer=100)
    scene.begin(2)
    scene.leave(2)
    scene.step()
    assert scene.kept[0] == (2, 1)
    scene.ask(3, "guest", prompt=2500, answer=100)
    scene.begin(3)
    scene.ask(4, "guest", prompt=3000, answer=100)
    assert scene.given == [1, 2, 3]
    scene.ask(5, "ada", prompt=4900, answer=100)
    scene.begin(5, cached=4608, extends=1)
    assert scene.given == [1, 2, 3, 5]
    assert scene.suspended == []


def test_request_that_would_never_fit_beside_what_is_kept_warm_ends_the_warmth() -> None:
    scene = Scene(slots=8, pages=40, people={"ada": Share(guaranteed=20 * PAGE)})
    scene.ask(1, "ada", prompt=4800, answer=100)
    scene.begin(1)
    scene.leave(1)
    scene.step()
    scene.ask(2, "guest", prompt=8000, answer=100)
    assert scene.given == [1, 2]
    assert scene.kept[0] == ()


# --- suspects ---


def test_suspect_runs_alone_before_anybody_else() -> None:
    scene = Scene(slots=4)
    for request in (1, 2, 3):
        scene.ask(request)
        scene.begin(request)
    scene.feed(EngineDown(0.0, 0))
    scene.feed(Isolated(0.0, 2))
    scene.feed(Understood(0.0, 0))
    scene.feed(EngineUp(0.0, 0, 4, 1000, PAGE))
    assert scene.given[3:] == [2]
    scene.leave(2)
    assert scene.given[3:] == [2, 1, 3]


def test_suspect_that_finds_no_empty_engine_has_the_emptiest_one_cleared() -> None:
    scene = Scene(slots=4, engines=2)
    scene.ask(1)
    scene.ask(2)
    scene.begin(1)
    scene.step(began=(Began(2, 0),), engine=1)
    first, second = scene.places[1], scene.places[2]
    assert {first, second} == {0, 1}
    scene.ask(3)
    scene.feed(EngineDown(0.0, second))
    scene.feed(Isolated(0.0, 2))
    scene.feed(Understood(0.0, second, lost=True))
    assert set(scene.suspended) >= {1}


# --- engines ---


def test_engine_that_holds_the_prefix_is_preferred_and_load_evens_out() -> None:
    scene = Scene(slots=4, engines=2)
    scene.ask(1, prompt=5000, hints=(Hint(1, 4864),))
    assert scene.places[1] == 1
    scene.ask(2, "bob", prompt=5000)
    assert scene.places[2] == 0


# --- refusals ---


def test_own_limit_refuses_the_person_and_nobody_else() -> None:
    scene = Scene(slots=1, people={"ada": Share(max_queued=1)})
    for request in (1, 2, 3):
        scene.ask(request, "ada")
    scene.ask(4, "bob")
    [refused] = scene.refused
    assert (refused.id, refused.own_limit) == (3, True)
    assert refused.retry_after >= 1
    assert "ada" in refused.why
    assert set(scene.state.requests) == {1, 2, 4}


def test_concurrency_limit_holds_a_person_back_and_nobody_else() -> None:
    scene = Scene(slots=4, people={"ada": Share(max_concurrent=1)})
    for request in (1, 2):
        scene.ask(request, "ada")
    scene.ask(3, "bob")
    assert scene.given == [1, 3]


def test_full_queue_refuses_with_the_servers_limit() -> None:
    scene = Scene(slots=1, max_queued=2)
    for request in range(1, 5):
        scene.ask(request)
    [refused] = scene.refused
    assert (refused.id, refused.own_limit) == (4, False)


def test_last_part_of_the_queue_is_for_people_with_little_in_it() -> None:
    scene = Scene(slots=1, max_queued=8)
    for request in range(1, 8):
        scene.ask(request, "agent")
    scene.ask(11, "ada")
    scene.ask(8, "agent")
    scene.ask(12, "ada")
    assert [refused.id for refused in scene.refused] == [8]


def test_time_to_come_back_after_is_estimated_from_what_was_measured() -> None:
    """A request of 100 + 4 x 100 units ends every five seconds: one more fits after about that."""
    scene = Scene(slots=1, people={"ada": Share(max_queued=0)})
    for request in range(1, 40):
        scene.ask(request, "ada")
        scene.begin(request)
        scene.t += 5.0
        scene.feed(Served(scene.t, {request: 99}))
        scene.leave(request)
    scene.ask(50, "ada")
    scene.ask(51, "ada")
    [refused] = scene.refused
    assert 2.0 <= refused.retry_after <= 10.0


# --- in order of arrival ---


@pytest.mark.parametrize("order", SharingOrder)
@pytest.mark.parametrize("priority", Priority)
def test_request_behind_others_of_its_person_moves_nobody_and_leaves_nothing_undone(
    order: SharingOrder, priority: Priority
) -> None:
    """No room is sought when it arrives; whoever looks again right after it finds nothing to do either."""
    scene = Scene(slots=2, order=order)
    for request in range(1, 6):
        scene.ask(request, "ada", priority=priority)
        scene.begin(*(one for one in scene.state.engines[0].inside if one == request))
    scene.ask(6, "bob", priority=priority)
    before = (list(scene.given), list(scene.suspended))
    scene.ask(7, "ada", priority=priority)
    scene.ask(8, "bob", priority=priority)
    scene.feed(Ticked(scene.t))
    assert (scene.given, scene.suspended) == before
    assert scene.state.queued == 8 - len(scene.given)


def test_fifo_serves_in_order_of_arrival_whoever_asks() -> None:
    scene = Scene(slots=1, order=SharingOrder.FIFO, people={"ada": Share(guaranteed=50 * PAGE)})
    for request in (1, 2, 3):
        scene.ask(request, "agent")
    scene.ask(4, "ada")
    for request in (1, 2, 3):
        scene.begin(request)
        scene.leave(request)
    assert (scene.given, scene.suspended) == ([1, 2, 3, 4], [])
