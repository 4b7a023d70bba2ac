"""Sixteen streams through a daemon whose engine is made to fail again and again, and what each of them heard."""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec

from daemon.core.settings import SupervisorSettings
from ops.admin_socket import fetch_status, socket_path
from ops.bench import faults, journal
from ops.bench.client import session_for
from ops.bench.faults import FaultKind
from ops.bench.hearing import Heard, completion, hear
from ops.bench.processes import RunningDaemon, Setup, daemon, end_of
from ops.errors import BenchFailed

_POLL = 0.02
_PATIENCE = 240.0
"""Seconds after which something that was waited for counts as lost."""

BUDGET = SupervisorSettings(
    restarts=1000,
    restart_window_minutes=600.0,
    backoff_seconds=0.05,
    backoff_limit_seconds=0.1,
    term_seconds=1.0,
)
"""The supervisor's settings under torment: as many restarts as it takes, and no long waits between them. When an engine counts
as hung is measured, see `Plan.stall`.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to one daemon."""

    name: str
    setup: Setup
    prompts: Iterable[tuple[int, ...]]
    """Prompts in ids, one after the other."""
    tokens: int
    """Length of each answer."""
    streams: int
    faults: Sequence[FaultKind]
    seed: int
    stall: float
    """Seconds without progress after which an engine counts as hung: well above what this machine needs for a step just now."""
    longest_wait: float = 1.5
    """Seconds within which a fault comes after all streams flow again."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that was made."""

    kind: FaultKind
    t: float
    """When the engine failed, in seconds since the epoch."""
    recovery: journal.Recovery | None
    """None of a fault that the engine contained."""


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    heard: list[Heard] = field(default_factory=list[Heard])
    faults: list[Fault] = field(default_factory=list[Fault])


def tormented(setup: Setup, stall: float, moments: Path) -> Setup:
    """The setup of a daemon whose engines can be made to fail, and write down when in `moments`."""
    supervisor = msgspec.structs.replace(BUDGET, step_stall_seconds=stall, prefill_stall_seconds=stall)
    base = msgspec.structs.replace(setup.base, supervisor=supervisor)
    return Setup(
        setup.model,
        setup.backend,
        setup.cache_tokens,
        setup.max_batch,
        setup.threads,
        base=base,
        environment=faults.environment(moments),
        log_level="info",
    )


class Torment:
    """Runs one plan."""

    def __init__(self, plan: Plan, served: RunningDaemon, session: aiohttp.ClientSession, moments: Path) -> None:
        self._plan = plan
        self._moments = moments
        self._served = served
        self._session = session
        self._prompts = iter(plan.prompts)
        self._current: dict[int, Heard] = {}
        self._outcome = Outcome()
        self._enough = False

    async def run(self) -> Outcome:
        """Keep the streams coming while faults are made, then let the last ones end."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._plan.streams):
                tasks.create_task(self._work(number))
            tasks.create_task(self._make_faults())
        return self._outcome

    async def _work(self, number: int) -> None:
        while not self._enough:
            heard = Heard(next(self._prompts), time.time())
            self._current[number] = heard
            self._outcome.heard.append(heard)
            body = completion(self._served.model, heard.prompt, self._plan.tokens, 0)
            await hear(self._session, f"{self._served.base_url}/completions", body, heard)
            if heard.problem is not None:
                await asyncio.sleep(_POLL)

    async def _make_faults(self) -> None:
        chance = random.Random(self._plan.seed)  # noqa: S311  # moments, not secrets
        try:
            since = time.time()
            for number, kind in enumerate(self._plan.faults, 1):
                await self._until_all_flow(since, kind)
                await asyncio.sleep(chance.uniform(0.0, self._plan.longest_wait))
                since = await self._make(kind, number)
        finally:
            self._enough = True

    async def _make(self, kind: FaultKind, number: int) -> float:
        """Make one fault; gives the time after which streams show that it is over."""
        engine = await self._engine()
        began = time.time()
        faults.inflict(kind, engine)
        recovery = None
        if kind.ends_the_engine:
            recovery = await self._until_served(began, kind)
            began = faults.moment(self._moments, engine, began) or began
        self._outcome.faults.append(Fault(kind, began, recovery))
        seconds = "" if recovery is None else f", {recovery.lost - began:.2f} s unnoticed, {recovery.served - began:.1f} s away"
        print(f"{self._plan.name}: fault {number} of {len(self._plan.faults)}, {kind.value}{seconds}", file=sys.stderr)
        return began if recovery is None else recovery.served

    async def _engine(self) -> int:
        """Process id of the engine, once there is one that serves."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            status = await asyncio.to_thread(fetch_status, socket_path(self._served.state))
            found = next((engine.pid for engine in status.engines if engine.state == "ready" and engine.pid is not None), None)
            if found is not None:
                return found
            await asyncio.sleep(_POLL)
        raise BenchFailed(f"{self._plan.name}: no engine became ready\n{end_of(self._served.log)}")

    async def _until_served(self, began: float, kind: FaultKind) -> journal.Recovery:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            log = await asyncio.to_thread(self._served.log.read_text, "utf-8", "replace")
            # the log's clock has milliseconds
            found = journal.recovery_after(list(journal.changes(log)), began - 0.001)
            if found is not None:
                return found
            await asyncio.sleep(_POLL)
        raise BenchFailed(f"{self._plan.name}: no engine came back after {kind.value}\n{end_of(self._served.log)}")

    async def _until_all_flow(self, since: float, kind: FaultKind) -> None:
        """Until each stream has said something after `since`: every fault finds them all at work."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if all(heard.tokens and heard.last > since for heard in self._current.values()):
                return
            await asyncio.sleep(_POLL)
        silent = sum(heard.last <= since for heard in self._current.values())
        raise BenchFailed(f"{self._plan.name}: {silent} streams stay silent before {kind.value}\n{end_of(self._served.log)}")


async def torment(plan: Plan) -> Outcome:
    """Start a daemon and run the plan on it. Raises BenchFailed."""
    try:
        with tempfile.TemporaryDirectory(prefix="exl3d-bench-") as folder:
            moments = Path(folder, "moments")
            async with daemon(tormented(plan.setup, plan.stall, moments)) as served, session_for(None) as session:
                return await Torment(plan, served, session, moments).run()
    except ExceptionGroup as problems:
        failed = problems.subgroup(BenchFailed)
        if failed is None:
            raise
        raise BenchFailed(str(failed.exceptions[0])) from problems
