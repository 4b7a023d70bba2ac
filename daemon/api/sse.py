"""Server-sent events: one `EventStream` a response. Families hand it finished bytes; it knows headers, silence, stalled readers.

The response begins with the first bytes, or with a comment after the first silence: until then an error can still be answered
with its own status. From then on bytes may be pushed: framed as a chunk and handed to the transport in one call, past aiohttp's
writer, without waiting. What that writer does besides is not needed here: nothing is compressed, and no length is promised. No
timer is touched for a chunk; one a stream looks at the clock from time to time.
"""

import asyncio
from collections.abc import Mapping
from time import monotonic
from types import TracebackType
from typing import Self

from aiohttp import hdrs, web

DONE = b"data: [DONE]\n\n"
STALL_SECONDS = 60.0
"""A client that takes nothing for this long, with its buffers full, is cut off."""
_CHUNK_SIZES = tuple(b"%x\r\n" % size for size in range(1024))
"""What stands before chunks of ordinary length."""
_HEADERS: Mapping[str, str] = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class EventStream:
    """A response of server-sent events. Use as a context manager; leaving it without an exception ends the response."""

    def __init__(self, request: web.Request, headers: Mapping[str, str], keepalive: float, stall: float = STALL_SECONDS) -> None:
        """`keepalive`: seconds of silence after which a comment is sent. `stall`: seconds a write may hang."""
        self.response = web.StreamResponse(headers={**_HEADERS, **headers})
        self._request = request
        self._keepalive = keepalive
        self._stall = stall
        self._last = 0.0
        self._hanging_since: float | None = None
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None
        """Says that we are still there."""
        self._chunked: asyncio.Transport | None = None
        """The connection, while the response goes out in chunks: it has begun, and the client speaks HTTP/1.1."""

    @property
    def begun(self) -> bool:
        """Whether the status line is on its way, so that an error must go into the stream."""
        return self.response.prepared

    async def __aenter__(self) -> Self:
        self._last = monotonic()
        self._look_later()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._chunked = None
        try:
            if kind is None and self.begun and not self._ended:
                await self.end(b"")
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._comment is not None:
                self._comment.cancel()

    def push(self, data: bytes) -> bool:
        """Write finished events at once. False: nothing was written; the response has not begun, the reader lags or is gone, and
        `send` knows what to do.
        """
        transport = self._chunked
        if transport is None or transport.get_write_buffer_size() or transport.is_closing():
            return False
        size = len(data)
        begin = _CHUNK_SIZES[size] if size < len(_CHUNK_SIZES) else b"%x\r\n" % size
        transport.write(begin + data + b"\r\n")
        self._last = monotonic()
        return True

    async def send(self, data: bytes) -> None:
        """Write finished events. Waits where the reader is slow. Raises ConnectionResetError when it is gone."""
        if not self.response.prepared:
            await self.response.prepare(self._request)
        self._hanging_since = self._last = monotonic()
        await self.response.write(data)
        if self._request.protocol.writing_paused:
            await self._request.writer.drain()
        if self._ended:  # a comment, while the end waits for the reader
            return
        self._hanging_since = None
        if self.response.headers.get(hdrs.TRANSFER_ENCODING) == "chunked":
            self._chunked = self._request.transport

    async def end(self, data: bytes) -> None:
        """Write the last events, and the end of the response behind them. Raises ConnectionResetError when the reader is gone."""
        self._chunked = None
        if not self.response.prepared:
            await self.response.prepare(self._request)
        self._hanging_since = monotonic()
        self._ended = True
        await self.response.write_eof(data)

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(min(self._keepalive, self._stall), self._look)

    def _look(self) -> None:
        """Fill silence with comments; cut off a reader that takes nothing any more."""
        now = monotonic()
        if self._hanging_since is not None and now - self._hanging_since >= self._stall:
            self._abort()
            return
        if self._hanging_since is None and now - self._last >= self._keepalive * 0.9:
            self._comment = asyncio.create_task(self._say_something())
        self._look_later()

    async def _say_something(self) -> None:
        try:
            async with asyncio.timeout(self._stall):
                await self.send(comment("keepalive"))
        except (TimeoutError, ConnectionResetError):
            self._abort()

    def _abort(self) -> None:
        """Close the connection without waiting; the server then cancels the handler, which cancels the request."""
        if self._request.transport is not None:
            self._request.transport.abort()


def event(data: bytes) -> bytes:
    """One event with this JSON as its data."""
    return b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """A line that clients skip."""
    return b": " + text.replace("\n", " ").replace("\r", " ").encode() + b"\n\n"
