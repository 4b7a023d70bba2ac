"""One streamed completion, heard token by token: what came when. Slower than `client`, which only counts."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec

from ops.bench.client import events

_DONE = b"[DONE]"
_OK = 200
_NO_ERROR = (b"", b"null")


class _Logprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]


class _Choice(msgspec.Struct):
    text: str = ""
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Chunk).decode


@dataclass(frozen=True, slots=True)
class Token:
    """A generated token. Logarithms of probabilities are natural ones, from the raw logits."""

    text: str
    logprob: float
    top: Mapping[str, float]
    t: float
    """When its client had it, in seconds since the epoch."""


@dataclass(slots=True)
class Heard:
    """One answer as its client heard it."""

    prompt: tuple[int, ...]
    sent: float
    tokens: list[Token] = field(default_factory=list[Token])
    text: str = ""
    finish: str | None = None
    counted: int | None = None
    """Generated tokens, as the server's usage says."""
    complete: bool = False
    """[DONE] came."""
    problem: str | None = None

    @property
    def last(self) -> float:
        """When something last came."""
        return self.tokens[-1].t if self.tokens else self.sent

    @property
    def over(self) -> bool:
        """Whether nothing will come any more."""
        return self.complete or self.problem is not None

    def take(self, chunk: _Chunk, now: float) -> None:
        """One event."""
        if bytes(chunk.error) not in _NO_ERROR:
            self.problem = bytes(chunk.error).decode(errors="replace")[:300]
        if chunk.usage is not None:
            self.counted = chunk.usage.completion_tokens
        for choice in chunk.choices:
            self.text += choice.text
            self.finish = choice.finish_reason or self.finish
            found = choice.logprobs
            if found is not None:
                rows = zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True)
                self.tokens += [Token(text, chosen, top, now) for text, chosen, top in rows]


def completion(model: str, prompt: tuple[int, ...], tokens: int, alternatives: int) -> bytes:
    """The body of a greedy completion of exactly `tokens` tokens, with the probabilities of each."""
    return msgspec.json.encode(
        {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "skip_special_tokens": False,
            "logprobs": alternatives,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


async def hear(
    session: aiohttp.ClientSession, url: str, body: bytes, heard: Heard, on_token: Callable[[], None] | None = None
) -> Heard:
    """Ask, and listen to the end. What goes wrong is part of what was heard."""
    try:
        async with session.post(url, data=body) as answer:
            if answer.status != _OK:
                heard.problem = f"HTTP {answer.status}: {(await answer.read()).decode(errors='replace')[:300]}"
                return heard
            async for _, event in events(answer.content):
                if event == _DONE:
                    heard.complete = True
                else:
                    heard.take(_decode(event), time.time())
                    if on_token is not None:
                        on_token()
    except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as problem:
        heard.problem = f"{type(problem).__name__}: {problem}"[:300]
    if not heard.complete and heard.problem is None:
        heard.problem = "the stream ended without [DONE]"
    return heard
