"""One engine process: how it is started, heard, looked at and ended. Decides nothing.

The child gets one end of a socketpair (the link) and a memfd (the progress page), leads a process group of its own so that
whatever it starts can be ended with it, and finds nothing in its environment that lets it talk to systemd in our name.
"""

import asyncio
import logging
import mmap
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from daemon.core.progress import PAGE_BYTES, Progress, read_progress
from daemon.core.wire import Report
from daemon.host.link import Link

_log = logging.getLogger("exl3d.engine")

ENGINE_ARGV = (sys.executable, "-P", "-m", "daemon.engine")
_PRIVATE = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "CREDENTIALS_DIRECTORY",
)
_ROOT = str(Path(__file__).resolve().parents[2])
"""Where our packages lie: the child must find them whatever its working directory holds."""
_LINE_LIMIT = 4096
_TAIL_LINES = 20
_LAST_WORDS_SECONDS = 2.0
"""How long a dead process's link may take to run dry before its end is reported."""


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without what is ours alone, with our packages importable and crashes leaving Python stacks."""
    child = {name: value for name, value in environment.items() if name not in _PRIVATE}
    child["PYTHONPATH"] = os.pathsep.join(filter(None, (_ROOT, child.get("PYTHONPATH"))))
    child["PYTHONFAULTHANDLER"] = "1"
    child["PYTHONUNBUFFERED"] = "1"
    return child


def process_state(pid: int) -> str:
    """The kernel's letter for what a process is doing (proc(5)): D hangs in the kernel, Z waits to be reaped; ? is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"


class ProgressPage:
    """The memfd an engine writes its progress on."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("exl3d-progress", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, PAGE_BYTES)
        self._map = mmap.mmap(self.descriptor, PAGE_BYTES, prot=mmap.PROT_READ)

    def read(self) -> Progress | None:
        """What stands there; None if nothing was written or three readings in a row were torn."""
        for _ in range(3):
            progress = read_progress(self._map[:])
            if progress is not None:
                return progress
        return None

    def close(self) -> None:
        """Let go of the memory."""
        self._map.close()
        os.close(self.descriptor)


class EngineProcess:
    """A running child. Made by `start`; `on_exit` is called once, after the last report it sent."""

    def __init__(self, process: asyncio.subprocess.Process, page: ProgressPage) -> None:
        self._process = process
        self._page = page
        self._link: Link | None = None
        self._link_ended = asyncio.Event()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._tasks: list[asyncio.Task[None]] = []
        self._last: Progress | None = None
        self._gone = False

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        on_reports: Callable[[list[Report]], None],
        on_lost: Callable[[str | None], None],
        on_exit: Callable[[int], None],
        environment: Mapping[str, str] | None = None,
    ) -> "EngineProcess":
        """Start `argv` with `--link FD --progress FD` added and `environment` beside our own. Raises OSError where the system
        refuses.
        """
        ours, theirs = socket.socketpair()
        page = ProgressPage()
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                "--link",
                str(theirs.fileno()),
                "--progress",
                str(page.descriptor),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(theirs.fileno(), page.descriptor),
                start_new_session=True,
                env=child_environment({**os.environ, **(environment or {})}),
            )
        except BaseException:
            ours.close()
            page.close()
            raise
        finally:
            theirs.close()
        engine = cls(process, page)

        def lost(why: str | None) -> None:
            engine._link_ended.set()
            on_lost(why)

        engine._link = await Link.open(ours, on_reports, lost)
        engine._tasks = [
            asyncio.create_task(engine._hear(), name=f"engine {process.pid}: output"),
            asyncio.create_task(engine._await_exit(on_exit), name=f"engine {process.pid}: exit"),
        ]
        return engine

    @property
    def pid(self) -> int:
        """The child's process id, which is its group's too."""
        return self._process.pid

    @property
    def link(self) -> Link:
        """The front's end of its link."""
        if self._link is None:
            raise RuntimeError("the link is opened in start")
        return self._link

    def progress(self) -> Progress | None:
        """What the engine's progress page says; after its end, what it left there."""
        return self._last if self._gone else self._page.read()

    def last_words(self) -> str:
        """The end of what it wrote to its output."""
        return "\n".join(self._tail)

    def terminate(self) -> None:
        """SIGTERM to the whole group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            _log.debug("engine %d was gone before %s", self.pid, number.name)

    async def _await_exit(self, on_exit: Callable[[int], None]) -> None:
        await self._until_dead()
        self._signal(signal.SIGKILL)  # whatever it started must not outlive it
        code = await self._process.wait()
        try:
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await self._link_ended.wait()
        except TimeoutError:
            _log.warning("the link of engine %d did not end with its process", self.pid)
        await asyncio.wait(self._tasks[:1], timeout=_LAST_WORDS_SECONDS)
        self._tasks[0].cancel()
        self.link.close()
        self._last = self._page.read()
        self._gone = True
        self._page.close()
        on_exit(code)

    async def _until_dead(self) -> None:
        """Wait for the process itself. asyncio's `wait` waits for its output to end too, which helpers it started may hold."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return  # gone, and reaped already
        except OSError:
            await self._process.wait()  # a kernel without pidfds
            return
        loop = asyncio.get_running_loop()
        dead = asyncio.Event()
        loop.add_reader(descriptor, dead.set)
        try:
            await dead.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    async def _hear(self) -> None:
        """Put the child's output into our log, line by line; text without an end of line in pieces."""
        stream = self._process.stdout
        if stream is None:
            return
        rest = b""
        while data := await stream.read(65536):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _LINE_LIMIT:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._say(line)
        if rest:
            self._say(rest)

    def _say(self, line: bytes) -> None:
        text = line[:_LINE_LIMIT].decode(errors="replace").rstrip()
        if text:
            self._tail.append(text)
            _log.info("engine %d: %s", self.pid, text)
