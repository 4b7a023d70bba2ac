"""`exl3d`: the composition root of the front process. Joins `host` and `api`; imported by nobody."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from aiohttp import web

from daemon.api.admin import build_admin
from daemon.api.application import build, runner
from daemon.chat.prompt import PromptBuilder
from daemon.core import supervision
from daemon.core.errors import ConfigError, Exl3dError, ShuttingDown
from daemon.core.exit_codes import ExitCode
from daemon.core.ports import ModelCard
from daemon.core.settings import BackendKind, Settings
from daemon.core.supervision_values import (
    Backoff,
    Draining,
    Failed,
    FailedKind,
    Policy,
    Ready,
    StartAsked,
    Starting,
    StopAsked,
    Stopped,
    Stopping,
    ThenStop,
)
from daemon.core.wire import Configure
from daemon.host.command_line import parse_options
from daemon.host.crew import Crew
from daemon.host.engine_process import ENGINE_ARGV
from daemon.host.health import Watch
from daemon.host.listening import listen_tcp, listen_unix, remove_unix
from daemon.host.logs import log_request, set_up_logging
from daemon.host.model_directory import Reading, read_model_directory
from daemon.host.notify import Systemd, notifier_for, watchdog_seconds
from daemon.host.questions import Questions
from daemon.host.settings_file import Configuration, read_configuration
from daemon.host.streams import StreamRegistry
from daemon.host.supervisor import Supervisor, View, name_of
from daemon.host.tokenizer_pool import TokenizerPool

_log = logging.getLogger("exl3d")

DEMO = Path("models") / "smollm2-135m-instruct"
"""In the state directory; made by `exl3ctl model demo`, which writes its marker last."""
DEMO_MARKER = "exl3d-demo.json"
GOODBYE_SECONDS = 5.0
"""How long handlers may take to write their last event after their streams have ended."""
STATUS_SECONDS = 5.0
MORE_TIME_SECONDS = 5.0
"""Least time between two requests for more time to load. Each reaches beyond the silence after which the supervisor itself
takes the load for hung, so that it can replace that engine before systemd ends the whole service."""


def main() -> None:
    """The console script."""
    version = metadata.version("exl3d")
    options = parse_options(sys.argv[1:], version)
    try:
        configuration = read_configuration(options.config, options.overrides, os.environ)
        set_up_logging(configuration.settings.log, journal="JOURNAL_STREAM" in os.environ)
        reading = _read_model(configuration)
        with asyncio.Runner(loop_factory=_loop_factory()) as loop:
            code = loop.run(Daemon(configuration, reading, version).run())
    except ConfigError as problem:
        _complain(str(problem))
        code = ExitCode.CONFIG
    except Exl3dError as problem:
        _complain(str(problem))
        code = ExitCode.FAILED
    sys.exit(code)


def _complain(words: str) -> None:
    sys.stderr.write(f"exl3d: {words}\n")


def _loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    """Uvloop where it is installed: it halves what a token costs on its way through the front."""
    try:
        import uvloop  # noqa: PLC0415  # absent where it does not build
    except ImportError:
        return None
    return uvloop.Loop


def _read_model(configuration: Configuration) -> Reading:
    settings = configuration.settings
    weights = settings.engine.backend is not BackendKind.NULL
    if settings.model is not None:
        return read_model_directory(Path(settings.model), settings.model_name, weights=weights)
    demo = configuration.state_dir / DEMO
    if not (demo / DEMO_MARKER).is_file():
        raise ConfigError(
            "no model is configured. Put `model: /path/to/a/model/directory` into config.yaml,"
            f" or run `exl3ctl model demo` to make a small one ready in {demo}"
        )
    return read_model_directory(demo, settings.model_name)


def _card(settings: Settings, reading: Reading) -> ModelCard:
    model = reading.model
    return ModelCard(
        name=model.name,
        aliases=tuple(settings.aliases),
        context=min(model.context, settings.context or model.context),
        eos=model.eos,
        vocabulary=model.vocabulary,
        architecture=model.architecture,
        defaults=model.defaults,
        created=int(time.time()),
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """What one daemon consists of."""

    tokenizer: TokenizerPool
    streams: StreamRegistry
    supervisor: Supervisor
    watch: Watch


class NeverReady(Exl3dError):
    """No engine ever served, and none will: the daemon ends with exit code 1."""


class Daemon:
    """One run of the front process, from binding the port to the last goodbye."""

    def __init__(self, configuration: Configuration, reading: Reading, version: str) -> None:
        self._configuration = configuration
        self._settings = configuration.settings
        self._reading = reading
        self._version = version
        self._systemd = Systemd(notifier_for(os.environ))
        self._news = asyncio.Event()
        """A signal came, the engine's state changed, or the supervisor ended."""
        self._signals = 0
        self._announced = False
        self._asked_more_time = 0.0
        self._parts = self._build()

    def _build(self) -> _Parts:
        settings, reading = self._settings, self._reading
        tokenizer = TokenizerPool(reading.model, reading.tokenizer)
        card = _card(settings, reading)
        streams = StreamRegistry(
            card=card,
            vocabulary=tokenizer.vocabulary,
            special=tokenizer.special,
            settings=settings.server,
            on_end=log_request,
            clock=time.monotonic,
        )
        questions = Questions()
        supervisor = Supervisor(
            engine=0,
            argv=ENGINE_ARGV,
            configure=Configure(reading.model.path, card.context, settings.engine, str(self._configuration.state_dir)),
            policy=Policy.of(settings.supervisor),
            workforce=Crew(streams, questions),
            on_change=self._on_change,
        )
        watch = Watch(
            version=self._version,
            streams=streams,
            questions=questions,
            view=supervisor.view,
            stall_limit=settings.supervisor.step_stall_seconds,
            clock=time.monotonic,
        )
        return _Parts(tokenizer, streams, supervisor, watch)

    async def run(self) -> ExitCode:
        """Serve until told to stop. Raises ConfigError, AddressTaken or NeverReady where serving is impossible."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        parts = self._parts
        async with self._listening() as url:
            supervising = asyncio.create_task(parts.supervisor.run(), name="supervisor")
            supervising.add_done_callback(lambda _: self._news.set())
            helpers = [asyncio.create_task(self._tell_status(), name="status")]
            interval = watchdog_seconds(os.environ, os.getpid())
            if interval is not None:
                pinging = self._systemd.ping(interval, parts.watch.supervised)
                helpers.append(asyncio.create_task(pinging, name="watchdog"))
            try:
                return await self._serve(supervising, url)
            finally:
                for task in (*helpers, supervising):
                    task.cancel()
                await asyncio.wait([*helpers, supervising])
                parts.tokenizer.close()

    async def _serve(self, supervising: asyncio.Task[None], url: str) -> ExitCode:
        self._parts.supervisor.post(StartAsked(time.monotonic()))
        while self._signals == 0:
            if self._is_ready():
                self._announce(url)
            await self._hear_news(supervising)
        return await self._stop(supervising)

    async def _hear_news(self, supervising: asyncio.Task[None]) -> None:
        await self._news.wait()
        self._news.clear()
        if supervising.done():
            supervising.result()

    def _is_ready(self) -> bool:
        """Whether requests are served. Raises if no engine ever was and none will be."""
        match self._parts.supervisor.view().mode:
            case Ready():
                return True
            case Failed(kind, why) if not self._announced:
                raise ConfigError(why) if kind is FailedKind.CONFIG else NeverReady(why)
            case Stopped() | Starting() | Draining() | Stopping() | Backoff() | Failed():
                return False

    def _announce(self, url: str) -> None:
        """Say once that the daemon serves."""
        if self._announced:
            return
        self._announced = True
        self._systemd.ready()
        card = self._parts.streams.card()
        _log.info("ready: %s (%d tokens of context) at %s", card.name, card.context, url)
        gc.collect()
        gc.freeze()

    async def _stop(self, supervising: asyncio.Task[None]) -> ExitCode:
        """Let running streams finish within the drain time, end the rest, see the engine gone."""
        parts = self._parts
        drain = self._settings.server.drain_seconds
        self._systemd.stopping()
        self._systemd.more_time(drain + self._settings.supervisor.term_seconds + 2 * GOODBYE_SECONDS)
        _log.info("stopping: running streams may finish within %.0f s", drain)
        parts.streams.close()
        parts.supervisor.post(StopAsked(time.monotonic(), drain))
        parts.streams.when_empty(parts.supervisor.observe)
        while not isinstance(parts.supervisor.view().mode, Stopped):
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
        settings, parts = self._settings, self._parts
        admin = listen_unix(self._configuration.state_dir)
        try:
            listeners = listen_tcp(settings.host, settings.port)
        except BaseException:
            admin.close()
            raise
        prompts = PromptBuilder(self._reading.model)
        if prompts.problem is not None:
            _log.warning("no chat can be served, completions only: %s", prompts.problem)
        app = build(
            serving=parts.streams,
            watching=parts.watch,
            tokenizing=parts.tokenizer,
            prompts=prompts,
            added=self._reading.model.added,
            settings=settings,
            version=self._version,
        )
        runners = [runner(app), web.AppRunner(build_admin(parts.watch), access_log=None)]
        for each in runners:
            await each.setup()
        for listener in listeners:
            await web.SockSite(runners[0], listener).start()
        await web.SockSite(runners[1], admin).start()
        port: int = listeners[0].getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        try:
            yield f"http://{host}:{port}"
        finally:
            for each in runners:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GOODBYE_SECONDS):
                        await each.cleanup()
            remove_unix(self._configuration.state_dir)

    def _on_signal(self) -> None:
        self._signals += 1
        self._news.set()

    def _on_change(self, view: View) -> None:
        self._news.set()
        mode = view.mode
        if isinstance(mode, Starting) and view.t - self._asked_more_time >= MORE_TIME_SECONDS:
            self._asked_more_time = view.t
            self._systemd.more_time(self._settings.supervisor.load_stall_seconds + MORE_TIME_SECONDS)
        if isinstance(mode, Stopping) and isinstance(mode.after, ThenStop):
            self._parts.streams.end_all(ShuttingDown)
        self._systemd.status(f"{name_of(mode)}: {supervision.describe(mode)}")

    async def _tell_status(self) -> None:
        """Keep `systemctl status` true."""
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            status = self._parts.watch.status()
            if status.ready:
                counts = f"{status.running} running, {status.queued} queued"
                self._systemd.status(f"{status.model}: {counts}, {status.context} tokens of context")


if __name__ == "__main__":
    main()
