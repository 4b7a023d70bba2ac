"""Health and status: implements `ports.Watching`. Every answer is computed from evidence when asked; nothing is latched."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from daemon.core import supervision
from daemon.core.ports import EngineStatus, Health, Status
from daemon.core.supervision_values import Backoff, Draining, Failed, Mode, Ready, Starting, Stopped, Stopping
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
    """What readiness is decided from. Times in seconds."""

    mode: Mode
    accepting: bool
    view_age: float
    silence: float | None
    """How long nothing has moved although work is outstanding; None where nothing is outstanding or the engine is not ready."""
    stall_limit: float


def judge(evidence: Evidence) -> Health:
    """Whether requests are accepted and the engine makes progress."""
    if evidence.view_age > FRESH_SECONDS:
        return Health(ok=False, reason=f"the supervisor has not looked at the engine for {evidence.view_age:.0f} s")
    match evidence.mode:
        case Ready():
            if not evidence.accepting:
                return Health(ok=False, reason="the daemon is shutting down")
            if evidence.silence is not None and evidence.silence > evidence.stall_limit / 2:
                return Health(ok=False, reason=f"no progress for {evidence.silence:.0f} s with requests running")
            return Health(ok=True, reason="requests are served")
        case Stopped() | Starting() | Draining() | Stopping() | Backoff() | Failed():
            return Health(ok=False, reason=supervision.describe(evidence.mode))


class Watch:
    """Looks at the supervisor and the registry. `version`, `model` are for status."""

    def __init__(
        self,
        *,
        version: str,
        streams: StreamRegistry,
        questions: Questions,
        view: Callable[[], View],
        stall_limit: float,
        clock: Callable[[], float],
    ) -> None:
        self._version = version
        self._streams = streams
        self._questions = questions
        self._view = view
        self._stall_limit = stall_limit
        self._clock = clock
        self._began = clock()
        self._probe: asyncio.Task[str] | None = None

    def ready(self) -> Health:
        """See ports.Watching."""
        return judge(self._evidence())

    def supervised(self) -> bool:
        """Whether the supervisor's view is fresh: what the watchdog of systemd hangs on."""
        return self._clock() - self._view().t <= FRESH_SECONDS

    async def deep(self) -> Health:
        """See ports.Watching."""
        shallow = self.ready()
        if not shallow.ok:
            return shallow
        last = self._streams.last_token
        if last is not None and self._clock() - last <= PROOF_SECONDS:
            return Health(ok=True, reason="a token was generated a moment ago")
        if self._streams.outstanding(0):
            return Health(ok=True, reason="requests are running and the engine makes progress")
        return await self._probed()

    async def _probed(self) -> Health:
        """Ask the engine for a token, once for all who want to know."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._ask(), name="health probe")
        detail = await asyncio.shield(self._probe)
        return Health(ok=not detail, reason=detail or "the engine generated a token when asked")

    async def _ask(self) -> str:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                return await self._questions.probe()
        except TimeoutError:
            return f"the engine did not answer a probe within {PROBE_SECONDS:.0f} s"
        except NoEngine:
            return "the engine went away while it was asked for a token"

    def _evidence(self) -> Evidence:
        now = self._clock()
        view = self._view()
        silence = None
        if isinstance(view.mode, Ready) and self._streams.outstanding(0):
            silence = now - view.mode.advanced
        return Evidence(view.mode, self._streams.accepting, now - view.t, silence, self._stall_limit)

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
            engines=(self._engine(self._view()),),
            running=streams.running,
            queued=streams.queued,
            requests=totals.requests,
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_tokens,
            generated_tokens=totals.generated_tokens,
            prefix=streams.prefixes.figures,
        )

    def _engine(self, view: View) -> EngineStatus:
        mode, hello = view.mode, view.hello
        return EngineStatus(
            state=name_of(mode),
            detail=supervision.describe(mode),
            pid=view.pid,
            backend="" if hello is None else hello.backend,
            pool=self._streams.pool(0) if isinstance(mode, Ready | Draining) else None,
            page=0 if hello is None else hello.limits.page,
            restarts=view.restarts,
            uptime=self._clock() - mode.since if isinstance(mode, Starting | Ready) else 0.0,
            loading=mode.done / mode.total if isinstance(mode, Starting) and mode.total else None,
        )
