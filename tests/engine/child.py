"""A real engine child for tests and benches: starts one, sends commands, receives reports, all typed and with a deadline.

with EngineChild() as child:
    hello = child.start(Configure(...))
    child.send(Submit(...))
    events = child.until_ended(1)
"""

import contextlib
import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from daemon.core.framing import frame, report_reader
from daemon.core.progress import PAGE_BYTES, Progress, read_progress
from daemon.core.wire import (
    Answer,
    Command,
    Configure,
    Event,
    Failed,
    Fatal,
    Finished,
    Hello,
    Loading,
    Report,
    Step,
    Suspended,
    Tokens,
)

DEADLINE = 120.0
"""Seconds a test waits for anything before it fails; far more than anything takes on a busy machine."""


class EngineChild:
    """One engine process and the front's end of its link."""

    def __init__(self) -> None:
        self._front, back = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._memfd = os.memfd_create("exl3d-progress")
        os.ftruncate(self._memfd, PAGE_BYTES)
        self._page = mmap.mmap(self._memfd, PAGE_BYTES, prot=mmap.PROT_READ)
        environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "daemon.engine", "--link", str(back.fileno()), "--progress", str(self._memfd)],
            pass_fds=(back.fileno(), self._memfd),
            env=environment,
        )
        back.close()
        self._frames = report_reader()
        self._reports: list[Report] = []
        self.steps: list[Step] = []
        """Every step received, oldest first."""
        self.loadings: list[Loading] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the child, whatever it does."""
        self._front.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._page.close()
        os.close(self._memfd)

    @property
    def link(self) -> socket.socket:
        """The front's end, for tests that misuse it."""
        return self._front

    def progress(self) -> Progress | None:
        """What the progress page says now."""
        return read_progress(self._page[:])

    def send(self, *commands: Command) -> None:
        """Put commands on the link."""
        for command in commands:
            self._front.sendall(frame(command))

    def start(self, configure: Configure) -> Hello:
        """Configure and wait for the hello."""
        self.send(configure)
        while True:
            report = self.receive()
            match report:
                case Loading():
                    self.loadings.append(report)
                case Hello():
                    return report
                case Fatal() | Step():
                    raise AssertionError(f"expected Hello, got {report}")

    def receive(self) -> Report:
        """The next report."""
        limit = time.monotonic() + DEADLINE
        while not self._reports:
            self._front.settimeout(max(0.001, limit - time.monotonic()))
            data = self._front.recv(1 << 20)
            if not data:
                raise EOFError(f"the engine closed the link; exit code {self.process.wait(DEADLINE)}")
            self._reports += self._frames.feed(data)
        report = self._reports.pop(0)
        if isinstance(report, Step):
            self.steps.append(report)
        return report

    def step(self) -> Step:
        """The next step."""
        report = self.receive()
        if not isinstance(report, Step):
            raise AssertionError(f"expected a step, got {report}")  # noqa: TRY004 - this is a test's expectation
        return report

    def until(self, done: Callable[[Step], bool]) -> list[Step]:
        """Steps up to the first for which `done` holds."""
        seen = [self.step()]
        while not done(seen[-1]):
            seen.append(self.step())
        return seen

    def until_ended(self, *requests: int) -> dict[int, list[Event]]:
        """Events of each request up to its last one."""
        events: dict[int, list[Event]] = {request: [] for request in requests}
        open_ = set(requests)
        while open_:
            for event in self.step().events:
                events.setdefault(event.id, []).append(event)
                if isinstance(event, Finished | Failed | Suspended):
                    open_.discard(event.id)
        return events

    def answer(self) -> Answer:
        """The next answer."""
        return self.until(lambda step: bool(step.answers))[-1].answers[0]


def ids_of(events: list[Event]) -> list[int]:
    """The ids a request was given."""
    return [token for event in events if isinstance(event, Tokens) for token in event.ids]
