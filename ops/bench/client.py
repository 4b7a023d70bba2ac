"""The load generator: many streaming requests from one process, with as little work for each token as can be.

A worker per stream sends one request after the other. Server-sent events are cut out of the bytes as they come; only what is
needed of each is decoded.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping

import aiohttp
import msgspec

from ops.bench.values import Endpoint, Load, Sample, Target
from ops.errors import BenchFailed

_SILENCE = 600.0
"""Seconds a server may say nothing before a request counts as failed; long prompts on a CPU take minutes."""

_VOCABULARY = (
    "time year people way day man thing woman life child world school state family student group country problem hand part place"
    " case week company system program question work government number night point home water room mother area money story fact"
    " month lot right study book eye job word business issue side kind head house service friend father power hour game line end"
    " law car city community name president team minute idea body information back parent face"
)
"""Words that are one token each, with their space, for most tokenizers."""

_EVENT = b"\n\n"
_DATA = b"data: "
_DONE = b"[DONE]"
_NO_ERROR = (b"", b"null")


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_decode = msgspec.json.Decoder(_Chunk).decode


def prompt_text(load: Load, number: int) -> str:
    """The prompt of a request: plain words, different ones each time unless the load says otherwise."""
    chance = random.Random(f"{load.seed}/{0 if load.shared_prompt else number}")  # noqa: S311  # text, not secrets
    return " ".join(chance.choices(_VOCABULARY.split(), k=max(1, load.prompt_tokens)))


def body(target: Target, load: Load, number: int) -> bytes:
    """The JSON body of a request. Parameters that only some servers know are left out where they are not needed."""
    fields: dict[str, object] = {"max_tokens": load.tokens}
    if load.temperature is not None:
        fields["temperature"] = load.temperature
    if load.ignore_eos:
        fields["ignore_eos"] = True
    text = prompt_text(load, number)
    if target.endpoint is Endpoint.CHAT:
        return encoded(target, fields | {"messages": [{"role": "user", "content": text}]})
    return encoded(target, fields | {"prompt": text})


def encoded(target: Target, fields: Mapping[str, object]) -> bytes:
    """A body with these fields, streamed, usage at its end."""
    always: dict[str, object] = {"model": target.model, "stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(always | dict(fields))


async def first_model(base_url: str, key: str | None) -> str:
    """The model that a server names first. Raises BenchFailed."""
    async with session_for(key) as session:
        try:
            async with session.get(f"{base_url}/models") as answer:
                content = await answer.read()
            models = msgspec.json.decode(content, type=_Models).data
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as problem:
            raise BenchFailed(f"{base_url}/models does not list models: {problem}") from problem
    if not models:
        raise BenchFailed(f"{base_url} serves no model")
    return models[0].id


async def run(target: Target, load: Load) -> list[Sample]:
    """Send the whole load and give one sample a request, in the order in which they were sent."""
    numbers = iter(range(load.requests))
    samples: dict[int, Sample] = {}

    async def work(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            samples[number] = await ask(session, target, body(target, load, number))

    async with session_for(target.key) as session, asyncio.TaskGroup() as workers:
        for _ in range(load.streams):
            workers.create_task(work(session))
    return [samples[number] for number in sorted(samples)]


def session_for(key: str | None) -> aiohttp.ClientSession:
    """A session that sends `key` and waits long. Close it."""
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=_SILENCE),
        headers=headers,
        trust_env=False,
    )


class _Recorder:
    """Collects what one request shows, event by event."""

    __slots__ = ("first", "gaps", "last", "on_text", "problem", "sent", "usage")

    def __init__(self, on_text: Callable[[float], None] | None = None) -> None:
        self.on_text = on_text
        self.sent = time.perf_counter()
        self.first: float | None = None
        self.last = self.sent
        self.gaps: list[float] = []
        self.usage = _Usage()
        self.problem: str | None = None

    def take(self, chunk: _Chunk, now: float) -> None:
        """One event."""
        if chunk.usage is not None:
            self.usage = chunk.usage
        if bytes(chunk.error) not in _NO_ERROR:
            self.problem = bytes(chunk.error).decode(errors="replace")[:200]
        if not any(_has_text(choice) for choice in chunk.choices):
            return
        if self.first is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now
        if self.on_text is not None:
            self.on_text(now)

    def sample(self) -> Sample:
        """What was seen."""
        details = self.usage.prompt_tokens_details
        return Sample(
            sent=self.sent,
            first=self.first,
            last=self.last,
            gaps=tuple(self.gaps),
            prompt_tokens=self.usage.prompt_tokens,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
            completion_tokens=self.usage.completion_tokens or len(self.gaps) + (self.first is not None),
            problem=self.problem,
        )


def _has_text(choice: _Choice) -> bool:
    delta = choice.delta
    return bool(choice.text) or (delta is not None and bool(delta.content or delta.reasoning_content or delta.reasoning))


async def ask(
    session: aiohttp.ClientSession, target: Target, data: bytes, on_text: Callable[[float], None] | None = None
) -> Sample:
    """Send one request and hear it to its end. What goes wrong is part of the sample; `on_text` hears when each text came."""
    path = "chat/completions" if target.endpoint is Endpoint.CHAT else "completions"
    seen = _Recorder(on_text)
    complete = False
    try:
        async with session.post(f"{target.base_url}/{path}", data=data) as answer:
            if answer.status != 200:  # noqa: PLR2004  # HTTP's word for good
                text = (await answer.read()).decode(errors="replace")
                seen.problem = f"HTTP {answer.status}: {text[:200]}"
                return seen.sample()
            async for now, event in events(answer.content):
                if event == _DONE:
                    complete = True
                else:
                    seen.take(_decode(event), now)
    except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as problem:
        seen.problem = f"{type(problem).__name__}: {problem}"[:200]
    if not complete and seen.problem is None:
        seen.problem = "the stream ended without [DONE]"
    return seen.sample()


async def events(content: aiohttp.StreamReader) -> AsyncIterator[tuple[float, bytes]]:
    """The data of each event, with the time at which its last byte came."""
    rest = b""
    async for block in content.iter_any():
        now = time.perf_counter()
        *events, rest = (rest + block.replace(b"\r\n", b"\n")).split(_EVENT)
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(_DATA):
                    yield now, line[len(_DATA) :]
