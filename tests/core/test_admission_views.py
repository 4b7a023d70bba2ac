"""Questions about admission: whether promises fit, why requests wait, which conversation a prompt goes on with."""

import pytest

from daemon.core.admission import decide
from daemon.core.admission_events import (
    Arrived,
    EngineDown,
    EngineUp,
    Event,
    Isolated,
)
from daemon.core.admission_prefixes import MOST_CONVERSATIONS, PrefixIndex
from daemon.core.admission_values import (
    Admission,
    Hint,
    Policy,
    Reason,
    Share,
)
from daemon.core.admission_views import figures, guarantee_problem
from daemon.core.people import merge
from daemon.core.prefix_watch import Trace
from daemon.core.requests import Priority
from daemon.core.settings import EngineSettings, PersonSettings, ServerSettings, SharingOrder, SharingSettings


def promising(**tokens: int) -> Policy:
    return Policy(people={name: Share(guaranteed=promised) for name, promised in tokens.items()})


@pytest.mark.parametrize(
    ("policy", "pools"),
    [
        (promising(), [(10, 256)]),
        (promising(ada=2560), [(10, 256)]),
        (promising(ada=80_000, bob=80_000), [(626, 256)]),
        (promising(ada=80_000, bob=80_000), [(313, 256), (313, 256)]),
        (promising(ada=80_000), []),
        (Policy(people={"ada": Share(guaranteed=80_000)}, order=SharingOrder.FIFO), [(10, 256)]),
    ],
    ids=["nothing promised", "exactly", "two in one pool", "one in each", "no engine yet", "fifo promises nothing"],
)
def test_promises_that_fit_are_no_problem(policy: Policy, pools: list[tuple[int, int]]) -> None:
    assert guarantee_problem(policy, pools) is None


@pytest.mark.parametrize(
    ("policy", "pools"),
    [
        (promising(ada=2561), [(10, 256)]),
        (promising(ada=80_000, bob=80_000), [(625, 256)]),
        (promising(ada=100_000), [(313, 256), (313, 256)]),
    ],
    ids=["a token too many", "a page too many", "spread over two engines"],
)
def test_promises_that_do_not_fit_are_a_problem_with_numbers(policy: Policy, pools: list[tuple[int, int]]) -> None:
    words = guarantee_problem(policy, pools)
    assert words is not None
    assert f"{sum(share.guaranteed for share in policy.people.values()):,}" in words
    assert f"({sum(pages for pages, _ in pools)} pages)" in words
    assert "engine.cache_tokens" in words


def test_policy_takes_shares_from_whoever_has_a_key_and_prices_from_sharing() -> None:
    sharing = SharingSettings(guaranteed_context=512, max_queued=7, decode_price=3.0, order=SharingOrder.FIFO)
    people = merge([], [PersonSettings(name="local", weight=2.0, max_concurrent=3)], sharing)
    policy = Policy.of(people, ServerSettings(max_queued=9), EngineSettings(reserve_tokens=512, chunk_tokens=1024))
    assert policy.share("local") == Share(weight=2.0, max_concurrent=3, max_queued=7)
    assert policy.share("somebody") == Share(max_queued=7)
    assert (policy.max_queued, policy.reserve, policy.window, policy.order) == (9, 512, 2048, SharingOrder.FIFO)
    assert policy.prices.decode == pytest.approx(3.0)


def after(policy: Policy, *events: Event) -> Admission:
    state = Admission()
    for event in events:
        state, _ = decide(state, event, policy)
    return state


def arrival(request: int, owner: str, prompt: int = 100) -> Arrived:
    return Arrived(10.0, request, owner, Priority.LIVE, prompt, 100)


def test_figures_say_what_requests_wait_for() -> None:
    policy = Policy(people={"ada": Share(max_concurrent=1), "bob": Share(weight=2.0, guaranteed=512)})
    state = after(
        policy,
        EngineUp(0.0, 0, 2, 100, 256),
        arrival(1, "ada"),
        arrival(2, "ada"),
        arrival(3, "bob"),
        arrival(4, "bob"),
    )
    found = figures(state, policy, 20.0)
    assert {reason: count for reason, count in found.queued.items() if count} == {Reason.OWN_LIMIT: 1, Reason.SLOTS: 1}
    ada, bob = found.people["ada"], found.people["bob"]
    assert (ada.running, ada.queued, bob.running, bob.queued) == (1, 1, 1, 1)
    assert (bob.weight, bob.guaranteed, bob.waits) == (2.0, 512, 1)


def test_figures_tell_those_without_an_engine_from_suspects() -> None:
    policy = Policy()
    state = after(
        policy,
        EngineUp(0.0, 0, 2, 100, 256),
        arrival(1, "ada"),
        arrival(2, "ada"),
        arrival(3, "bob"),
        EngineDown(11.0, 0),
        Isolated(12.0, 2),
    )
    found = figures(state, policy, 20.0)
    assert {reason: count for reason, count in found.queued.items() if count} == {Reason.ENGINE: 2, Reason.ALONE: 1}
    assert sum(person.queued for person in found.people.values()) == 3


# --- prefixes ---


def chain(tokens: list[int]) -> bytes:
    trace = Trace(tokens)
    trace.finish()
    return trace.digests


def words(seed: int, count: int) -> list[int]:
    """Tokens that differ for seeds far apart."""
    return [(seed + place) * (seed + place + 7919) % 65_521 for place in range(count)]


def test_prompt_is_found_where_the_longest_part_of_it_stands() -> None:
    index = PrefixIndex()
    index.engine_up(0)
    index.engine_up(1)
    long, other = words(0, 2000), words(5000, 1000)
    index.remember(0, 7, chain(long[:1100]))
    index.remember(1, 8, chain([*long[:600], *other]))
    found = index.find(chain([*long, *other]))
    assert found == (Hint(0, 1024, 7), Hint(1, 512, 8))


def test_shared_beginning_counts_for_the_latest_and_outlives_the_one_before() -> None:
    index = PrefixIndex()
    index.engine_up(0)
    common = words(0, 512)
    index.remember(0, 1, chain([*common, *words(700, 512)]))
    index.remember(0, 2, chain([*common, *words(9000, 512)]))
    assert index.find(chain([*common, *words(4000, 300)])) == (Hint(0, 512, 2),)
    assert index.find(chain([*common, *words(700, 512)])) == (Hint(0, 1024, 1),)


def test_new_engine_holds_nothing() -> None:
    index = PrefixIndex()
    index.engine_up(0)
    index.remember(0, 1, chain(words(0, 600)))
    index.engine_up(0)
    assert index.find(chain(words(0, 600))) == ()


def test_only_the_latest_conversations_are_remembered() -> None:
    index = PrefixIndex()
    index.engine_up(0)
    for request in range(MOST_CONVERSATIONS + 1):
        index.remember(0, request, chain(words(10_000 * request, 256)))
    assert index.find(chain(words(0, 256))) == ()
    assert index.find(chain(words(10_000, 256))) == (Hint(0, 256, 1),)
