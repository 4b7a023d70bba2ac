"""Silent misses of the prefix cache: what counts as one, and by which cause."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.prefix_watch import PAGE, Allowance, Miss, MissCause, PrefixFigures, PrefixWatch, Trace

DENSE = Allowance.of_interval(0)
HYBRID = Allowance.of_interval(2048)


def text(length: int, seed: int = 0) -> list[int]:
    """Ids, the same for the same seed."""
    numbers = random.Random(seed)  # noqa: S311 - test data
    return [numbers.randrange(150_000) for _ in range(length)]


def trace(prompt: list[int], answer: list[int] | None = None) -> Trace:
    """A hashed sequence."""
    made = Trace(prompt)
    if answer is not None:
        made.grow(answer)
    made.finish()
    return made


def told(
    before: tuple[list[int], list[int]], prompt: list[int], cached: int, kv_only: int = 0, allowance: Allowance = DENSE
) -> Miss | None:
    """The judgement of a prompt after one earlier request, both of the same owner."""
    watch = PrefixWatch()
    watch.remember("ann", trace(*before))
    return watch.judge("ann", trace(prompt), cached, kv_only, allowance)


FIRST = (text(3000, 1), text(500, 2))
NEXT = [*FIRST[0], *FIRST[1], *text(300, 3)]
SHARED = 3500 // PAGE * PAGE


@pytest.mark.parametrize(
    ("cached", "kv_only", "allowance", "expected"),
    [
        (SHARED, 0, DENSE, None),
        (SHARED - PAGE, 0, DENSE, None),
        (0, 0, DENSE, MissCause.EVICTED),
        (1024, 0, DENSE, MissCause.EVICTED),
        (SHARED - 2048, 2048, HYBRID, None),
        (0, SHARED, HYBRID, MissCause.NO_CHECKPOINT),
        (0, 0, HYBRID, MissCause.EVICTED),
        (0, 1024, HYBRID, MissCause.EVICTED),
        (512, SHARED - 512, HYBRID, MissCause.NO_CHECKPOINT),
    ],
)
def test_next_turn_is_judged_by_what_it_shares_with_the_turn_before(
    cached: int, kv_only: int, allowance: Allowance, expected: MissCause | None
) -> None:
    miss = told(FIRST, NEXT, cached, kv_only, allowance)
    assert (miss and miss.cause) == expected
    if miss is not None:
        assert (miss.expected, miss.cached) == (SHARED, cached)


def test_shortfall_below_an_eighth_is_no_miss() -> None:
    """Of 80,000 tokens, two lost pages are no alarm."""
    long = (text(80_000, 1), text(10, 2))
    prompt = [*long[0], *long[1], 5]
    assert told(long, prompt, 79_872 - 512) is None
    assert told(long, prompt, 60_000) == Miss(MissCause.EVICTED, 80_010 // PAGE * PAGE, 60_000)


def test_dropped_thought_expects_only_what_precedes_it() -> None:
    """The template leaves the last thought out: the answer's pages are lost to everybody's knowledge."""
    opened = [*text(1500, 1), 7, 8]
    thought, answer = text(3000, 2), text(200, 3)
    prompt = [*opened[:-1], *answer, *text(50, 4)]
    assert told((opened, [*thought, *answer]), prompt, 1280) is None
    assert told((opened, [*thought, *answer]), prompt, 0) == Miss(MissCause.EVICTED, 1280, 0)


def test_earlier_turn_written_differently_is_named() -> None:
    """A clock in the system prompt costs the whole conversation at each turn."""
    first = [*text(20, 1), *text(3000, 2)]
    prompt = [*text(20, 9), *first[20:], *text(400, 3)]
    assert told((first, text(400, 4)), prompt, 0) == Miss(MissCause.TEMPLATE_CHANGED, 2816, 0)


def test_change_near_the_end_that_costs_little_is_no_miss() -> None:
    first = text(3000, 2)
    prompt = [*first[:2800], *text(3, 9), *first[2800:], *text(400, 3)]
    assert told((first, text(400, 4)), prompt, 2560) is None


@pytest.mark.parametrize("prompt", [text(3000, 8), [*FIRST[0][:1500], *text(1500, 8)]])
def test_another_conversation_owes_no_hit(prompt: list[int]) -> None:
    """Even where it has the system prompt in common with the one before."""
    assert told(FIRST, prompt, 0) is None


def test_chat_shorter_than_a_page_is_too_short() -> None:
    first = text(100, 1)
    assert told((first, text(40, 2)), [*first, *text(60, 3)], 0) == Miss(MissCause.TOO_SHORT, 0, 0)


def test_short_chat_with_the_same_greeting_is_another_conversation() -> None:
    assert told((text(30, 1), text(40, 2)), [*text(20, 1), *text(60, 3)], 0) is None


def test_other_owner_s_conversation_is_not_compared() -> None:
    watch = PrefixWatch()
    watch.remember("ann", trace(*FIRST))
    assert watch.judge("bob", trace(NEXT), 0, 0, DENSE) is None


def test_new_engine_owes_nothing() -> None:
    watch = PrefixWatch()
    watch.remember("ann", trace(*FIRST))
    watch.forget()
    assert watch.judge("ann", trace(NEXT), 0, 0, DENSE) is None


def test_each_turn_takes_the_place_of_the_one_before_so_conversations_are_what_is_counted() -> None:
    watch = PrefixWatch(conversations=2)
    other = text(600, 50)
    watch.remember("ann", trace(other, [1]))
    said = text(600, 51)
    for turn in range(10):
        said += text(300, 100 + turn)
        watch.remember("ann", trace(said, [1]))
    assert watch.judge("ann", trace([*other, 1, *text(30)]), 0, 0, DENSE) == Miss(MissCause.EVICTED, 512, 0)


def test_memory_is_bounded_by_conversations_and_owners() -> None:
    watch = PrefixWatch(conversations=2, owners=2)
    for number in range(5):
        watch.remember("ann", trace(text(600, number), [1]))
    for owner in ("bob", "cid"):
        watch.remember(owner, trace(text(600, 9), [1]))
    assert [watch.judge(owner, trace([*text(600, 9), 1, 2]), 0, 0, DENSE) is not None for owner in ("ann", "bob", "cid")] == [
        False,
        True,
        True,
    ]
    watch.remember("bob", trace(text(600, 10), [1]))
    watch.remember("bob", trace(text(600, 11), [1]))
    assert watch.judge("bob", trace([*text(600, 9), 1, 2]), 0, 0, DENSE) is None


@given(st.lists(st.integers(0, 2**32 - 1), max_size=700), st.lists(st.integers(0, 3), max_size=700), st.integers(1, 3))
def test_trace_hashed_in_slices_equals_one_hashed_at_once(prompt: list[int], answer: list[int], slices: int) -> None:
    """However the work is cut, and wherever the prompt ends in a page."""
    sliced = Trace(prompt)
    sliced.advance(slices)
    sliced.grow(answer)
    while not sliced.advance(slices):
        pass
    whole = trace([*prompt, *answer])
    assert sliced.digests == whole.digests
    assert sliced.tokens(0, 1400) == whole.tokens(0, 1400)
    assert len(whole.digests) == (len(prompt) + len(answer)) // PAGE * 8


@given(st.integers(0, 1200), st.integers(0, 1200), st.integers(0, 1200))
def test_whatever_is_found_as_it_should_be_never_alarms(first: int, answer: int, more: int) -> None:
    """A request that finds every whole page it shares is never a miss, unless it shares none."""
    said = text(first + answer, 1)
    prompt = [*said, *text(more + 1, 2)]
    shared = min((first + answer) // PAGE, (len(prompt) - 1) // PAGE) * PAGE
    miss = told((said[:first], said[first:]), prompt, shared)
    assert miss is None or (miss.cause is MissCause.TOO_SHORT and shared == 0)


def test_run_of_tokens_is_found_at_token_boundaries_only() -> None:
    """Bytes that straddle two tokens are no token."""
    made = trace([0x01020304, 0x05060708, 7])
    straddling = made.tokens(0, 3)[1:9]
    assert not made.contains(straddling)
    assert made.contains(made.tokens(1, 2))


def test_figures_count_by_cause() -> None:
    figures = PrefixFigures(evicted=1, no_checkpoint=2, template_changed=3, too_short=4)
    assert [figures.count(cause) for cause in MissCause] == [1, 2, 3, 4]
