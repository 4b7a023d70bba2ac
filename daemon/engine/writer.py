"""Reports on their way to the front. A step never waits for a slow front: what cannot be sent at once is merged and bounded.

1. With nothing outstanding, a report is encoded and handed to the socket without waiting: no thread is woken, which is the
   ordinary case.
2. What the socket does not take goes to a writer thread. While that thread is stuck, later steps are merged into one, with
   the tokens of a request joined, so that the backlog grows by ids only.
3. A backlog above its bound for longer than `PATIENCE` means that nobody reads any more: `FrontStuck`, and the engine ends.
"""

import socket
import threading
import time
from collections.abc import Callable

import msgspec

from daemon.core.errors import Exl3dError
from daemon.core.framing import frame
from daemon.core.wire import Durations, Event, Report, Step, Tokens

MAX_BACKLOG = 500_000
"""Events and token ids kept for a front that does not read; some tens of MiB."""
PATIENCE = 30.0
"""Seconds a full backlog is put up with."""


class FrontStuck(Exl3dError):
    """The front has stopped reading and the backlog is full."""


def merge_steps(first: Step, second: Step) -> Step:
    """Two steps in a row as one: newest figures, added durations, events in order, adjoining tokens joined."""
    return msgspec.structs.replace(
        second,
        durations=Durations(
            prefill=first.durations.prefill + second.durations.prefill,
            decode=first.durations.decode + second.durations.decode,
            prefill_tokens=first.durations.prefill_tokens + second.durations.prefill_tokens,
            decode_tokens=first.durations.decode_tokens + second.durations.decode_tokens,
        ),
        events=join_tokens([*first.events, *second.events]),
        answers=[*first.answers, *second.answers],
    )


def join_tokens(events: list[Event]) -> list[Event]:
    """The same events with a request's tokens joined where nothing else happened to it in between."""
    joined: list[Event] = []
    last: dict[int, int] = {}
    for event in events:
        place = last.get(event.id)
        before = joined[place] if place is not None else None
        if (
            place is not None
            and isinstance(event, Tokens)
            and isinstance(before, Tokens)
            and before.attempt == event.attempt
            and before.start + len(before.ids) == event.start
        ):
            joined[place] = msgspec.structs.replace(
                before, ids=[*before.ids, *event.ids], logprobs=[*before.logprobs, *event.logprobs]
            )
            continue
        last[event.id] = len(joined)
        joined.append(event)
    return joined


def _size(report: Report) -> int:
    if not isinstance(report, Step):
        return 1
    return 1 + sum(1 + len(event.ids) if isinstance(event, Tokens) else 1 for event in report.events)


class ReportWriter:
    """The sending side of a link. `put` is called by the thread that owns the backend."""

    def __init__(self, link: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._clock = clock
        self._changed = threading.Condition()
        self._backlog: list[Report] = []
        self._size = 0
        self._rest = b""
        self._sending = False
        self._broken = False
        self._full_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="link-writer", daemon=True)
        self._thread.start()

    def put(self, report: Report) -> None:
        """Send or keep a report; never waits. Raises FrontStuck."""
        with self._changed:
            if self._broken:
                return
            if not self._sending and not self._backlog:
                self._rest = self._send_now(frame(report))
                if self._rest:
                    self._sending = True
                    self._changed.notify_all()
                return
            self._keep(report)

    def flush(self, timeout: float) -> bool:
        """Wait until everything is sent, for `timeout` seconds at most. Says whether it was."""
        with self._changed:
            return self._changed.wait_for(lambda: self._broken or not (self._sending or self._backlog), timeout)

    def _keep(self, report: Report) -> None:
        last = self._backlog[-1] if self._backlog else None
        self._size += _size(report)
        if isinstance(report, Step) and isinstance(last, Step):
            self._backlog[-1] = merge_steps(last, report)
        else:
            self._backlog.append(report)
        if self._size <= MAX_BACKLOG:
            self._full_since = None
            return
        now = self._clock()
        if self._full_since is None:
            self._full_since = now
        elif now - self._full_since > PATIENCE:
            raise FrontStuck(f"the front has not read for {now - self._full_since:.0f} s and {self._size} events are waiting")

    def _send_now(self, data: bytes) -> bytes:
        try:
            sent = self._link.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return data
        except OSError:
            self._give_up()
            return b""
        return data[sent:]

    def _give_up(self) -> None:
        """The front is gone. The reader sees that as well and ends the process; what is left has no reader."""
        self._broken = True
        self._backlog.clear()
        self._size = 0

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._sending)
                data = self._rest
            try:
                self._link.sendall(data, socket.MSG_NOSIGNAL)
                failed = False
            except OSError:
                failed = True
            with self._changed:
                if failed:
                    self._give_up()
                self._rest = b"".join(frame(report) for report in self._backlog)
                self._backlog.clear()
                self._size = 0
                self._full_since = None
                self._sending = bool(self._rest)
                self._changed.notify_all()
