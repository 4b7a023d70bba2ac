"""The generator's host-side helpers, against what strings.cpp and staging.cpp do."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from daemon.engine.cpu import staging


def match(text: str, *strings: str) -> int:
    encoded = [string.encode("utf-32-le") for string in strings]
    bounds = [0, *itertools.accumulate(len(string) for string in encoded)]
    offsets = b"".join(bound.to_bytes(4, "little") for bound in bounds)
    return staging.partial_strings_match(text.encode("utf-32-le"), offsets, b"".join(encoded))


def by_loops(text: str, strings: list[str]) -> int:
    """strings.cpp, start by start."""
    none = len(text) + 1
    full = partial = none
    for string in strings:
        if not string:
            continue
        limit = min(full, partial)
        for start in range(min(len(text), limit)):
            k = 0
            while start + k < len(text) and k < len(string) and text[start + k] == string[k]:
                k += 1
            if k == len(string):
                full = start
                break
            if start + k == len(text):
                partial = start
                break
    return -2 if partial < full else full if full < none else -1


@pytest.mark.parametrize(
    ("text", "strings", "expected"),
    [
        ("hello world", ("world",), 6),
        ("hello wor", ("world",), -2),
        ("hello", ("world",), -1),
        ("one two", ("two", "one"), 0),
        ("stop here en", ("end", "stop"), 0),
        ("en stop", ("stop", "enx"), 3),
        ("grüße 🙂", ("🙂!",), -2),
        ("", ("a",), -1),
        ("abc", ("",), -1),
    ],
)
def test_earliest_stop_string_is_found(text: str, strings: tuple[str, ...], expected: int) -> None:
    assert match(text, *strings) == expected


@given(st.text("ab", max_size=8), st.lists(st.text("ab", max_size=4), max_size=3))
def test_matching_equals_the_loops_of_the_original(text: str, strings: list[str]) -> None:
    assert match(text, *strings) == by_loops(text, strings)


def test_common_beginning_is_counted_up_to_every_limit() -> None:
    a, b = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 9, 4, 5]])
    assert staging.count_match_tensor(a, b, 10) == 2
    assert staging.count_match_tensor(a, b, 1) == 1
    assert staging.count_match_tensor(a, a, 3) == 3
    assert staging.count_match_tensor(a, a.repeat(1, 2), 9) == 4
    assert staging.count_match_tensor(a, torch.tensor([[7]]), 9) == 0


def test_arena_holds_tables_lengths_and_positions() -> None:
    arena = torch.full((2 * 3 + 4 + 1,), 77, dtype=torch.int32)
    tables = [torch.tensor([[4, 5]], dtype=torch.int32), torch.tensor([[6, 7, 8, 9]], dtype=torch.int32)]
    staging.generator_stage_decode(arena, 3, tables, [10, 20], [1, -2], None, [], [], [])
    assert arena.numpy().tolist() == [4, 5, 0, 6, 7, 8, 10, 20, 11, 18, 77]


def test_next_tokens_go_into_the_batch_and_into_their_pages() -> None:
    arena, ids = torch.empty(4, dtype=torch.int32), torch.zeros(3, 1, dtype=torch.long)
    tables = [torch.tensor([[0]], dtype=torch.int32), torch.tensor([[1]], dtype=torch.int32)]
    sequences = [torch.tensor([[11, 12, 13]]), torch.tensor([[21, 22]])]
    pages = [torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long)]
    staging.generator_stage_decode(arena, 1, tables, [2, 0], [], ids, sequences, pages, [2, 0])
    assert ids.flatten().numpy().tolist() == [13, 21, 0]
    assert pages[0].numpy().tolist() == [[0, 0, 13, 0]]
    assert pages[1].numpy().tolist() == [[21, 0, 0, 0]]
    assert arena.numpy().tolist() == [0, 1, 2, 0]


def test_sequences_without_a_batch_are_refused() -> None:
    arena, table = torch.empty(2, dtype=torch.int32), torch.tensor([[0]], dtype=torch.int32)
    with pytest.raises(ValueError, match="batch_ids"):
        staging.generator_stage_decode(arena, 1, [table], [0], [], None, [torch.tensor([[1]])], [torch.zeros(1, 4)], [0])
