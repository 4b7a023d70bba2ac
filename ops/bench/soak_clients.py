"""Clients as they are in life: some read to the end, some hang up, some stop reading, some never finish their sentence."""

import asyncio
import contextlib
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

import msgspec

from ops.bench.client import prompt_text
from ops.bench.processes import RunningDaemon
from ops.bench.values import Load

_PATIENCE = 180.0
_BLOCK = 2048
_SMALL_BUFFER = 4096
_VARIETY = 40
"""Different prompts, so that some are found in the prefix cache and some are not."""


class Habit(Enum):
    """How a client behaves."""

    STREAM = "stream"
    """Reads a stream to its end."""
    WHOLE = "whole"
    """Wants one body."""
    CANCEL = "cancel"
    """Closes its connection in the middle of a stream."""
    VANISH = "vanish"
    """Its connection is reset, at any moment from the request on."""
    STALL = "stall"
    """Asks for much and reads nothing."""
    CONNECT = "connect"
    """Sends half a request, or nothing, and waits."""
    BLUNDER = "blunder"
    """Sends something that is refused."""


_WEIGHTS = {
    Habit.STREAM: 5,
    Habit.WHOLE: 2,
    Habit.CANCEL: 3,
    Habit.VANISH: 3,
    Habit.STALL: 1,
    Habit.CONNECT: 1,
    Habit.BLUNDER: 1,
}


@dataclass(slots=True)
class Crowd:
    """What happened to all clients so far."""

    done: Counter[Habit] = field(default_factory=Counter[Habit])
    problems: Counter[str] = field(default_factory=Counter[str])
    """What should not have happened, by its words."""


class Client:
    """One client after the other, from one seeded generator."""

    def __init__(self, served: RunningDaemon, crowd: Crowd, seed: int, tokens: int) -> None:
        """`tokens`: length of the answers that somebody reads."""
        parts = urlsplit(served.base_url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._model = served.model
        self._crowd = crowd
        self._chance = random.Random(seed)  # noqa: S311  # behaviour, not secrets
        self._tokens = tokens

    async def once(self, rest: float) -> None:
        """Be one client, for at most `rest` seconds where only patience ends it."""
        habit = self._chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._be(habit, rest)
        except TimeoutError:
            self._crowd.problems[f"{habit.value}: no end after {_PATIENCE:g} s"] += 1
        except (OSError, asyncio.IncompleteReadError) as problem:
            self._crowd.problems[f"{habit.value}: {type(problem).__name__}"] += 1
        self._crowd.done[habit] += 1

    async def _be(self, habit: Habit, rest: float) -> None:
        chance = self._chance
        match habit:
            case Habit.STREAM | Habit.WHOLE:
                data = await self._talk(self._body(stream=habit is Habit.STREAM))
                good = b"[DONE]" if habit is Habit.STREAM else b'"finish_reason":"length"'
                if good not in data:
                    self._complain(habit, data)
            case Habit.CANCEL:
                await self._leave(self._body(stream=True), blocks=chance.randrange(1, 8), reset=False)
            case Habit.VANISH:
                await self._leave(self._body(stream=chance.random() < 0.7), blocks=chance.randrange(0, 4), reset=True)  # noqa: PLR2004  # most streams
            case Habit.STALL:
                await self._stall(min(rest, chance.uniform(2, 12)))
            case Habit.CONNECT:
                await self._hesitate(min(rest, chance.uniform(0, 5)))
            case Habit.BLUNDER:
                data = await self._talk({"model": self._model, "messages": [], "temperature": "warm"})
                if b" 400 " not in data[:20]:
                    self._complain(habit, data)

    def _complain(self, habit: Habit, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        words = head.split(b"\r\n")[0][:60] + b" ... " + body[-160:]
        self._crowd.problems[f"{habit.value}: {words.decode(errors='replace')}"] += 1

    def _body(self, *, stream: bool) -> Mapping[str, object]:
        words = self._chance.choice([8, 40, 200, 400])
        load = Load(streams=1, requests=1, tokens=1, prompt_tokens=words, seed=1)
        text = prompt_text(load, self._chance.randrange(_VARIETY))
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self._chance.randrange(4, self._tokens),
            "ignore_eos": True,
            "stream": stream,
        }

    async def _talk(self, body: Mapping[str, object]) -> bytes:
        """Everything the server answers."""
        async with self._connected() as (reader, writer):
            writer.write(self._request(body))
            await writer.drain()
            return await reader.read()

    async def _leave(self, body: Mapping[str, object], *, blocks: int, reset: bool) -> None:
        async with self._connected() as (reader, writer):
            writer.write(self._request(body))
            await writer.drain()
            for _ in range(blocks):
                if not await reader.read(_BLOCK):
                    return
            if reset:
                connection: socket.socket = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def _stall(self, seconds: float) -> None:
        body = {**self._body(stream=True), "max_tokens": 4000, "logprobs": True, "top_logprobs": 20}
        async with self._connected(buffer=_SMALL_BUFFER) as (_, writer):
            writer.write(self._request(body))
            await writer.drain()
            await asyncio.sleep(seconds)

    async def _hesitate(self, seconds: float) -> None:
        async with self._connected() as (_, writer):
            request = self._request(self._body(stream=True))
            writer.write(request[: self._chance.randrange(len(request))])
            await asyncio.sleep(seconds)

    def _request(self, body: Mapping[str, object]) -> bytes:
        content = msgspec.json.encode(body)
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: soak\r\nConnection: close\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(content), content)
        )

    @contextlib.asynccontextmanager
    async def _connected(self, buffer: int | None = None) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection that is closed at the end; `buffer` bytes are kept for what nobody reads."""
        connection = socket.socket()
        if buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.settimeout(0)
        try:
            await asyncio.get_running_loop().sock_connect(connection, self._address)
            reader, writer = await asyncio.open_connection(sock=connection, limit=buffer or 2**16)
        except BaseException:
            connection.close()
            raise
        try:
            yield reader, writer
        finally:
            if buffer is None:
                writer.close()
            else:
                writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
