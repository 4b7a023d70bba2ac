"""Text from token ids as they come, without half characters.

Two families of tokenizers spell out tokens as bytes, and nearly every model belongs to one of them: byte-level BPE and
SentencePiece with byte fallback. For these a token's bytes do not depend on its neighbours, so text is the decoding of
the bytes so far (`SpelledVocabulary`). Whatever else there is goes through the library's own decoding of a short window of ids
(`WindowVocabulary`). A generated text continues its prompt, so a first token's space is kept.
"""

import codecs
import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
_WINDOW = 6
"""Ids decoded before a token in the window technique: more than any decoder looks back for spaces."""


class Detokenizer(Protocol):
    """One stream's text."""

    def push(self, token: int) -> str:
        """The text that is certain now; empty while a character is incomplete."""
        ...

    def flush(self) -> str:
        """The text still held back when no more ids will come. A half character is dropped."""
        ...


class Vocabulary(Protocol):
    """What the detokenizers of one model share."""

    def detokenizer(self, hidden: frozenset[int]) -> Detokenizer:
        """A fresh one that leaves the ids in `hidden` out."""
        ...

    def spell(self, token: int) -> bytes:
        """One token's bytes, for logprobs."""
        ...


def byte_level_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable character: the byte's own where it has a printable Latin-1 one, else one
    from U+0100 on, in order.
    """
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in own}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(sorted(set(range(256)) - own))})
    return alphabet


class _Step(msgspec.Struct):
    """A decoder in tokenizer.json, as far as it decides the family."""

    type: str = ""
    decoders: list["_Step"] = []
    pattern: dict[str, str] = {}
    content: str = ""


class _TokenizerFile(msgspec.Struct):
    decoder: _Step | None = None


def _flat(step: _Step) -> list[_Step]:
    return [inner for outer in step.decoders for inner in _flat(outer)] if step.type == "Sequence" else [step]


def vocabulary(tokenizer: Tokenizer, document: bytes, added: Mapping[int, str]) -> Vocabulary:
    """The fastest exact technique for a tokenizer. `document` is its tokenizer.json, `added` its added tokens by id."""
    decoder = msgspec.json.decode(document, type=_TokenizerFile).decoder
    steps = [] if decoder is None else _flat(decoder)
    kinds = {step.type for step in steps}
    if kinds == {"ByteLevel"}:
        return SpelledVocabulary(tokenizer, added, _ByteLevel())
    spaces = [step for step in steps if step.type == "Replace"]
    metaspace = kinds <= {"Replace", "ByteFallback", "Fuse", "Strip"} and "ByteFallback" in kinds
    if metaspace and [(step.pattern.get("String"), step.content) for step in spaces] == [("\u2581", " ")]:
        return SpelledVocabulary(tokenizer, added, _ByteFallback())
    return WindowVocabulary(tokenizer, added)


class _Spelling(Protocol):
    def bytes_of(self, token: str) -> bytes: ...


class _ByteLevel:
    def __init__(self) -> None:
        self._bytes = byte_level_alphabet()

    def bytes_of(self, token: str) -> bytes:
        try:
            return bytes([self._bytes[character] for character in token])
        except KeyError:
            return token.encode()


class _ByteFallback:
    _LENGTH = len("<0x00>")

    def bytes_of(self, token: str) -> bytes:
        if len(token) == self._LENGTH and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                return token.encode()
        return token.replace("\u2581", " ").encode()


class SpelledVocabulary:
    """Tokens whose bytes do not depend on their neighbours. Filled as tokens are met, bounded by the vocabulary."""

    def __init__(self, tokenizer: Tokenizer, added: Mapping[int, str], spelling: _Spelling) -> None:
        self._tokenizer = tokenizer
        self._added = added
        self._spelling = spelling
        self._bytes: dict[int, bytes] = {}
        self.whole: dict[int, str] = {}
        """Tokens met so far that are whole characters on their own."""

    def spell(self, token: int) -> bytes:
        """One token's bytes; an id beyond the vocabulary has none."""
        spelled = self._bytes.get(token)
        if spelled is None:
            text = self._added.get(token)
            if text is not None:
                spelled = text.encode()
            else:
                name = self._tokenizer.id_to_token(token)
                spelled = b"" if name is None else self._spelling.bytes_of(name)
            self._bytes[token] = spelled
            with contextlib.suppress(UnicodeDecodeError):  # part of a character: only the bytes around it tell which
                self.whole[token] = spelled.decode()
        return spelled

    def detokenizer(self, hidden: frozenset[int]) -> Detokenizer:
        """A fresh one that leaves the ids in `hidden` out."""
        return _SpelledText(self, hidden)


class _SpelledText:
    __slots__ = ("_decoder", "_hidden", "_partial", "_vocabulary", "_whole")

    def __init__(self, vocabulary: SpelledVocabulary, hidden: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._whole = vocabulary.whole
        self._hidden = hidden
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = False

    def push(self, token: int) -> str:
        if token in self._hidden:
            return ""
        if not self._partial:
            whole = self._whole.get(token)
            if whole is not None:
                return whole
        text = self._decoder.decode(self._vocabulary.spell(token))
        self._partial = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        self._decoder.reset()
        self._partial = False
        return ""


class WindowVocabulary:
    """Any tokenizer, through the library: the text of a window of ids with the new one, less the text without it."""

    def __init__(self, tokenizer: Tokenizer, added: Mapping[int, str]) -> None:
        self._tokenizer = tokenizer
        self._added = added

    def spell(self, token: int) -> bytes:
        """One token's bytes, as the library decodes it alone."""
        text = self._added.get(token)
        return (self.decode([token]) if text is None else text).encode()

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included: hiding them is the detokenizer's work."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def detokenizer(self, hidden: frozenset[int]) -> Detokenizer:
        """A fresh one that leaves the ids in `hidden` out."""
        return _WindowText(self, hidden)


class _WindowText:
    __slots__ = ("_before", "_hidden", "_pending", "_vocabulary")

    def __init__(self, vocabulary: WindowVocabulary, hidden: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._hidden = hidden
        self._before: deque[int] = deque(maxlen=_WINDOW)
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        if token in self._hidden:
            return ""
        self._pending.append(token)
        text = self._text()
        if text.endswith(REPLACEMENT) and len(self._pending) < 2 * _WINDOW:
            return ""
        self._settle()
        return text

    def _text(self) -> str:
        before = list(self._before)
        return self._vocabulary.decode(before + self._pending)[len(self._vocabulary.decode(before)) :]

    def _settle(self) -> None:
        self._before.extend(self._pending)
        self._pending.clear()

    def flush(self) -> str:
        text = self._text().rstrip(REPLACEMENT) if self._pending else ""
        self._settle()
        return text
