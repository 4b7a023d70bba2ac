"""One run of the daemon: from binding the port to the last goodbye, and what signals and systemd mean in between."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager

from aiohttp import web

from daemon.composition import Origin, assemble, serve
from daemon.core.errors import ConfigError, Exl3dError, ShuttingDown
from daemon.core.exit_codes import ExitCode
from daemon.core.operating import Reloaded
from daemon.core.supervision import a_person_must_act
from daemon.core.supervision_values import Failed, Starting
from daemon.host.listening import listen_tcp, listen_unix, remove_unix
from daemon.host.notify import Systemd, notifier_for, watchdog_seconds
from daemon.host.supervisor import View, name_of

_log = logging.getLogger("exl3d")

GOODBYE_SECONDS = 5.0
"""How long handlers may take to write their last event after their streams have ended."""
STATUS_SECONDS = 5.0
MORE_TIME_SECONDS = 5.0
"""Least time between two requests for more time to load. Each reaches beyond the silence after which the supervisor itself
takes the load for hung, so that it can replace that engine before systemd ends the whole service."""


class NeverReady(Exl3dError):
    """No engine ever served, and none will: the daemon ends with exit code 1."""


class Daemon:
    """See the module."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._settings = origin.configuration.settings
        self._systemd = Systemd(notifier_for(os.environ))
        self._reloads: set[asyncio.Task[Reloaded]] = set()
        self._news = asyncio.Event()
        """A signal came, an engine's state changed, or a supervisor ended."""
        self._signals = 0
        self._terminal = has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        """Whether somebody started us on a terminal, and not with nohup: when it goes, so do we."""
        self._announced = False
        self._broken_promise = ""
        """Why people may not get what they were promised, since an engine had to be built smaller."""
        self._asked_more_time = 0.0
        self._parts = assemble(origin, self._systemd, self._on_change)

    async def run(self) -> ExitCode:
        """Serve until told to stop. Raises ConfigError, AddressTaken or NeverReady where serving is impossible."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        parts = self._parts
        async with self._listening() as url:
            await parts.incidents.start()  # not before: until the socket is ours, another daemon may use this state directory
            supervising = parts.engines.supervise()
            for task in supervising:
                task.add_done_callback(lambda _: self._news.set())
            await parts.quota.start()
            helpers = [
                _helper(parts.watchdog.run(), "watchdog"),
                _helper(self._tell_status(), "status"),
                _helper(self._origin.people.watch(), "people"),
                _helper(parts.quota.run(), "tokens of the day"),
            ]
            interval = watchdog_seconds(os.environ, os.getpid())
            if interval is not None:
                pinging = self._systemd.ping(interval, parts.watch.supervised)
                helpers.append(_helper(pinging, "systemd's watchdog"))
            try:
                return await self._serve(supervising, url)
            finally:
                tasks = [*helpers, *supervising, *self._reloads]
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                parts.reloader.close()
                parts.tokenizer.close()
                await parts.quota.close()
                await parts.convictions.flushed()
                await parts.plans.flushed()
                await parts.incidents.close()

    async def _serve(self, supervising: list[asyncio.Task[None]], url: str) -> ExitCode:
        self._parts.engines.start()
        while not self._stopping():
            if self._is_ready():
                self._announce(url)
            await self._hear_news(supervising)
        return await self._stop(supervising)

    async def _hear_news(self, supervising: list[asyncio.Task[None]]) -> None:
        await self._news.wait()
        self._news.clear()
        for task in supervising:
            if task.done():
                task.result()

    def _is_ready(self) -> bool:
        """Whether requests are served. Raises if no engine ever was and none will be."""
        hopeless = self._parts.engines.hopeless
        if hopeless and not self._announced:
            raise _never_ready(hopeless)
        return self._parts.engines.ready

    def _announce(self, url: str) -> None:
        """Say once that the daemon serves. Raises ConfigError where it cannot keep what people were promised."""
        problem = self._parts.streams.guarantee_problem() or ""
        if self._announced:
            if problem and problem != self._broken_promise:
                _log.error("guarantees cannot be kept by what engines hold now: %s", problem)
            self._broken_promise = problem
            return
        if problem:
            raise ConfigError(problem)
        self._announced = True
        self._systemd.ready()
        card = self._parts.streams.card()
        _log.info("ready: %s (%d tokens of context) at %s", card.name, card.context, url)
        gc.collect()
        gc.freeze()

    async def _stop(self, supervising: list[asyncio.Task[None]]) -> ExitCode:
        """Let running streams finish within the drain time, end the rest, see the engines gone."""
        parts = self._parts
        drain = parts.reloader.settings.server.drain_seconds
        self._systemd.stopping()
        self._systemd.more_time(drain + self._settings.supervisor.term_seconds + 2 * GOODBYE_SECONDS)
        _log.info("stopping: running streams may finish within %.0f s", drain)
        parts.streams.close()
        parts.engines.stop(drain)
        parts.streams.when_empty(parts.engines.observe)
        while not parts.engines.stopped:
            await self._hear_news(supervising)
            if self._signals > 1:
                _log.warning("stopping at once: told a second time")
                parts.streams.end_all(ShuttingDown)
                return ExitCode.FAILED
        parts.streams.end_all(ShuttingDown)
        return ExitCode.OK

    @asynccontextmanager
    async def _listening(self) -> AsyncGenerator[str]:
        """The HTTP port and the admin socket; gives the URL. Bound before an engine starts, so that a busy port costs nothing."""
        settings, state_dir = self._settings, self._origin.configuration.state_dir
        async with contextlib.AsyncExitStack() as closing:
            admin = closing.enter_context(listen_unix(state_dir))
            closing.callback(remove_unix, state_dir)
            listeners = listen_tcp(settings.host, settings.port)
            for listener in listeners:
                closing.enter_context(listener)
            fronts = serve(self._parts, self._origin, self._stopping)
            if fronts.problem is not None:
                _log.warning("no chat can be served, completions only: %s", fronts.problem)
            for each in (fronts.admin, fronts.people):
                await each.setup()
                closing.push_async_callback(_part, each)
            for listener in listeners:
                await web.SockSite(fronts.people, listener).start()
            await web.SockSite(fronts.admin, admin).start()
            port: int = listeners[0].getsockname()[1]
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            yield f"http://{host}:{port}"

    def _stopping(self) -> bool:
        return self._signals > 0

    def _on_stop_signal(self) -> None:
        self._signals += 1
        self._news.set()

    def _on_hangup(self) -> None:
        """SIGHUP means the same as `exl3ctl reload`, answered in the log; where our terminal has gone, it means that."""
        if self._terminal and not has_terminal():
            _log.info("the terminal was closed")
            self._on_stop_signal()
            return
        task = asyncio.create_task(self._parts.reloader.reload(), name="reload")
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)
        task.add_done_callback(_tell_failure)

    def _on_change(self, engine: str, view: View) -> None:
        self._news.set()
        mode = view.mode
        if isinstance(mode, Starting) and view.t - self._asked_more_time >= MORE_TIME_SECONDS:
            self._asked_more_time = view.t
            patience = view.patience or self._settings.supervisor.load_stall_seconds
            self._systemd.more_time(patience + MORE_TIME_SECONDS)
        if self._stopping() and self._parts.engines.done:
            self._parts.streams.end_all(ShuttingDown)
        which = f"{engine} " if self._parts.engines.several else ""
        self._systemd.status(f"{which}{name_of(mode)}: {view.words}")

    async def _tell_status(self) -> None:
        """Keep `systemctl status` true."""
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            status = self._parts.watch.status()
            if status.ready:
                counts = f"{status.running} running, {status.queued} queued"
                self._systemd.status(f"{status.model}: {counts}, {status.context} tokens of context")


def has_terminal() -> bool:
    """Whether this process has a controlling terminal that is still there."""
    try:
        descriptor = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    os.close(descriptor)
    return True


async def _part(runner: web.AppRunner) -> None:
    """End what is served. Handlers that cannot write their last words in time end without."""
    try:
        async with asyncio.timeout(GOODBYE_SECONDS):
            await runner.cleanup()
    except TimeoutError:
        _log.warning("some connections did not end within %.0f s and are cut off", GOODBYE_SECONDS)


def _helper(work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
    """Work beside serving. A bug in it must be seen and must not end anybody's stream."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_tell_failure)
    return task


def _tell_failure(task: asyncio.Task[None] | asyncio.Task[Reloaded]) -> None:
    if not task.cancelled() and (problem := task.exception()) is not None:
        _log.error("%s: ended by an error and is not done any more", task.get_name(), exc_info=problem)


def _never_ready(modes: list[Failed]) -> Exl3dError:
    """Why the daemon ends. Only deaths that came too often may be better at another start; for all else a person must act."""
    for mode in modes:
        if a_person_must_act(mode.kind):
            return ConfigError(mode.why)
    return NeverReady(modes[0].why)
