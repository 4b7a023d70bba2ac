"""Running the streams of one request: open them, hand their events to the family's voices, end them with the client.

A voice turns events of one choice into bytes for a stream, or keeps them for one body and gives none. The first choice of
each prompt starts at once; the others start when it has its first token, so that they find the whole prompt in the cache.

While the client reads as fast as tokens come, nothing wakes: the host hands each event to the voice, whose bytes are pushed into
the connection there and then. Only what cannot be pushed is left to the task.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol, cast

from daemon.api.preparing import Group
from daemon.api.watch import Watch
from daemon.core.errors import InvariantBroken
from daemon.core.events import Broken, Ended, Opened, Paused, Piece, StreamEvent
from daemon.core.ports import Serving, Stream
from daemon.core.requests import ValidRequest


class Outlet(Protocol):
    """Where the bytes of an answer go."""

    def push(self, data: bytes) -> bool:
        """Write them now. False: nothing was written and `send` must be used: the answer has not begun, or its reader lags."""
        ...

    async def send(self, data: bytes) -> None:
        """Write them as soon as the reader lets us. Raises ConnectionResetError when it is gone."""
        ...


class Nowhere:
    """The outlet of a reply that is one body: its voices give no bytes."""

    def push(self, data: bytes) -> bool:
        """See Outlet."""
        del data
        return True

    async def send(self, data: bytes) -> None:
        """See Outlet."""
        del data


class Voice(Protocol):
    """What a family makes out of the events of one choice."""

    @property
    def watch(self) -> Watch:
        """Where times and tokens of this choice are kept."""
        ...

    def take(self, event: StreamEvent) -> bytes:
        """Bytes to send now, or none. Never sees Broken."""
        ...


async def run(serving: Serving, groups: Sequence[Group], voices: Sequence[Sequence[Voice]], outlet: Outlet) -> None:
    """Run every choice of every prompt to its end; `voices` has one for each, in the same order.

    Raises what broke a stream, a RequestError, and what `serving.open` raises. However it ends, no stream is left running.
    """
    meters = voices[0][0].watch.meters
    count = sum(len(group.requests) for group in groups)
    streams = _open_firsts(serving, groups)
    meters.open_streams += count
    try:
        if count == 1:
            await _follow(streams[0], voices[0][0], outlet)
        else:
            await _run_many(serving, groups, voices, streams, outlet)
    finally:
        meters.open_streams -= count
        for stream in streams:
            stream.cancel()


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
    serving: Serving, groups: Sequence[Group], voices: Sequence[Sequence[Voice]], streams: Sequence[Stream], outlet: Outlet
) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            for group, speakers, stream in zip(groups, voices, streams, strict=True):
                gate = asyncio.Event()
                tasks.create_task(_follow(stream, speakers[0], outlet, gate))
                for request, voice in zip(group.requests[1:], speakers[1:], strict=True):
                    tasks.create_task(_start_later(serving, request, voice, outlet, gate))
    except BaseExceptionGroup as group:
        raise _first(group) from group


async def _start_later(serving: Serving, request: ValidRequest, voice: Voice, outlet: Outlet, gate: asyncio.Event) -> None:
    await gate.wait()
    stream = serving.open(request)
    try:
        await _follow(stream, voice, outlet)
    finally:
        stream.cancel()


class _Listener:
    """Takes the events of one choice; `rest` is what it could not push."""

    __slots__ = ("_count", "_gate", "_push", "_speak", "_watch", "ended", "rest")

    def __init__(self, voice: Voice, outlet: Outlet, gate: asyncio.Event | None) -> None:
        self._watch = voice.watch
        self._count = voice.watch.tokens
        self._speak = voice.take
        self._push = outlet.push
        self._gate = gate
        self.rest = b""
        self.ended = False

    def take(self, event: StreamEvent) -> bool:
        """See ports.Stream. Raises what broke the stream."""
        if isinstance(event, Piece):
            self._count(len(event.ids))
        else:
            self._see(event)
        data = self._speak(event)
        if self._gate is not None and (self.ended or self._watch.received):
            self._gate.set()
        if data and not self._push(data):
            self.rest = data
            return False
        return not self.ended

    def _see(self, event: Opened | Paused | Ended | Broken) -> None:
        self._watch.see(event)
        if isinstance(event, Broken):
            raise event.error
        self.ended = isinstance(event, Ended)


async def _follow(stream: Stream, voice: Voice, outlet: Outlet, gate: asyncio.Event | None = None) -> None:
    listener = _Listener(voice, outlet, gate)
    while not listener.ended:
        await stream.deliver(listener.take)
        if listener.rest:
            rest, listener.rest = listener.rest, b""
            await outlet.send(rest)
        elif not listener.ended:
            raise InvariantBroken("a stream ended without saying how")


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(cast("BaseExceptionGroup[BaseException]", error)) if isinstance(error, BaseExceptionGroup) else error
