"""The model's tokenizer in worker threads: implements `ports.Tokenizing`.

The library keeps the interpreter lock while it encodes one text, and lets it go while it encodes a batch: so each text is a batch
of one, and a long prompt costs the event loop nothing. Text from people is
encoded by a second tokenizer made from the same file without its added tokens, in which no control token exists.
"""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from tokenizers import Tokenizer

from daemon.core.errors import ConfigError
from daemon.core.guarded import Guard
from daemon.core.model import ModelDirectory
from daemon.host.detokenizer import Vocabulary, vocabulary

_THREADS = 2
_WAITING = 64
"""Texts that may be in the pool at once; more wait outside of it, so that the pool's queue stays short."""


class _Added(msgspec.Struct):
    id: int
    content: str
    special: bool = False


def _literal_tokenizer(document: bytes) -> Tokenizer:
    """The tokenizer without control tokens. Runs of spaces that are listed as added tokens stay where their ids allow it."""
    tree = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    listed = msgspec.json.decode(tree.get("added_tokens", msgspec.Raw(b"[]")), type=list[msgspec.Raw])
    added = [msgspec.json.decode(raw, type=_Added) for raw in listed]
    spaces = [raw for raw, token in zip(listed, added, strict=True) if not token.special and not token.content.strip()]
    tree["post_processor"] = msgspec.Raw(b"null")
    tree["added_tokens"] = msgspec.Raw(msgspec.json.encode(spaces))
    tokenizer = Tokenizer.from_str(msgspec.json.encode(tree).decode())
    kept = (msgspec.json.decode(raw, type=_Added) for raw in spaces)
    if all(tokenizer.token_to_id(token.content) == token.id for token in kept):
        return tokenizer
    tree["added_tokens"] = msgspec.Raw(b"[]")
    return Tokenizer.from_str(msgspec.json.encode(tree).decode())


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """See the module. "Fast" leaves out where each token stood, which nobody asks for."""
    return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


class TokenizerPool:
    """See the module. `document` is the model's tokenizer.json. Raises ConfigError if the library refuses it."""

    def __init__(self, model: ModelDirectory, document: bytes) -> None:
        # Of one text nothing runs in parallel; and once it has, the library warns in every process that is started.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            self._tokenizer = Tokenizer.from_str(document.decode())
            self._literal = _literal_tokenizer(document)
        except Exception as problem:  # the library raises bare Exception
            raise ConfigError(f"is no tokenizer that can be read: {problem}", f"{model.path}/tokenizer.json") from problem
        for tokenizer in (self._tokenizer, self._literal):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._bos = model.bos
        self._control = frozenset(token.id for token in model.added)
        self._guard = Guard(token.text for token in model.added)
        self.vocabulary: Vocabulary = vocabulary(self._tokenizer, document, {token.id: token.text for token in model.added})
        """For the streams' detokenizers."""
        self.special = frozenset(token.id for token in model.added if token.special)
        self._threads = ThreadPoolExecutor(_THREADS, "exl3d-tokenizer")
        self._room = asyncio.Semaphore(_WAITING)

    def close(self) -> None:
        """End the threads; work not begun is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def encode_rendered(self, text: str) -> tuple[int, ...]:
        """See ports.Tokenizing."""
        async with self._room:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._encode_rendered, text)

    async def encode_plain(self, text: str) -> tuple[int, ...]:
        """See ports.Tokenizing."""
        async with self._room:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._encode_plain, text)

    async def decode(self, ids: Sequence[int], *, hide_special: bool) -> str:
        """See ports.Tokenizing."""
        async with self._room:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._decode, list(ids), hide_special)

    def token_text(self, token: int) -> str:
        """See ports.Tokenizing."""
        return self.vocabulary.spell(token).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """See ports.Tokenizing."""
        return self.vocabulary.spell(token)

    def _encode_rendered(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        for piece in self._guard.pieces(text):
            if piece.literal:
                ids.extend(self._encode_literally(piece.text))
            else:
                ids.extend(_encode(self._tokenizer, piece.text))
        return tuple(ids)

    def _encode_plain(self, text: str) -> tuple[int, ...]:
        ids = self._encode_literally(text)
        return tuple(ids) if self._bos is None else (self._bos, *ids)

    def _encode_literally(self, text: str) -> list[int]:
        """No control token comes out, even where the tokenizer's own vocabulary holds one: then single characters are encoded."""
        ids = _encode(self._literal, text)
        if self._control.isdisjoint(ids):
            return ids
        return [token for character in text for token in _encode(self._literal, character)]

    def _decode(self, ids: list[int], hide_special: bool) -> str:  # run_in_executor passes by position
        return self._tokenizer.decode(ids, skip_special_tokens=hide_special)
