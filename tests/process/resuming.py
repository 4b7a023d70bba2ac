"""Killing the real engine at chosen moments, and telling whether anybody could notice."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from daemon.core.events import Ended
from daemon.core.requests import ValidRequest
from daemon.core.settings import BackendKind, EngineSettings, ServerSettings
from daemon.core.supervision_values import Policy, Starting
from daemon.core.wire import Configure, TokenSpan
from daemon.host.entry import Entry
from daemon.host.model_directory import read_model_directory
from daemon.host.tokenizer_pool import TokenizerPool
from tests.process.house import POLICY, Heard, House, hear, house, until

REAL = (sys.executable, "-P", "-m", "daemon.engine")


@asynccontextmanager
async def real_house(
    model: Path, engine: EngineSettings, *, server: ServerSettings | None = None, policy: Policy = POLICY
) -> AsyncGenerator[House]:
    """A host around the real engine process, ready."""
    reading = await asyncio.to_thread(read_model_directory, model)
    pool = TokenizerPool(reading.model, reading.tokenizer)
    pool.close()
    configure = Configure(str(model), 4096, engine, str(model.parent))
    async with house(argv=REAL, configure=configure, vocabulary=pool.vocabulary, server=server, policy=policy) as built:
        await built.ready()
        yield built


def null_engine(directory: Path, profile: Mapping[str, object], *, cache_tokens: int = 8192) -> EngineSettings:
    """The real engine around logits that follow a profile: the same for the same sequence, whatever runs beside it."""
    path = directory / "profile.json"
    path.write_text(json.dumps(profile))
    return EngineSettings(backend=BackendKind.NULL, cache_tokens=cache_tokens, threads=1, null_profile=str(path))


@dataclass
class Reading:
    """Streams being read at once."""

    entries: list[Entry]
    heard: "asyncio.Future[list[Heard]]"

    @classmethod
    def of(cls, h: House, requests: Sequence[ValidRequest]) -> "Reading":
        """Open and read them."""
        entries = [h.streams.open(request) for request in requests]
        return cls(entries, asyncio.ensure_future(_hear_all(entries)))

    @property
    def delivered(self) -> list[list[int]]:
        """What each has said so far."""
        return [list(entry.transcript.delivered) for entry in self.entries]

    async def reach(self, tokens: int) -> None:
        """Wait until each has said so much, or is over."""
        await until(
            lambda: all(entry.ended or len(entry.transcript.delivered) >= tokens for entry in self.entries),
            f"{tokens} tokens of each",
        )


async def _hear_all(entries: Sequence[Entry]) -> list[Heard]:
    return await asyncio.gather(*(hear(entry) for entry in entries))


async def whole(h: House, requests: Sequence[ValidRequest]) -> list[Heard]:
    """The answers of an engine that nobody disturbs."""
    return await Reading.of(h, requests).heard


def kill(h: House) -> int:
    """`kill -9` of the engine; its process id."""
    pid = h.view.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


async def kill_when(h: House, moment: Callable[[], bool], what: str) -> None:
    """Kill it at a moment, and wait until the next one is being started."""
    await until(moment, what)
    pid = kill(h)
    await until(lambda: h.view.pid not in {pid, None} and isinstance(h.view.mode, Starting), "the next engine started")


async def kill_at(h: House, reading: Reading, tokens: int) -> list[list[int]]:
    """Kill it when each stream has said so much. What was delivered before anything is said again."""
    await reading.reach(tokens)
    pid = kill(h)
    await until(lambda: h.view.pid != pid or not h.streams.outstanding(0), "the death noticed")
    return reading.delivered


def check_whole(heards: Sequence[Heard]) -> None:
    """Each was opened once, ended once and well."""
    assert [heard.opened for heard in heards] == [1] * len(heards)
    assert [[type(end) for end in heard.ends] for heard in heards] == [[Ended]] * len(heards)


def check_kept(before: Sequence[Sequence[int]], heards: Sequence[Heard]) -> None:
    """What was delivered before a death stands."""
    for ids, heard in zip(before, heards, strict=True):
        assert heard.ids[: len(ids)] == list(ids)


def continuing(request: ValidRequest, delivered: Sequence[int]) -> ValidRequest:
    """The request a new client would make whose prompt is everything that was said so far."""
    spans = (*request.spans, TokenSpan(list(delivered)))
    return replace(request, spans=spans, max_tokens=request.max_tokens - len(delivered))
