"""The front's end of a link: frames out, reports in, one callback a batch.

Writing never blocks and never grows without bound: an engine that does not read its commands is as good as dead, and the
link says so instead of buffering for it.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol, cast

from daemon.core.errors import LinkCorrupt
from daemon.core.framing import frame, report_reader
from daemon.core.wire import Command, Report

UNREAD_LIMIT = 512 * 1024 * 1024
"""Bytes of commands an engine may leave unread: a few prompts with images. Beyond it the link is given up."""


class CommandSink(Protocol):
    """Where commands for an engine go."""

    def send(self, command: Command) -> None:
        """Queue a command. After the link has ended this does nothing: the loss is reported once, elsewhere."""
        ...


class Link(asyncio.Protocol):
    """One link. `on_reports` gets what arrived, in order; `on_lost` is called once, with words unless it was a plain end."""

    def __init__(self, on_reports: Callable[[list[Report]], None], on_lost: Callable[[str | None], None]) -> None:
        self._on_reports = on_reports
        self._on_lost = on_lost
        self._reader = report_reader()
        self._transport: asyncio.Transport | None = None
        self._lost = False

    @classmethod
    async def open(
        cls, end: socket.socket, on_reports: Callable[[list[Report]], None], on_lost: Callable[[str | None], None]
    ) -> "Link":
        """Take over the socket `end`."""
        link = cls(on_reports, on_lost)
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=end)
        return link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's call: the socket is watched from now on."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports have the methods, not the base class

    def data_received(self, data: bytes) -> None:
        """Asyncio's call: bytes came."""
        if self._lost:
            return
        try:
            reports = self._reader.feed(data)
        except LinkCorrupt as problem:
            self._lose(f"the engine sent garbage: {problem}")
            return
        if reports:
            self._on_reports(reports)

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio's call: the other end closed, or the socket failed."""
        self._lose(None if exc is None or isinstance(exc, ConnectionError) else str(exc))

    def send(self, command: Command) -> None:
        """Queue a command; see CommandSink."""
        transport = self._transport
        if self._lost or transport is None or transport.is_closing():
            return
        transport.write(frame(command))
        if transport.get_write_buffer_size() > UNREAD_LIMIT:
            self._lose("the engine does not read its commands")

    def close(self) -> None:
        """End the link without telling anybody."""
        self._lost = True
        if self._transport is not None:
            self._transport.abort()

    def _lose(self, why: str | None) -> None:
        if self._lost:
            return
        self.close()
        self._on_lost(why)
