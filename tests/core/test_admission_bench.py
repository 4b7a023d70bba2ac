"""Fair admission over whole runs, with the time of the engines' steps as on a consumer GPU: what people notice of each other."""

import pytest

from daemon.core.admission_values import Policy, Share
from daemon.core.settings import SharingOrder
from tests.core.admission_world import PAGE, Ask, Machine, World

CHATS = [Ask(5.0 + place / 10, f"p{place}", 1500, 40) for place in range(5)]
AGGRESSOR = [Ask(place / 1000, "aggressor", 4000, 120) for place in range(50)]


def run(order: SharingOrder, asks: list[Ask]) -> World:
    """Everything asked, served to its end by one engine of 16 slots."""
    world = World(Policy(order=order), [Machine(16, 1600, stride=2)])
    world.run(asks)
    return world


def waits(world: World) -> list[float]:
    """Times to the first token of the chats, the longest last."""
    return sorted(story.ttft for story in world.stories.values() if story.ask.owner != "aggressor")


def test_fifty_long_requests_of_one_person_hardly_delay_the_chats_of_others() -> None:
    """In order of arrival they wait for minutes; fairly, no longer than half as long again, at the same throughput."""
    alone, fair, queue = run(SharingOrder.FAIR, CHATS), run(SharingOrder.FAIR, [*AGGRESSOR, *CHATS]), None
    queue = run(SharingOrder.FIFO, [*AGGRESSOR, *CHATS])
    assert waits(fair)[-1] <= 1.5 * waits(alone)[-1]
    assert waits(queue)[0] > 10 * waits(alone)[-1]
    assert fair.now <= queue.now / 0.95
    assert all(story.end is not None for story in fair.stories.values())


def test_people_who_always_want_more_are_served_alike() -> None:
    """Jain's index over the service done while all have requests waiting, with answers and prompts of different lengths."""
    sizes = {"a": (3000, 60), "b": (100, 200), "c": (800, 100), "d": (200, 60)}
    asks = [Ask(0.0, owner, prompt, answer) for owner, (prompt, answer) in sizes.items() for _ in range(60)]
    world = World(Policy(), [Machine(8, 1600, stride=2)])
    world.run(asks, until=25.0)
    assert all(any(story.first is None for story in world.stories.values() if story.ask.owner == owner) for owner in sizes)
    served = [world.served[owner] for owner in sizes]
    assert sum(served) ** 2 / (len(served) * sum(one * one for one in served)) >= 0.95


def grow(pages: int, guaranteed: list[int]) -> World:
    """Six people whose answers grow together to 8,000 tokens each."""
    people = {f"p{place}": Share(guaranteed=tokens) for place, tokens in enumerate(guaranteed)}
    world = World(Policy(people=people, reserve=512), [Machine(16, pages, reserve=512, stride=8)])
    world.run([Ask(place / 100, f"p{place}", 400, 7600) for place in range(6)])
    return world


EACH = -(-8001 // PAGE)


@pytest.mark.parametrize("guaranteed", [0, 8001])
def test_answers_that_grow_together_into_a_pool_that_holds_them_are_not_interrupted(guaranteed: int) -> None:
    world = grow(6 * EACH, [guaranteed] * 6)
    assert world.machines[0].peak == 6
    assert [story.suspended for story in world.stories.values()] == [0] * 6


def test_answers_that_grow_out_of_the_pool_take_turns_and_guarantees_hold() -> None:
    """The pool holds three quarters. Who is within a guarantee is not interrupted; the others are, seldom, and end well."""
    world = grow(int(6 * EACH * 0.75), [8001, 8001, 8001, 0, 0, 0])
    suspended = [story.suspended for story in world.stories.values()]
    assert suspended[:3] == [0, 0, 0]
    assert 0 < sum(suspended[3:]) <= 12
    assert all(story.end is not None for story in world.stories.values())


def test_answers_without_guarantees_that_grow_out_of_the_pool_all_come_to_their_end() -> None:
    world = grow(int(6 * EACH * 0.6), [0] * 6)
    suspended = [story.suspended for story in world.stories.values()]
    assert 0 < sum(suspended) <= 24
    assert all(story.end is not None for story in world.stories.values())
