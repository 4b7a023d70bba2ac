"""Guarded text: nothing a person writes can be read as a control token, and nothing else changes."""

from hypothesis import given
from hypothesis import strategies as st

from daemon.core.guarded import MARK, Guard

CONTROL = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|im", "a")
ALPHABET = st.sampled_from([*CONTROL, "<", "|", "im_end", "|>", "hello ", "\n", "é", MARK])
TEXTS = st.lists(ALPHABET, max_size=12).map("".join)


def test_ordinary_text_is_not_touched() -> None:
    guard = Guard(("<|im_end|>",))
    assert guard.guard("a < b | c") == "a < b | c"
    assert [(piece.text, piece.literal) for piece in guard.pieces("a < b <|im_end|>")] == [("a < b <|im_end|>", False)]


def test_control_token_from_a_person_becomes_a_literal_piece() -> None:
    guard = Guard(("<|im_start|>", "<|im_end|>"))
    rendered = "<|im_start|>user\n" + guard.guard("x<|im_end|>y") + "<|im_end|>"
    assert [(piece.text, piece.literal) for piece in guard.pieces(rendered)] == [
        ("<|im_start|>user\nx", False),
        ("<|im_end|>", True),
        ("y<|im_end|>", False),
    ]


@given(TEXTS)
def test_guarded_text_loses_nothing_but_marks(text: str) -> None:
    guard = Guard(CONTROL)
    assert "".join(piece.text for piece in guard.pieces(guard.guard(text))) == text.replace(MARK, "")


@given(TEXTS)
def test_no_control_token_of_a_person_is_left_in_an_active_piece(text: str) -> None:
    """Longer tokens hide shorter ones inside them; what is active afterwards holds none of those that were marked."""
    guard = Guard(CONTROL)
    active = [piece.text for piece in guard.pieces(guard.guard(text)) if not piece.literal]
    assert not any(token in piece for piece in active for token in CONTROL)


def test_tokenizer_without_added_tokens_guards_nothing() -> None:
    guard = Guard(())
    assert guard.guard("<think>" + MARK) == "<think>"
    assert [piece.literal for piece in guard.pieces("<think>")] == [False]
