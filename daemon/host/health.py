"""Health and status: implements `ports.Watching`. Every answer is computed from evidence when asked; nothing is latched."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from daemon.core import supervision
from daemon.core.gpu import GpuReading
from daemon.core.ports import EngineStatus, Health, Overview, Status
from daemon.core.senses import Sense
from daemon.core.supervision_values import Mode, Ready, Starting
from daemon.host.questions import NoEngine, Questions
from daemon.host.streams import StreamRegistry
from daemon.host.supervisor import View, name_of

PROOF_SECONDS = 10.0
"""A token this young proves that the engine generates."""
PROBE_SECONDS = 15.0
"""How long a probe may take."""
FRESH_SECONDS = 5.0
"""The supervisor looks twice a second; an older view means that it does not run."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the readiness of one engine is decided from. Times in seconds."""

    mode: Mode
    view_age: float
    silence: float | None
    """How long nothing has moved although work is outstanding; None where nothing is outstanding or the engine is not ready."""
    stall_limit: float


def judge(evidence: Evidence) -> Health:
    """Whether an engine makes progress with requests."""
    if evidence.view_age > FRESH_SECONDS:
        return Health(ok=False, reason=f"the supervisor has not looked at the engine for {evidence.view_age:.0f} s")
    if not isinstance(evidence.mode, Ready):
        return Health(ok=False, reason=supervision.describe(evidence.mode))
    if evidence.silence is not None and evidence.silence > evidence.stall_limit / 2:
        return Health(ok=False, reason=f"no progress for {evidence.silence:.0f} s with requests running")
    return Health(ok=True, reason="requests are served")


def judge_all(engines: Sequence[Evidence], shut: str | None) -> Health:
    """Whether requests are accepted and some engine makes progress. `shut` says why people's wish keeps requests out."""
    if shut is not None:
        return Health(ok=False, reason=shut)
    return _any([judge(evidence) for evidence in engines])


def _any(answers: Sequence[Health]) -> Health:
    """Good if one is; the reasons of those that are not, else of the first."""
    ok = any(answer.ok for answer in answers)
    if len(answers) == 1 or all(answer.ok for answer in answers):
        return answers[0]
    bad = [f"engine {number}: {answer.reason}" for number, answer in enumerate(answers) if not answer.ok]
    return Health(ok=ok, reason="; ".join(["requests are served", *bad] if ok else bad))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the watchdog knows, for status. Each answers from memory."""

    senses: Callable[[], tuple[Sense, ...]]
    gpus: Callable[[], tuple[GpuReading, ...]]
    incidents: Callable[[], Mapping[str, int]]


class Watch:
    """Looks at the registry and at one supervisor an engine: `views` tells what each knows. `version` is for status, and so
    are `gpus`: the cards of each engine, by uuid.
    """

    def __init__(
        self,
        *,
        version: str,
        streams: StreamRegistry,
        questions: Questions,
        views: Sequence[Callable[[], View]],
        stall_limit: float,
        clock: Callable[[], float],
        surroundings: Surroundings | None = None,
        gpus: Sequence[tuple[str, ...]] = (),
    ) -> None:
        self._gpus = tuple(gpus)
        self._surroundings = surroundings or Surroundings(tuple, tuple, dict)
        self._version = version
        self._streams = streams
        self._questions = questions
        self._views = tuple(views)
        self._stall_limit = stall_limit
        self._clock = clock
        self._began = clock()
        self._probes: dict[int, asyncio.Task[Health]] = {}

    def ready(self) -> Health:
        """See ports.Watching."""
        evidence = [self._evidence(engine, view()) for engine, view in enumerate(self._views)]
        return judge_all(evidence, self._streams.shut)

    def supervised(self) -> bool:
        """Whether the supervisors' views are fresh: what the watchdog of systemd hangs on."""
        now = self._clock()
        return all(now - view().t <= FRESH_SECONDS for view in self._views)

    async def deep(self) -> Health:
        """See ports.Watching."""
        shallow = self.ready()
        if not shallow.ok:
            return shallow
        last = self._streams.last_token
        if last is not None and self._clock() - last <= PROOF_SECONDS:
            return Health(ok=True, reason="a token was generated a moment ago")
        if self._streams.running:
            return Health(ok=True, reason="requests are running and the engine makes progress")
        ready = [engine for engine, view in enumerate(self._views) if isinstance(view().mode, Ready)]
        return _any(await asyncio.gather(*(self._probed(engine) for engine in ready)))

    async def ask_idle(self) -> None:
        """Have each engine generate a token that has nothing to do: what the others do says nothing about it."""
        ready = [engine for engine, view in enumerate(self._views) if isinstance(view().mode, Ready)]
        await asyncio.gather(*(self._probed(engine) for engine in ready if not self._streams.outstanding(engine)))

    async def _probed(self, engine: int) -> Health:
        """Ask an engine for a token, once for all who want to know."""
        probe = self._probes.get(engine)
        if probe is None or probe.done():
            probe = self._probes[engine] = asyncio.create_task(self._ask(engine), name=f"health probe of engine {engine}")
        return await asyncio.shield(probe)

    async def _ask(self, engine: int) -> Health:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                detail = await self._questions.probe(engine)
        except TimeoutError:
            detail = f"the engine did not answer a probe within {PROBE_SECONDS:.0f} s"
        except NoEngine:
            detail = "the engine went away while it was asked for a token"
        return Health(ok=not detail, reason=detail or "the engine generated a token when asked")

    def _evidence(self, engine: int, view: View) -> Evidence:
        now = self._clock()
        silence = None
        if isinstance(view.mode, Ready) and self._streams.outstanding(engine):
            silence = now - view.mode.advanced
        return Evidence(view.mode, now - view.t, silence, view.patience or self._stall_limit)

    def status(self) -> Status:
        """See ports.Watching."""
        streams = self._streams
        card = streams.card()
        totals = streams.totals
        return Status(
            version=self._version,
            uptime=self._clock() - self._began,
            ready=self.ready().ok,
            model=card.name,
            context=card.context,
            engines=tuple(self._engine(engine, view()) for engine, view in enumerate(self._views)),
            running=streams.running,
            queued=streams.queued,
            requests=totals.requests,
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_tokens,
            generated_tokens=totals.generated_tokens,
            prefix=streams.prefixes.figures,
            shut=streams.shut or "",
            interruptions=totals.interruptions,
            suspensions=totals.suspensions,
            reprefilled_tokens=totals.reprefilled_tokens,
            convictions=totals.convictions,
            incidents=self._surroundings.incidents(),
            senses=self._surroundings.senses(),
            gpus=self._surroundings.gpus(),
            sharing=streams.sharing(),
            accepted_drafts=totals.accepted_drafts,
            rejected_drafts=totals.rejected_drafts,
        )

    def overview(self) -> Overview:
        """See ports.Watching."""
        return Overview(self.status(), self._streams.views())

    def _engine(self, engine: int, view: View) -> EngineStatus:
        mode, hello = view.mode, view.hello
        recovery = self._streams.recovery(engine)
        return EngineStatus(
            state=name_of(mode),
            detail=view.words or supervision.describe(mode),
            pid=view.pid,
            backend="" if hello is None else hello.backend,
            pool=self._streams.pool(engine),
            page=0 if hello is None else hello.limits.page,
            restarts=view.restarts,
            uptime=self._clock() - mode.since if isinstance(mode, Starting | Ready) else 0.0,
            loading=mode.done / mode.total if isinstance(mode, Starting) and mode.total else None,
            interval=0 if hello is None else hello.limits.interval,
            recovering=recovery.waiting,
            recovery_seconds=max(recovery.waited, default=0.0),
            gpus=self._gpus[engine] if self._gpus else (),
        )
