"""The supervisor of one engine: runs `core.supervision.decide`, carries its effects out, feeds back what comes of them.

One task owns the state. Reports of a step go straight to the registry, because they are data and not decisions.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemon.core import supervision
from daemon.core.progress import Progress
from daemon.core.supervision_values import (
    Ask,
    Condemned,
    Effect,
    Event,
    Exited,
    FailedKind,
    Finish,
    GiveUp,
    Greeted,
    Interrupt,
    Kill,
    LinkLost,
    Machine,
    Mark,
    Mode,
    Observed,
    Policy,
    Progressed,
    Rejected,
    Serve,
    Spawn,
    SpawnFailed,
    Terminate,
    Ticked,
)
from daemon.core.wire import PROTOCOL, Configure, Drain, Fatal, Hello, Loading, Report, Step
from daemon.host.engine_process import EngineProcess
from daemon.host.workforce import Workforce

_log = logging.getLogger("exl3d.supervisor")

LOOK_SECONDS = 0.5
"""Between two looks at the progress page."""


@dataclass(frozen=True, slots=True)
class View:
    """What the supervisor knows now, for health, status and systemd. `t` is when it last looked."""

    t: float
    mode: Mode
    restarts: int
    pid: int | None
    hello: Hello | None
    progress: Progress | None
    since: float
    """When the present mode began."""


class Supervisor:
    """Supervises the engines of place `engine`, started by `argv`, each told `configure` first. `on_change` hears of each mode."""

    def __init__(
        self,
        *,
        engine: int,
        argv: Sequence[str],
        configure: Configure,
        policy: Policy,
        workforce: Workforce,
        on_change: Callable[[View], None],
        clock: Callable[[], float] = time.monotonic,
        luck: Callable[[], float] = random.random,
    ) -> None:
        self._engine = engine
        self._argv = tuple(argv)
        self._configure = configure
        self._policy = policy
        self._workforce = workforce
        self._on_change = on_change
        self._clock = clock
        self._luck = luck
        self._machine = Machine()
        self._events: deque[Event] = deque()
        self._woken = asyncio.Event()
        self._process: EngineProcess | None = None
        self._hello: Hello | None = None
        self._progress: Progress | None = None
        self._looked = clock()
        self._since = clock()
        self._stopped = asyncio.Event()

    def post(self, event: Event) -> None:
        """Let something be decided about."""
        self._events.append(event)
        self._woken.set()

    async def stopped(self) -> None:
        """Wait until no engine is there and none is wanted."""
        await self._stopped.wait()

    def view(self) -> View:
        """What is known now."""
        process = self._process
        boots = self._machine.history.boots
        return View(
            t=self._looked,
            mode=self._machine.mode,
            restarts=max(0, boots - 1),
            pid=None if process is None else process.pid,
            hello=self._hello,
            progress=self._progress,
            since=self._since,
        )

    async def run(self) -> None:
        """Decide about events as they come, until cancelled. An engine that is still there then is killed."""
        try:
            while True:
                event = await self._next_event()
                await self._decide(event)
        finally:
            if self._process is not None:
                self._process.kill()

    async def _next_event(self) -> Event:
        """The next event, or a look at the engine or the clock when none comes."""
        while not self._events:
            now = self._clock()
            look = self._looked + LOOK_SECONDS
            due = supervision.deadline(self._machine.mode)
            if due is not None and now >= due:
                return Ticked(now)
            if now >= look:
                return self._look(now)
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                # not wait_for, which on Python 3.11 loses a cancellation that comes together with the event
                async with asyncio.timeout((look if due is None else min(due, look)) - now):
                    await self._woken.wait()
        return self._events.popleft()

    def _look(self, now: float) -> Event:
        self._looked = now
        process = self._process
        boot = supervision.boot_of(self._machine.mode)
        if process is None or boot is None:
            return Ticked(now)
        self._progress = process.progress()
        return Observed(now, boot, _mark(self._progress), self._workforce.outstanding(self._engine))

    def observe(self) -> None:
        """Look now: something that may matter to a drain has changed."""
        self.post(self._look(self._clock()))

    async def _decide(self, event: Event) -> None:
        before = self._machine.mode
        self._machine, effects = supervision.decide(self._machine, event, self._policy)
        mode = self._machine.mode
        changed = type(mode) is not type(before) or supervision.boot_of(mode) != supervision.boot_of(before)
        if changed:
            self._since = self._clock()
            _log.info("engine: %s -> %s: %s", name_of(before), name_of(mode), supervision.describe(mode))
        for effect in effects:
            await self._carry_out(effect)
        if supervision.boot_of(mode) is None:
            self._process = None
        if changed or supervision.describe(mode) != supervision.describe(before):
            self._on_change(self.view())

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Spawn(boot):
                await self._spawn(boot)
            case Ask() | Terminate() | Kill() | Serve():
                if self._process is not None:
                    self._push(effect, self._process)
            case Interrupt(why):
                self._workforce.engine_down(self._engine, why)
            case GiveUp(why, kind):
                _log.error("no engine will be started: %s%s", why, "" if kind is FailedKind.CONFIG else self._last_words())
                self._workforce.give_up(self._engine, why)
            case Finish():
                self._stopped.set()

    def _push(self, effect: Ask | Terminate | Kill | Serve, process: EngineProcess) -> None:
        match effect:
            case Ask():
                process.link.send(Drain())
            case Terminate():
                process.terminate()
            case Kill():
                process.kill()
            case Serve():
                if self._hello is not None:
                    self._workforce.engine_up(self._engine, process.link, self._hello)

    def _last_words(self) -> str:
        words = "" if self._process is None else self._process.last_words()
        return f"\n{words}" if words else ""

    async def _spawn(self, boot: int) -> None:
        self._hello = self._progress = None
        self._stopped.clear()
        self._workforce.engine_coming(self._engine)
        try:
            self._process = await EngineProcess.start(
                self._argv,
                on_reports=lambda reports: self._hear(boot, reports),
                on_lost=lambda why: self.post(LinkLost(self._clock(), boot, why)),
                on_exit=lambda code: self.post(Exited(self._clock(), boot, code, self._luck())),
            )
        except OSError as problem:
            self.post(SpawnFailed(self._clock(), boot, str(problem), self._luck()))
            return
        self._process.link.send(self._configure)

    def _hear(self, boot: int, reports: list[Report]) -> None:
        mode = self._machine.mode
        serving = supervision.takes_work(mode) and supervision.boot_of(mode) == boot
        for report in reports:
            match report:
                case Step():
                    if serving:
                        self._workforce.step(self._engine, report)
                case Loading(stage, done, total):
                    self.post(Progressed(self._clock(), boot, stage, done, total))
                case Hello():
                    self._greet(boot, report)
                case Fatal(kind, detail, trace):
                    _log.error("engine ends itself (%s): %s%s", kind.value, detail, f"\n{trace}" if trace else "")
                    self.post(Condemned(self._clock(), boot, kind, detail))

    def _greet(self, boot: int, hello: Hello) -> None:
        if hello.protocol != PROTOCOL:
            words = f"the engine speaks protocol {hello.protocol}, this daemon {PROTOCOL}: install both from one version"
            self.post(Rejected(self._clock(), boot, words))
            return
        self._hello = hello
        self.post(Greeted(self._clock(), boot))


def _mark(progress: Progress | None) -> Mark | None:
    if progress is None:
        return None
    return Mark(progress.step, progress.prompt_tokens, progress.generated_tokens, progress.phase.value)


def name_of(mode: Mode) -> str:
    """A mode as people see it."""
    return type(mode).__name__.lower()
