"""Probabilities of tokens in the two shapes that OpenAI has for them."""

from collections.abc import Sequence

import msgspec

from daemon.core.ports import Tokenizing
from daemon.core.wire import TokenLogprob

_LEAST = -9999.0
"""What OpenAI writes for an impossible token; JSON knows no infinity."""


class TopLogprob(msgspec.Struct, frozen=True):
    """An alternative."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    """One token of a chat answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of a chat."""

    content: list[ChatLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of a completion."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


def chat_logprobs(tokens: Tokenizing, ids: Sequence[int], found: Sequence[TokenLogprob]) -> list[ChatLogprob]:
    """Entries for `ids`."""
    return [
        ChatLogprob(
            tokens.token_text(token),
            max(one.chosen, _LEAST),
            list(tokens.token_bytes(token)),
            [
                TopLogprob(tokens.token_text(other), max(value, _LEAST), list(tokens.token_bytes(other)))
                for other, value in one.top
            ],
        )
        for token, one in zip(ids, found, strict=False)
    ]


def text_logprobs(tokens: Tokenizing, ids: Sequence[int], found: Sequence[TokenLogprob], offset: int) -> tuple[TextLogprobs, int]:
    """Entries for `ids`, whose text begins at character `offset` of the answer; and where the next one begins."""
    texts = [tokens.token_text(token) for token, _ in zip(ids, found, strict=False)]
    offsets: list[int] = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    tops = [{tokens.token_text(other): max(value, _LEAST) for other, value in one.top} for one in found]
    return TextLogprobs(texts, [max(one.chosen, _LEAST) for one in found], tops, offsets), offset
