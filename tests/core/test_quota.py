"""Tokens a day."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.quota import DAY_SECONDS, Standing, day_of, refusal, seconds_left

NOW = st.floats(0, 4e9)


@given(NOW)
def test_day_ends_when_its_seconds_are_over(now: float) -> None:
    left = seconds_left(now)
    assert 0 < left <= DAY_SECONDS
    assert day_of(now + left + 1e-3) == day_of(now) + 1


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_prompt_is_let_in_exactly_where_it_fits_into_what_is_left(limit: int, spent: int, held: int, prompt: int) -> None:
    standing = Standing(limit, spent, held, 60)
    let_in = spent + held + max(prompt, 1) <= limit
    assert (refusal(standing, prompt) is None) == let_in


def test_without_a_quota_everything_is_let_in() -> None:
    assert refusal(Standing(None, 10**12, 10**12, 60), 10**12) is None


@pytest.mark.parametrize(
    ("standing", "prompt", "words"),
    [
        (
            Standing(1000, 1200, 0, 22_320),
            0,
            "Your 1000 tokens of today are used up. The count begins anew at midnight UTC, in 6 h 12 min.",
        ),
        (Standing(1000, 500, 100, 30), 401, "400 of your 1000 tokens of today are left, too few for a prompt of 401."),
    ],
)
def test_refusal_says_what_is_left_and_when_there_is_more(standing: Standing, prompt: int, words: str) -> None:
    found = refusal(standing, prompt)
    assert found is not None
    assert words in str(found)
    assert found.resets_in == standing.resets_in
