"""Counting pictures and naming them: what front and engine must agree on."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from daemon.core.pictures import (
    FIRST_PICTURE_ID,
    MOST_PIXELS,
    MOST_TOKENS,
    PictureRule,
    count_tokens,
    first_id,
    ids_of,
    most_pixels,
    refusal,
    tokens_of,
)
from daemon.core.wire import ImageSpan, TokenSpan

QWEN3_5 = PictureRule(32, 65536, 16777216, (151652,), (151653,))
"""As in the uploads: 64 to 16384 tokens."""


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def test_known_sizes_take_the_tokens_that_qwens_own_processor_gives_them() -> None:
    """1024 x 768 is 32 x 24 squares; a small picture is enlarged to 64 of them; a huge one shrunk."""
    assert tokens_of(QWEN3_5, 1024, 768) == 32 * 24
    assert tokens_of(QWEN3_5, 100, 100) == 8 * 8
    assert tokens_of(QWEN3_5, 8000, 6000) <= 16384


@given(st.integers(32, 9000), st.integers(32, 9000), st.integers(16, 16384))
def test_accepted_picture_never_takes_more_than_allowed(width: int, height: int, tokens: int) -> None:
    rule = QWEN3_5.limited(tokens)
    if refusal(rule, width, height) is None:
        assert 0 < tokens_of(rule, width, height) <= max(tokens, 65536 // 1024 * 2)
        assert tokens_of(rule, width, height) == tokens_of(rule, height, width)


def test_limit_below_the_models_least_is_that_least() -> None:
    assert most_pixels(65536, 1 << 24, 32, 16) == 65536
    assert most_pixels(65536, 1 << 24, 32, 2048) == 2048 * 1024


def test_impossible_sizes_are_refused_with_the_numbers() -> None:
    assert "31x500" in (refusal(QWEN3_5, 31, 500) or "")
    assert "32 or more" in (refusal(QWEN3_5, 31, 500) or "")
    assert "200 times" in (refusal(QWEN3_5, 32, 7000) or "")
    assert f"{MOST_PIXELS:,}" in (refusal(QWEN3_5, 10_000, 10_000) or "")
    narrow = PictureRule(32, 1024, 16 * 1024, (), ())
    assert "cannot scale" in (refusal(narrow, 6000, 32) or "")


@given(st.binary(max_size=40), st.integers(1, MOST_TOKENS))
def test_ids_of_a_picture_are_those_of_no_text_whole_or_by_half(data: bytes, tokens: int) -> None:
    """They fit 64 bits, and their lower half taken as a signed number is positive and beyond every vocabulary."""
    first = first_id(digest(data))
    for token in (first, first + tokens - 1):
        assert 10**9 <= token < 1 << 63
        assert FIRST_PICTURE_ID <= token & 0xFFFFFFFF < 1 << 31


def test_different_pictures_have_different_ids_and_the_same_picture_the_same() -> None:
    firsts = [first_id(digest(str(n).encode())) for n in range(2000)]
    assert len(set(firsts)) == 2000
    assert first_id(digest(b"1")) == firsts[1]


def test_sequence_holds_text_and_pictures_in_order() -> None:
    image = ImageSpan(digest(b"x"), "image/png", b"x", 3)
    spans = [TokenSpan([1, 2]), image, TokenSpan([3]), image]
    first = first_id(image.digest)
    picture = [first, first + 1, first + 2]
    assert ids_of(spans) == [1, 2, *picture, 3, *picture]
    assert count_tokens(spans) == len(ids_of(spans)) == 9
