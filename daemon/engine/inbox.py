"""Commands on their way from the link to the loop: a reader thread fills a bounded queue that wakes an idle loop at once."""

import socket
import threading
from collections import deque
from collections.abc import Callable

from daemon.core.errors import LinkCorrupt
from daemon.core.framing import command_reader
from daemon.core.wire import Command

MAX_WAITING = 4096
"""Commands kept for a loop that is in the middle of a step; beyond it the front is made to wait."""

_READ_BYTES = 1 << 20


class Inbox:
    """The queue. The loop takes everything that is there between two steps."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._commands: deque[Command] = deque()
        self._woken = False
        self._closed: str | None = None

    def put(self, command: Command) -> None:
        """Add a command; waits while the queue is full. Reader thread."""
        with self._changed:
            while len(self._commands) >= MAX_WAITING and self._closed is None:
                self._changed.wait()
            self._commands.append(command)
            self._changed.notify_all()

    def put_back(self, commands: list[Command]) -> None:
        """Return commands that were taken too early; they come first again."""
        with self._changed:
            self._commands.extendleft(reversed(commands))
            self._changed.notify_all()

    def wake(self) -> None:
        """Make an idle loop look again. Any thread."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self, reason: str) -> None:
        """The link is over; `reason` is empty where the front simply left."""
        with self._changed:
            self._closed = reason
            self._changed.notify_all()

    @property
    def closed(self) -> str | None:
        """Why no more commands will come; None while they may."""
        return self._closed

    def take(self) -> list[Command]:
        """Everything that is there now."""
        if not self._commands:
            return []
        with self._changed:
            commands = list(self._commands)
            self._commands.clear()
            self._changed.notify_all()
            return commands

    def wait(self) -> list[Command]:
        """Everything there is, waiting for something to happen first. Empty after `wake` or `close`."""
        with self._changed:
            while not self._commands and not self._woken and self._closed is None:
                self._changed.wait()
            self._woken = False
        return self.take()


class CommandReader(threading.Thread):
    """Reads the link into an inbox until it ends, then calls `ended` from this thread."""

    def __init__(self, link: socket.socket, inbox: Inbox, ended: Callable[[], None]) -> None:
        super().__init__(name="link-reader", daemon=True)
        self._link = link
        self._inbox = inbox
        self._ended = ended

    def run(self) -> None:
        """Until end of file."""
        self._inbox.close(self._read())
        self._ended()

    def _read(self) -> str:
        frames = command_reader()
        while True:
            try:
                data = self._link.recv(_READ_BYTES)
                if not data:
                    return ""
                commands = frames.feed(data)
            except OSError:
                return ""
            except LinkCorrupt as problem:
                return str(problem)
            for command in commands:
                self._inbox.put(command)
