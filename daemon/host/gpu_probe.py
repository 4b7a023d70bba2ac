"""Starts probe processes (`daemon.engine.probe`) and tells how it fared: one at a time, each with a deadline. Judges nothing."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from daemon.core.faults import Probed, ProbeOutcome
from daemon.host.engine_process import child_environment

_log = logging.getLogger("exl3d.watchdog")

PROBE_ARGV = (sys.executable, "-P", "-m", "daemon.engine.probe")
REAP_SECONDS = 10.0
"""How long a killed probe may take to be gone before it counts as unkillable."""
_DRIVER_CRASHES = frozenset({-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE})


class _Answer(msgspec.Struct, frozen=True):
    """What the probe prints."""

    outcome: ProbeOutcome
    code: int | None
    call: str


def kill_group(pid: int) -> None:
    """SIGKILL to a process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class GpuProbe:
    """See the module. `on_kill` hears before a probe is killed: what the kernel says then is our doing."""

    def __init__(
        self,
        seconds: float,
        *,
        argv: Sequence[str] = PROBE_ARGV,
        reap: float = REAP_SECONDS,
        on_kill: Callable[[], None] = lambda: None,
        kill: Callable[[int], None] = kill_group,
    ) -> None:
        self._seconds = seconds
        self._argv = tuple(argv)
        self._reap = reap
        self._on_kill = on_kill
        self._kill = kill
        self._running: asyncio.Task[Probed | None] | None = None
        self._stuck: asyncio.subprocess.Process | None = None

    async def probe(self) -> Probed | None:
        """How a fresh process fared; None where nothing was learned. Whoever asks while one runs gets the same answer."""
        if self._running is None:
            self._running = asyncio.create_task(self._probe(), name="gpu probe")
        running = self._running
        try:
            return await asyncio.shield(running)
        finally:
            if running.done() and self._running is running:
                self._running = None

    async def close(self) -> None:
        """End a probe that runs."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            self._running = None

    async def _probe(self) -> Probed | None:
        if self._stuck is not None and self._stuck.returncode is None:
            _log.warning("no probe: the last one (process %d) does not end", self._stuck.pid)
            return None
        began = time.monotonic()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env=child_environment(os.environ),
            )
        except OSError as problem:
            _log.warning("the GPU could not be probed: %s", problem)
            return None
        reading = asyncio.create_task(process.communicate(), name=f"gpu probe {process.pid}")
        try:
            done, _ = await asyncio.wait([reading], timeout=self._seconds)
        finally:
            if not reading.done():
                await self._end(process, reading)
        found = _outcome(process.returncode, reading.result()[0]) if done else self._late(process)
        _log.info("GPU probe: %s after %.1f s", found.outcome.value if found else "nothing learned", time.monotonic() - began)
        return found

    async def _end(self, process: asyncio.subprocess.Process, reading: asyncio.Task[tuple[bytes, bytes]]) -> None:
        self._on_kill()
        self._kill(process.pid)
        done, _ = await asyncio.wait([reading], timeout=self._reap)
        if not done:
            reading.cancel()
            await asyncio.wait([reading])
        self._stuck = None if process.returncode is not None else process

    def _late(self, process: asyncio.subprocess.Process) -> Probed:
        return Probed(ProbeOutcome.TIMED_OUT if process.returncode is not None else ProbeOutcome.UNKILLABLE)


def _outcome(code: int | None, output: bytes) -> Probed | None:
    """What a probe that ended has shown. A crash is the driver's; anything else that is no answer is not about the GPU."""
    for line in reversed(output.splitlines()):
        try:
            answer = msgspec.json.decode(line, type=_Answer)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        _log.debug("GPU probe: %s", answer)
        return Probed(answer.outcome, answer.code)
    if code in _DRIVER_CRASHES:
        return Probed(ProbeOutcome.FAILED)
    tail = output.decode(errors="replace").strip().splitlines()
    _log.warning("the GPU probe ended with %s and no answer: %s", code, tail[-1] if tail else "it said nothing")
    return None
