"""Stop strings: the text alone decides, never how it was cut."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.host.stop_strings import StopMatcher


def by_definition(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The first place where a stop string is complete ends the text; of several complete there the longest counts."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def in_chunks(chunks: Sequence[str], stops: Sequence[str]) -> tuple[str, str | None]:
    """What a matcher gives for these chunks, flushed at the end."""
    matcher = StopMatcher(stops)
    text = ""
    for chunk in chunks:
        certain, stop = matcher.feed(chunk)
        text += certain
        if stop is not None:
            return text, stop
    return text + matcher.flush(), None


letters = st.text("ab\n<", min_size=0, max_size=40)
stop_lists = st.lists(st.text("ab\n<", min_size=1, max_size=6), min_size=1, max_size=16)


@given(st.lists(letters, max_size=8), stop_lists)
@settings(deadline=None)
def test_any_chunking_gives_what_the_definition_gives(chunks: list[str], stops: list[str]) -> None:
    assert in_chunks(chunks, stops) == by_definition("".join(chunks), stops)


@given(letters, stop_lists)
@settings(deadline=None)
def test_only_what_may_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    certain, stop = matcher.feed(text)
    held = text[len(certain) :] if stop is None else ""
    assert not held or any(candidate.startswith(held) for candidate in stops)


@pytest.mark.parametrize(
    ("stops", "chunks", "expected"),
    [
        (["\nUser:"], ["Hi\n", "Us", "er: no"], ("Hi", "\nUser:")),
        (["\nUser:"], ["Hi\nUsing", " it"], ("Hi\nUsing it", None)),
        (["abcd", "bc"], ["abcd"], ("a", "bc")),
        (["b", "ab"], ["xab"], ("x", "ab")),
        (["aab"], ["aaab"], ("a", "aab")),
        (["ü", "🙂"], ["ä", "🙂"], ("ä", "🙂")),
        (["]"], ["a]"], ("a", "]")),
        (["^", "-"], ["a-"], ("a", "-")),
    ],
)
def test_stop_string_ends_the_text_before_it(stops: list[str], chunks: list[str], expected: tuple[str, str | None]) -> None:
    assert in_chunks(chunks, stops) == expected


def test_long_half_matches_cost_linear_work() -> None:
    """A text that almost matches everywhere: the automaton never looks at a character more than a bounded number of times."""
    looked = 0

    class Counting(dict[str, object]):
        def __contains__(self, key: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(key)

    def work(length: int) -> int:
        nonlocal looked
        matcher = StopMatcher(["a" * 500 + "b"])
        node = matcher._root  # pyright: ignore[reportPrivateUsage]  # the automaton is what is measured
        while node.steps:
            following = next(iter(node.steps.values()))
            node.steps = Counting(node.steps)  # pyright: ignore[reportAttributeAccessIssue]  # counts look-ups
            node = following
        looked = 0
        for _ in range(length):
            matcher.feed("a")
        return looked

    assert work(4000) < 2.5 * work(2000)
