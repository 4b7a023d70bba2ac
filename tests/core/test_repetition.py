"""Loops are found, soon and whatever their period; nothing else is ever called one."""

from itertools import cycle, islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.repetition import STRIDE, RepetitionDetector, RepetitionPolicy

POLICY = RepetitionPolicy()


def cut_at(ids: list[int], policy: RepetitionPolicy = POLICY, chunk: int = 1) -> int | None:
    """After how many tokens a loop was seen."""
    detector = RepetitionDetector(policy)
    for start in range(0, len(ids), chunk):
        if detector.push(ids[start : start + chunk]):
            return min(start + chunk, len(ids))
    return None


def loops(ids: list[int], policy: RepetitionPolicy) -> bool:
    """The definition, tried for every period."""
    for period in range(1, policy.longest + 1):
        span = max(policy.least, policy.count * period)
        if span <= len(ids) and ids[-span:-period] == ids[period - span :]:
            return True
    return False


@pytest.mark.parametrize("period", [1, 2, 3, 64, 100, 255, 426])
def test_passage_said_again_and_again_is_cut_soon_after_it_counts(period: int) -> None:
    """Whatever came before."""
    lead = list(range(1000, 1333))
    ids = lead + list(islice(cycle(range(period)), 5000))
    found = cut_at(ids)
    due = len(lead) + max(POLICY.least, POLICY.count * period)
    assert found is not None
    assert due <= found <= due + STRIDE


def test_row_of_one_token_of_modest_length_is_not_cut() -> None:
    """Rules of dashes, `aaaa`, zeros in a dump."""
    assert cut_at([*range(300), *[7] * (POLICY.least - 1), *range(300)]) is None


def test_table_with_one_changing_cell_is_not_cut() -> None:
    """The columns repeat, a number does not."""
    rows = [[5, 6, 7, 8, 9, 1000 + number, 10, 11] for number in range(1000)]
    assert cut_at([token for row in rows for token in row]) is None


def test_passage_said_five_times_is_not_cut() -> None:
    """A chorus, a template filled five times with the same words."""
    assert cut_at([*list(range(300)) * 5, *range(1000, 2000)]) is None


def test_detector_that_is_reset_starts_again() -> None:
    detector = RepetitionDetector(POLICY)
    assert not detector.push([1] * 500)
    detector.reset()
    assert not detector.push([1] * 500)
    assert detector.push([1] * 100)


def test_memory_is_bounded() -> None:
    detector = RepetitionDetector(POLICY)
    for start in range(0, 20_000, 50):
        detector.push(range(start, start + 50))
    assert len(detector._window) <= POLICY.count * POLICY.longest  # pyright: ignore[reportPrivateUsage]  # what is bounded


policies = st.builds(RepetitionPolicy, st.integers(64, 200), st.integers(3, 8))
words = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), min_size=1, max_size=4)


@given(policies, words, st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), max_size=6), st.integers(1, 100))
def test_answer_is_cut_exactly_where_the_definition_holds(
    policy: RepetitionPolicy, parts: list[list[int]], plan: list[tuple[int, int]], chunk: int
) -> None:
    """Sequences made of few repeated words, looked at where the detector looks: never cut without a loop, never missed."""
    ids = [token for which, times in plan for token in parts[which % len(parts)] * times]
    detector = RepetitionDetector(policy)
    waiting = 0
    for start in range(0, len(ids), chunk):
        piece = ids[start : start + chunk]
        waiting += len(piece)
        found = detector.push(piece)
        looked = waiting >= STRIDE
        waiting = 0 if looked else waiting
        assert found == (looked and loops(ids[: start + len(piece)], policy))
        if found:
            return


@given(st.integers(0, 2**32), st.integers(600, 3000), st.integers(2, 200_000))
def test_answer_without_a_rule_is_never_cut(seed: int, length: int, vocabulary: int) -> None:
    """Also where only two tokens take turns."""
    ids = Random(seed).choices(range(vocabulary), k=length)  # noqa: S311 - no secret
    assert cut_at(ids) is None
