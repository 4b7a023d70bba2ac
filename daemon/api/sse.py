"""Server-sent events: one `EventStream` a response. Families hand it finished bytes; it knows headers, silence, stalled readers.

The response begins with the first bytes, or with a comment after the first silence: until then an error can still be answered
with its own status. Writing is one call into the transport for each batch of pieces; nothing is allocated per chunk but the
chunk, and no timer is touched. One sleeping task a stream watches the clock.
"""

import asyncio
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from aiohttp import web

DONE = b"data: [DONE]\n\n"
STALL_SECONDS = 60.0
"""A client that takes nothing for this long, with its buffers full, is cut off."""
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
        self._watch: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """Whether the status line is on its way, so that an error must go into the stream."""
        return self.response.prepared

    async def __aenter__(self) -> Self:
        self._last = time.monotonic()
        self._watch = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None and self.begun:
                self._hanging_since = time.monotonic()
                await self.response.write_eof()
        finally:
            if self._watch is not None:
                self._watch.cancel()

    async def send(self, data: bytes) -> None:
        """Write finished events. Waits where the reader is slow. Raises ConnectionResetError when it is gone."""
        if not self.response.prepared:
            await self.response.prepare(self._request)
        self._hanging_since = self._last = time.monotonic()
        await self.response.write(data)
        self._hanging_since = None

    async def _keep(self) -> None:
        """Fill silence with comments; cut off a reader that takes nothing any more."""
        while True:
            await asyncio.sleep(min(self._keepalive, self._stall))
            now = time.monotonic()
            if self._hanging_since is not None:
                if now - self._hanging_since >= self._stall:
                    self._abort()
                    return
            elif now - self._last >= self._keepalive * 0.9:
                try:
                    async with asyncio.timeout(self._stall):
                        await self.send(comment("keepalive"))
                except (TimeoutError, ConnectionResetError):
                    self._abort()
                    return

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
