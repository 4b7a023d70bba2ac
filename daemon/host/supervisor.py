"""The supervisor of one engine: runs `core.supervision.decide`, carries its effects out, feeds back what comes of them.

One task owns the state. Reports of a step go straight to the registry, because they are data and not decisions.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from daemon.core import supervision
from daemon.core.faults import Channel, Text, judge
from daemon.core.faults_values import Label
from daemon.core.incidents import Incidents
from daemon.core.progress import Progress
from daemon.core.supervision_events import (
    Ask,
    CloseIncident,
    Condemned,
    Effect,
    Event,
    Exited,
    Fell,
    Finish,
    GiveUp,
    Greeted,
    GrowIncident,
    Interrupt,
    Kill,
    LinkLost,
    Observed,
    OpenIncident,
    Progressed,
    Rejected,
    Serve,
    Spawn,
    SpawnFailed,
    Stuck,
    Terminate,
    Ticked,
    Vacated,
)
from daemon.core.supervision_values import FailedKind, Machine, Mark, Mode, Policy, Ready, Starting
from daemon.core.wire import PROTOCOL, Configure, Drain, Fatal, Hello, Loading, Report, Step
from daemon.host.engine_process import EngineProcess, process_state
from daemon.host.recovery import RecoveryFigures
from daemon.host.scribe import Cost, Scribe
from daemon.host.vacancy import Vacancy
from daemon.host.witness import Unwatched, Witness
from daemon.host.workforce import Fall, Workforce

_log = logging.getLogger("exl3d.supervisor")

LOOK_SECONDS = 0.5
"""Between two looks at the progress page."""
MEMORY_LOOK_SECONDS = 0.25
"""Between two looks at the memory of a dead engine."""
COST_SECONDS = 120.0
"""How long after an incident those who were interrupted are followed, for its record."""
COST_LOOK_SECONDS = 0.25


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
    words: str = ""
    """What people should know: the mode in a sentence, a size smaller than configured, what they are advised to do."""
    patience: float | None = None
    """How long no counter may stand still in the present phase; None where nothing is expected to move."""


class Supervisor:
    """Supervises the engines of place `engine`, started by `argv`, each told `configure` first. `on_change` hears of each mode.

    `name` is what the log calls them; `environment` is added to ours in their processes.
    Without `vacancy` nobody can tell how much GPU memory is used, and no engine waits for it. Without `incidents` nothing is
    written down; `recovery` tells what the last death of an engine cost its requests.
    """

    def __init__(
        self,
        *,
        engine: int,
        argv: Sequence[str],
        configure: Configure,
        policy: Policy,
        workforce: Workforce,
        on_change: Callable[[View], None],
        name: str = "engine",
        environment: Mapping[str, str] | None = None,
        incidents: Incidents | None = None,
        vacancy: Vacancy | None = None,
        witness: Witness | None = None,
        recovery: Callable[[int], RecoveryFigures] | None = None,
        clock: Callable[[], float] = time.monotonic,
        luck: Callable[[], float] = random.random,
    ) -> None:
        self._engine = engine
        self._argv = tuple(argv)
        self._name = name
        self._environment = environment
        self._configure = configure
        self._policy = replace(
            policy,
            engine=configure.engine,
            context=configure.context,
            vram_wait=policy.vram_wait if vacancy is not None else 0.0,
        )
        self._workforce = workforce
        self._on_change = on_change
        self._vacancy = vacancy
        self._witness: Witness = witness or Unwatched()
        self._recovery = recovery
        self._interrupted = False
        """Whether requests wait for the engine that serves next."""
        self._scribe = Scribe(engine, incidents)
        self._clock = clock
        self._luck = luck
        self._machine = Machine()
        self._events: deque[Event] = deque()
        self._woken = asyncio.Event()
        self._process: EngineProcess | None = None
        self._hello: Hello | None = None
        self._progress: Progress | None = None
        self._last_page: Progress | None = None
        """The progress page of the engine that ended last, as it left it."""
        self._gone_at = clock()
        self._looked = clock()
        self._since = clock()
        self._over = False
        """Nobody is followed any more."""
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
            words=supervision.describe_all(self._machine),
            patience=supervision.patience(self._machine, self._policy),
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
            self._over = True
            await self._scribe.finish()

    async def _next_event(self) -> Event:
        """The next event, or a look at the engine or the clock when none comes."""
        while not self._events:
            now = self._clock()
            waits = supervision.awaits_memory(self._machine.mode)
            look = self._looked + (MEMORY_LOOK_SECONDS if waits else LOOK_SECONDS)
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
        if supervision.awaits_memory(self._machine.mode) and (self._vacancy is None or self._vacancy.vacated(self._gone_at)):
            return Vacated(now)
        process = self._process
        boot = supervision.boot_of(self._machine.mode)
        if process is None or boot is None:
            return Ticked(now)
        self._progress = process.progress()
        if self._vacancy is not None:
            self._vacancy.notice()
        return Observed(now, boot, _mark(self._progress), self._workforce.outstanding(self._engine))

    def observe(self) -> None:
        """Look now: something that may matter to a drain has changed."""
        self.post(self._look(self._clock()))

    async def _decide(self, event: Event) -> None:
        before = self._machine
        self._machine, effects = supervision.decide(before, event, self._policy)
        mode = self._machine.mode
        changed = type(mode) is not type(before.mode) or supervision.boot_of(mode) != supervision.boot_of(before.mode)
        if changed:
            self._since = self._clock()
            _log.info("%s: %s -> %s: %s", self._name, name_of(before.mode), name_of(mode), supervision.describe(mode))
        for effect in effects:
            await self._carry_out(effect, before.mode)
        if supervision.boot_of(mode) is None:
            self._process = None
        if changed or supervision.describe_all(self._machine) != supervision.describe_all(before):
            self._on_change(self.view())

    async def _carry_out(self, effect: Effect, before: Mode) -> None:
        match effect:
            case OpenIncident():
                await self._open_incident(effect, before)
            case GrowIncident(seen):
                _log.info("%s: %s", self._name, seen)
                self._scribe.grow(seen)
            case CloseIncident(outcome):
                self._close_incident(outcome)
            case Spawn():
                self._compare_memory(before)
                await self._spawn(effect)
            case Ask() | Terminate() | Kill() | Serve() | Stuck():
                if self._process is not None:
                    self._push(effect, self._process)
            case Interrupt() | Fell() | GiveUp():
                self._tell(effect)
            case Finish():
                self._stopped.set()

    async def _open_incident(self, incident: OpenIncident, before: Mode) -> None:
        _log.warning("%s: %s: %s; %s", self._name, incident.label.value, incident.seen, incident.decided)
        if incident.label is Label.ENGINE_HANG and isinstance(before, Starting | Ready):
            phase = before.mark.phase.value
            self._witness.hung(self._engine, before.boot, phase, self._clock() - before.advanced)
        await self._scribe.open(incident, _facts(self._progress if self._process is None else self._process.progress()))

    def _close_incident(self, outcome: str) -> None:
        _log.info("%s: incident over: %s", self._name, outcome)
        served = isinstance(self._machine.mode, Ready)
        self._scribe.close(outcome, self._cost if served and self._interrupted else None)
        self._interrupted = self._interrupted and not served

    def _push(self, effect: Ask | Terminate | Kill | Serve | Stuck, process: EngineProcess) -> None:
        match effect:
            case Ask():
                process.link.send(Drain())
            case Terminate(boot):
                self._witness.own_kill(self._engine, boot)
                process.terminate()
            case Kill(boot):
                self._witness.own_kill(self._engine, boot)
                process.kill()
            case Serve():
                if self._hello is not None:
                    self._workforce.engine_up(self._engine, process.link, self._hello)
            case Stuck():
                words = f"process {process.pid} is in state {process_state(process.pid)} {self._policy.kill:.0f} s after SIGKILL"
                _log.critical("%s: %s", words, supervision.describe(self._machine.mode))
                self._scribe.grow(words)

    def _tell(self, effect: Interrupt | Fell | GiveUp) -> None:
        """Let those who have requests know."""
        match effect:
            case Interrupt(why):
                self._interrupted = True
                self._workforce.engine_down(self._engine, why)
            case Fell(_, why, accused):
                page = self._last_page
                prefilling, in_flight = (None, ()) if page is None else (page.prefilling, page.in_flight)
                self._workforce.engine_fell(self._engine, Fall(why, accused, prefilling, in_flight))
            case GiveUp(why, kind):
                _log.error(
                    "no %s will be started: %s%s", self._name, why, self._last_words() if kind is FailedKind.BUDGET else ""
                )
                self._workforce.give_up(self._engine, why)

    def _last_words(self) -> str:
        words = "" if self._process is None else self._process.last_words()
        return f"\n{words}" if words else ""

    def _compare_memory(self, before: Mode) -> None:
        """Before an engine comes: what is used without it is the measure, unless the last one's memory is still missing."""
        if self._vacancy is None:
            return
        if self._vacancy.vacated(self._gone_at):
            self._vacancy.remember(self._clock())
        elif supervision.awaits_memory(before):
            words = self._vacancy.words()
            _log.warning("GPU memory did not come back: %s", words)
            self._scribe.grow(words)

    async def _spawn(self, effect: Spawn) -> None:
        boot = effect.boot
        self._process = self._hello = self._progress = None
        self._stopped.clear()
        self._workforce.engine_coming(self._engine)
        try:
            self._process = await EngineProcess.start(
                self._argv,
                on_reports=lambda reports: self._hear(boot, reports),
                on_lost=lambda why: self.post(LinkLost(self._clock(), boot, why)),
                on_exit=lambda code: self._exited(boot, code),
                environment=self._environment,
            )
        except OSError as problem:
            self.post(SpawnFailed(self._clock(), boot, str(problem), self._luck()))
            return
        self._witness.spawned(self._engine, boot, self._process.pid)
        self._process.link.send(_configured(self._configure, effect))

    def _exited(self, boot: int, code: int) -> None:
        """The process of `boot` is gone; what it left on its progress page says who was in flight."""
        self._gone_at = self._clock()
        self.post(Exited(self._gone_at, boot, code, self._luck()))
        process = self._process
        if process is not None:
            self._last_page = process.progress()
            self._witness.gone(self._engine, boot, process.pid, code)

    async def _cost(self) -> Cost:
        """What the incident that ends now cost people: known when the last of them got a token, or new trouble came."""
        if self._recovery is None:
            return Cost()
        latest = self._clock() + COST_SECONDS
        figures = self._recovery(self._engine)
        while figures.waiting and self._clock() < latest and not self._over:
            await asyncio.sleep(COST_LOOK_SECONDS)
            if not isinstance(self._machine.mode, Ready):
                break  # the figures may be those of the next death already
            figures = self._recovery(self._engine)
        return Cost(figures.waited, figures.reprefilled)

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
                    _log.error("%s ends itself (%s): %s%s", self._name, kind.value, detail, f"\n{trace}" if trace else "")
                    verdict = judge(Text(Channel.PYTHON_EXCEPTION, trace or detail))
                    self.post(Condemned(self._clock(), boot, kind, detail, verdict))
                    self._witness.fatal(self._engine, boot, report)

    def _greet(self, boot: int, hello: Hello) -> None:
        if hello.protocol != PROTOCOL:
            words = f"the engine speaks protocol {hello.protocol}, this daemon {PROTOCOL}: install both from one version"
            self.post(Rejected(self._clock(), boot, words))
            return
        self._hello = hello
        self.post(Greeted(self._clock(), boot, hello.limits.pages * hello.limits.page))


def _mark(progress: Progress | None) -> Mark | None:
    if progress is None:
        return None
    return Mark(progress.step, progress.prompt_tokens, progress.generated_tokens, progress.phase, progress.prefilling)


def _configured(configure: Configure, spawn: Spawn) -> Configure:
    """What this engine is told to load."""
    return configure if spawn.smaller is None else msgspec.structs.replace(configure, engine=spawn.smaller)


def _facts(page: Progress | None) -> tuple[str, ...]:
    """What an incident tells about the engine's last moment: figures only."""
    if page is None:
        return ()
    prefill = "" if page.prefilling is None else ", one of them prefilling"
    tokens = f"{page.prompt_tokens} prompt tokens and {page.generated_tokens} generated ones"
    return (
        f"progress page: step {page.step}, phase {page.phase.value}, {len(page.in_flight)} requests in flight{prefill}, {tokens}",
    )


def name_of(mode: Mode) -> str:
    """A mode as people see it."""
    return type(mode).__name__.lower()
