"""The life of an engine process: read what to load, load it, say hello, run the loop, end with the right code.

The process belongs to whoever holds the other end of the link. When that end closes, or the parent dies, it ends: at once
while loading, and within `GRACE` seconds in the middle of a step. It leaves through `os._exit`, because interpreter and
driver tear-down may hang.
"""

import ctypes
import gc
import os
import signal
import socket
import sys
import threading
import traceback
import uuid
from collections.abc import Callable

from daemon.core.exit_codes import ExitCode
from daemon.core.wire import Command, Configure, Fatal, FatalClass, Loading
from daemon.engine.backend import Backend, EngineFailed, LoadProgress, LoadStage, PrefillWatch
from daemon.engine.inbox import CommandReader, Inbox
from daemon.engine.loop import EngineLoop
from daemon.engine.page import ProgressPage
from daemon.engine.writer import FrontStuck, ReportWriter

GRACE = 2.0
"""Seconds a running step may take to end after the front is gone."""
FAREWELL = 5.0
"""Seconds the last report may take to leave."""

_PR_SET_PDEATHSIG = 1

LoadBackend = Callable[[Configure, PrefillWatch, LoadProgress, Callable[[], None]], Backend]
"""Loads what `Configure` names. The last argument wakes the loop, from any thread. Raises EngineFailed."""


def end_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends. Call from the main thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")


def exit_code(kind: FatalClass) -> ExitCode:
    """The code that tells a supervisor what to do about a fatal error."""
    match kind:
        case FatalClass.CONFIG:
            return ExitCode.CONFIG
        case FatalClass.MEMORY:
            return ExitCode.NO_MEMORY
        case FatalClass.DEVICE:
            return ExitCode.DEVICE
        case FatalClass.INTERNAL:
            return ExitCode.FAILED


class EngineProcess:
    """Everything one engine process does, over the descriptors it was given."""

    def __init__(self, link: int, progress: int, load: LoadBackend) -> None:
        self._link = socket.socket(fileno=link)
        self._link.settimeout(None)
        self._page = ProgressPage(progress)
        self._inbox = Inbox()
        self._writer = ReportWriter(self._link)
        self._load = load
        self._running = False
        self._finished = threading.Event()

    def run(self) -> ExitCode:
        """From `Configure` to the end."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        CommandReader(self._link, self._inbox, self._front_is_gone).start()
        try:
            code = self._serve()
        except EngineFailed as problem:
            code = self._fatal(problem.kind, problem.detail)
        except FrontStuck as problem:
            sys.stderr.write(f"engine: {problem}\n")
            code = ExitCode.FAILED
        except Exception as problem:  # noqa: BLE001 - the top of the process: reported, then the process ends
            code = self._fatal(FatalClass.INTERNAL, f"{type(problem).__name__}: {problem}")
        self._finished.set()
        self._writer.flush(FAREWELL)
        return code

    def _serve(self) -> ExitCode:
        first = self._first_command()
        if first is None:
            return ExitCode.OK if self._inbox.closed == "" else ExitCode.FAILED
        if not isinstance(first, Configure):
            raise EngineFailed(FatalClass.INTERNAL, f"the first command was {type(first).__name__}, not Configure")
        backend = self._load(first, self._page, self._loading, self._inbox.wake)
        # What loading left behind never becomes garbage: a collection in the middle of a stream must not walk it.
        gc.collect()
        gc.freeze()
        self._running = True
        self._writer.put(backend.hello(boot=uuid.uuid4().hex, pid=os.getpid()))
        return EngineLoop(backend, self._inbox, self._writer, self._page).run()

    def _first_command(self) -> Command | None:
        commands = self._inbox.wait()
        self._inbox.put_back(commands[1:])
        return commands[0] if commands else None

    def _loading(self, stage: LoadStage, done: int, total: int) -> None:
        self._page.loading(stage.phase, done)
        self._writer.put(Loading(stage.value, done, total))

    def _fatal(self, kind: FatalClass, detail: str) -> ExitCode:
        trace = traceback.format_exc()
        sys.stderr.write(f"engine: {detail}\n{trace}")
        self._writer.put(Fatal(kind, detail, trace))
        return exit_code(kind)

    def _front_is_gone(self) -> None:
        """Called by the reader thread, which has nothing else to do any more."""
        if self._running and self._finished.wait(GRACE):
            return
        os._exit(ExitCode.OK)
