"""Text from ids: never half a character, always what the library says of the whole."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from daemon.host.detokenizer import SpelledVocabulary, Vocabulary, WindowVocabulary, byte_level_alphabet, vocabulary
from tests.host.tiny import ADDED, END, SPECIAL, START, THINK, tiny_tokenizer, tiny_vocabulary


def sentencepiece() -> tuple[Tokenizer, bytes, list[str]]:
    """A tokenizer of the SentencePiece kind: spaces as U+2581, bytes as `<0xNN>`, and the words it knows."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "\u2581the", "\u2581cat", "s", "é", "\u2581日", "本"]
    document: dict[str, object] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "vocab": {word: index for index, word in enumerate(words)},
            "merges": [],
            "byte_fallback": True,
            "unk_token": "<unk>",
        },
    }
    text = json.dumps(document)
    return Tokenizer.from_str(text), text.encode(), words


def wordpiece() -> tuple[Tokenizer, bytes]:
    """A tokenizer of a third kind, in which a token's text depends on its neighbours."""
    words = ["[UNK]", "play", "##ing", "##ed", "the", "game", "!"]
    document: dict[str, object] = {
        "version": "1.0",
        "added_tokens": [],
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: index for index, word in enumerate(words)},
        },
    }
    text = json.dumps(document)
    return Tokenizer.from_str(text), text.encode()


def read(known: Vocabulary, ids: list[int], hidden: frozenset[int] = frozenset()) -> list[str]:
    """The pieces a detokenizer gives, flushed."""
    detokenizer = known.detokenizer(hidden)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


def test_byte_level_alphabet_names_each_byte_once() -> None:
    assert sorted(byte_level_alphabet().values()) == list(range(256))
    assert byte_level_alphabet()["Ġ"] == ord(" ")


@given(st.text())
@settings(deadline=None)
def test_byte_level_text_comes_back_without_half_characters(text: str) -> None:
    pieces = read(tiny_vocabulary(), list(text.encode()))
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@given(st.lists(st.integers(0, 255), max_size=30))
@settings(deadline=None)
def test_byte_level_garbage_reads_as_the_library_reads_it(ids: list[int]) -> None:
    """But for a half character at the end, which is dropped instead of shown as U+FFFD."""
    mine = "".join(read(tiny_vocabulary(), ids))
    whole = tiny_tokenizer().decode(ids)
    assert whole.startswith(mine)
    assert set(whole[len(mine) :]) <= {"\ufffd"}


def test_half_character_at_the_end_is_dropped() -> None:
    assert read(tiny_vocabulary(), [65, 0xF0, 0x9F, 0x99]) == ["A", "", "", "", ""]


def test_hidden_ids_do_not_break_a_character() -> None:
    first, second = "é".encode()
    assert "".join(read(tiny_vocabulary(), [first, END, second], SPECIAL)) == "é"


def test_added_tokens_read_as_written() -> None:
    assert "".join(read(tiny_vocabulary(), [START, 65, THINK, END])) == "<|im_start|>A<think><|im_end|>"
    assert "".join(read(tiny_vocabulary(), [START, 65, THINK, END], SPECIAL)) == "A<think>"


def test_id_beyond_the_vocabulary_reads_as_nothing() -> None:
    assert "".join(read(tiny_vocabulary(), [65, 5000, 66])) == "AB"
    assert tiny_vocabulary().spell(5000) == b""


def test_sentencepiece_keeps_the_first_space_and_joins_bytes() -> None:
    tokenizer, document, words = sentencepiece()
    known = vocabulary(tokenizer, document, {})
    assert isinstance(known, SpelledVocabulary)
    ids = [words.index("\u2581the"), words.index("\u2581cat"), words.index("s"), 1 + 0xC3, 1 + 0xA9]
    assert "".join(read(known, ids)) == " the cats\u00e9"


@given(st.lists(st.sampled_from(["\u2581the", "\u2581cat", "s", "é", "\u2581日", "本", "<0x41>", "<0x0A>"]), max_size=12))
@settings(deadline=None)
def test_sentencepiece_reads_as_the_library_reads_it(names: list[str]) -> None:
    tokenizer, document, words = sentencepiece()
    ids = [words.index(name) for name in names]
    assert "".join(read(vocabulary(tokenizer, document, {}), ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("ids", [[1, 2, 4, 5], [4, 5, 6], [1, 3, 6, 1, 2], [1] * 20 + [2]])
def test_other_tokenizers_read_as_the_library_reads_them(ids: list[int]) -> None:
    tokenizer, document = wordpiece()
    known = vocabulary(tokenizer, document, {})
    assert isinstance(known, WindowVocabulary)
    assert "".join(read(known, ids)) == tokenizer.decode(ids)


def test_window_technique_agrees_with_spelling_on_byte_level() -> None:
    known = WindowVocabulary(tiny_tokenizer(), ADDED)
    text = "Grüße, 日本 🙂!"
    assert "".join(read(known, list(text.encode()))) == text


def test_byte_level_is_recognised() -> None:
    known = tiny_vocabulary()
    assert isinstance(known, SpelledVocabulary)
    assert known.spell(0xC3) == b"\xc3"
    assert known.spell(THINK) == b"<think>"
