"""Follows the kernel's messages: the journal through `journalctl`, else /dev/kmsg, else nothing. Judges nothing.

Only what the kernel itself printed comes through (facility 0, which no program can write); lines printed together come
together. The journal's cursor is kept, so that a `journalctl` that ends is followed up without loss and without replay.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from daemon.core.faults import KernelLines
from daemon.core.kernel_records import KernelRecord, LineSplitter, journal_record, kmsg_record
from daemon.core.senses import Sense, SenseState

_log = logging.getLogger("exl3d.watchdog")

NAME = "kernel log"
KMSG = Path("/dev/kmsg")
GATHER_SECONDS = 1.0
"""Lines that come within this time of the first belong together."""
MOST_LINES = 256
"""Different lines handed on together; a longer burst comes in pieces."""
_CREDIBLE_SECONDS = 60.0
"""A line's own time is believed if it is at most this old."""
_ASK_SECONDS = 5.0
_PAUSES = (1.0, 2.0, 5.0, 15.0, 60.0)
_CHUNK = 65536
_RECORD = 8192


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """Lines that were printed together. `t` is when the last of them was, on CLOCK_MONOTONIC: what we did before it may have
    caused them.
    """

    t: float
    lines: KernelLines


class _Gatherer:
    """Collects lines until none belongs to them any more; the same line again within a group is one."""

    def __init__(self, hand_on: Callable[[KernelGroup], None], seconds: float, clock: Callable[[], float]) -> None:
        self._hand_on = hand_on
        self._seconds = seconds
        self._clock = clock
        self._lines: dict[str, None] = {}
        self._t = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, record: KernelRecord) -> None:
        now = self._clock()
        self._t = record.t if record.t is not None and 0 <= now - record.t <= _CREDIBLE_SECONDS else now
        if not self._lines:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self.flush)
        self._lines[record.text] = None
        if len(self._lines) >= MOST_LINES:
            self.flush()

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lines:
            lines, self._lines = tuple(self._lines), {}
            self._hand_on(KernelGroup(self._t, KernelLines(lines)))


def open_kmsg() -> int:
    """A descriptor on /dev/kmsg behind everything printed so far. Raises OSError where that is not permitted."""
    descriptor = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.lseek(descriptor, 0, os.SEEK_END)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a first question to journalctl brought."""

    cursor: str | None
    """Where to begin; None where it showed nothing."""
    problem: str = ""
    """Why it showed nothing, as far as it says."""


class KernelLog:
    """See the module. `hand_on` gets each group; it is called on the event loop."""

    def __init__(
        self,
        hand_on: Callable[[KernelGroup], None],
        *,
        kmsg: Callable[[], int] = open_kmsg,
        gather: float = GATHER_SECONDS,
        pauses: tuple[float, ...] = _PAUSES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gatherer = _Gatherer(hand_on, gather, clock)
        self._kmsg = kmsg
        self._pauses = pauses
        self._sense = Sense(NAME, SenseState.STARTING, "not looked at yet")
        self._cursor: str | None = None

    def sense(self) -> Sense:
        """Whether the kernel's messages are followed, and from where."""
        return self._sense

    async def run(self) -> None:
        """Follow until cancelled. Returns only where neither source is permitted, which is said once."""
        try:
            asked = await self._ask()
            if asked.cursor is None:
                await self._without_cursor(asked)
                return
            self._cursor = asked.cursor
            await self._follow_journal("")
        finally:
            self._gatherer.flush()

    async def _without_cursor(self, asked: _Asked) -> None:
        """The journal shows no message of the kernel: because there is none, or because we may not see them."""
        try:
            descriptor = self._kmsg()
        except OSError as refused:
            if not asked.problem:
                await self._follow_journal(", which has shown no message of the kernel yet")
            words = f"neither the journal ({asked.problem}) nor {KMSG} ({refused.strerror}) can be read"
            self._sense = Sense(NAME, SenseState.ABSENT, f"{words}; add the daemon's user to the group systemd-journal")
            _log.warning("kernel messages are not followed: %s", self._sense.words)
            return
        await self._follow_kmsg(descriptor)

    # --- the journal ------------------------------------------------------------------------------------------------

    async def _ask(self) -> _Asked:
        """The newest kernel message: shows that we may read, and where to begin."""
        if await asyncio.to_thread(shutil.which, "journalctl") is None:
            return _Asked(None, "there is no journalctl")
        try:
            process = await _journalctl("--lines=1")
        except OSError as problem:
            return _Asked(None, f"journalctl cannot be started: {problem.strerror}")
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                out, err = await process.communicate()
        except TimeoutError:
            return _Asked(None, f"journalctl did not answer within {_ASK_SECONDS:.0f} s")
        finally:
            await _end(process)
        for line in out.splitlines():
            record = journal_record(line)
            if record is not None:
                return _Asked(record.cursor)
        said = err.decode(errors="replace").strip().splitlines()
        return _Asked(None, said[-1][:200] if said else "")

    async def _follow_journal(self, so_far: str) -> NoReturn:
        """Run journalctl, again and again, each time behind what was last read."""
        row = 0
        while True:
            told = False
            process = await self._start()
            if process is not None:
                self._sense = Sense(NAME, SenseState.WORKING, f"the journal (journalctl _TRANSPORT=kernel){so_far}")
                try:
                    told = await self._read(process)
                finally:
                    await _end(process)
            so_far = "" if told else so_far
            row = 0 if told else row + 1
            pause = self._pauses[min(row, len(self._pauses) - 1)]
            self._sense = Sense(NAME, SenseState.STALE, f"journalctl ended; it is started again after {pause:g} s")
            if row <= 1:
                _log.info("%s", self._sense.words)
            await asyncio.sleep(pause)

    async def _read(self, process: asyncio.subprocess.Process) -> bool:
        """Take what a journalctl prints, until it ends. Whether it printed any message."""
        told = False
        splitter = LineSplitter()
        while process.stdout is not None and (data := await process.stdout.read(_CHUNK)):
            for line in splitter.feed(data):
                record = journal_record(line)
                if record is not None:
                    told = True
                    self._cursor = record.cursor or self._cursor
                    self._add(record)
        return told

    def _add(self, record: KernelRecord) -> None:
        if record.kernels_own:
            self._gatherer.add(record)

    async def _start(self) -> asyncio.subprocess.Process | None:
        begin = ("--no-tail", f"--after-cursor={self._cursor}") if self._cursor else ("--lines=0",)
        try:
            return await _journalctl("--follow", *begin, errors=asyncio.subprocess.DEVNULL)
        except OSError as problem:
            _log.info("journalctl cannot be started: %s", problem)
            return None

    # --- /dev/kmsg --------------------------------------------------------------------------------------------------

    async def _follow_kmsg(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        try:
            loop.add_reader(descriptor, readable.set)
            self._sense = Sense(NAME, SenseState.WORKING, str(KMSG))
            while True:
                await readable.wait()
                readable.clear()
                if not self._drain(descriptor):
                    self._sense = Sense(NAME, SenseState.ABSENT, f"{KMSG} ended")
                    _log.warning("kernel messages are not followed any more: %s", self._sense.words)
                    return
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def _drain(self, descriptor: int) -> bool:
        """Take the records that are there, one a read, up to a limit; False at the end of the file."""
        for _ in range(MOST_LINES):
            try:
                data = os.read(descriptor, _RECORD)
            except BlockingIOError:
                return True
            except (BrokenPipeError, InterruptedError):  # the ring went past us: the next read gives its oldest record
                continue
            except OSError as problem:
                _log.info("%s: %s", KMSG, problem)
                return False
            if not data:
                return False
            record = kmsg_record(data)
            if record is not None:
                self._add(record)
        return True


async def _journalctl(*arguments: str, errors: int = asyncio.subprocess.PIPE) -> asyncio.subprocess.Process:
    """A journalctl that dies with us, where the system has setpriv; elsewhere it ends when it finds its output closed."""
    command = ["journalctl", "--output=json", "--no-pager", *arguments, "_TRANSPORT=kernel"]
    if await asyncio.to_thread(shutil.which, "setpriv") is not None:
        command = ["setpriv", "--pdeathsig", "KILL", *command]
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
        env={**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0"},
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill and reap. What it still had to say is thrown away: asyncio calls no process over whose output was not read."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ASK_SECONDS):
            await process.communicate()
