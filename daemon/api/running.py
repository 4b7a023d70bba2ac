"""Running the streams of one request: open them, hand their events to the family's voices, end them with the client.

A voice turns events of one choice into bytes for a stream, or keeps them for one body and gives none. The first choice of
each prompt starts at once; the others start when it has its first token, so that they find the whole prompt in the cache.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, cast

from daemon.api.preparing import Group
from daemon.api.watch import Watch
from daemon.core.errors import InvariantBroken
from daemon.core.events import Broken, Ended, StreamEvent
from daemon.core.ports import Serving, Stream
from daemon.core.requests import ValidRequest

Send = Callable[[bytes], Awaitable[None]]


class Voice(Protocol):
    """What a family makes out of the events of one choice."""

    @property
    def watch(self) -> Watch:
        """Where times and tokens of this choice are kept."""
        ...

    def take(self, event: StreamEvent) -> bytes:
        """Bytes to send now, or none. Never sees Broken."""
        ...


async def run(serving: Serving, groups: Sequence[Group], voices: Sequence[Sequence[Voice]], send: Send) -> None:
    """Run every choice of every prompt to its end; `voices` has one for each, in the same order.

    Raises what broke a stream, a RequestError, and what `serving.open` raises. However it ends, no stream is left running.
    """
    meters = voices[0][0].watch.meters
    count = sum(len(group.requests) for group in groups)
    streams = _open_firsts(serving, groups)
    meters.open_streams += count
    try:
        if count == 1:
            await _follow(streams[0], voices[0][0], send)
        else:
            await _run_many(serving, groups, voices, streams, send)
    finally:
        meters.open_streams -= count
        for stream in streams:
            stream.cancel()


async def discard(data: bytes) -> None:
    """The `send` of a reply that is one body."""
    del data


def _open_firsts(serving: Serving, groups: Sequence[Group]) -> list[Stream]:
    streams: list[Stream] = []
    try:
        for group in groups:
            streams.append(serving.open(group.requests[0]))  # noqa: PERF401  # those already open are needed when one fails
    except BaseException:
        for stream in streams:
            stream.cancel()
        raise
    return streams


async def _run_many(
    serving: Serving, groups: Sequence[Group], voices: Sequence[Sequence[Voice]], streams: Sequence[Stream], send: Send
) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            for group, speakers, stream in zip(groups, voices, streams, strict=True):
                gate = asyncio.Event()
                tasks.create_task(_follow(stream, speakers[0], send, gate))
                for request, voice in zip(group.requests[1:], speakers[1:], strict=True):
                    tasks.create_task(_start_later(serving, request, voice, send, gate))
    except BaseExceptionGroup as group:
        raise _first(group) from group


async def _start_later(serving: Serving, request: ValidRequest, voice: Voice, send: Send, gate: asyncio.Event) -> None:
    await gate.wait()
    stream = serving.open(request)
    try:
        await _follow(stream, voice, send)
    finally:
        stream.cancel()


async def _follow(stream: Stream, voice: Voice, send: Send, gate: asyncio.Event | None = None) -> None:
    watch = voice.watch
    async for event in stream.events():
        watch.see(event)
        if isinstance(event, Broken):
            raise event.error
        data = voice.take(event)
        if gate is not None and watch.received:
            gate.set()
        if data:
            await send(data)
        if isinstance(event, Ended):
            if gate is not None:
                gate.set()
            return
    raise InvariantBroken("a stream ended without saying how")


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(cast("BaseExceptionGroup[BaseException]", error)) if isinstance(error, BaseExceptionGroup) else error
