"""Writes down the incidents of one engine, in order, and never holds its supervisor up for long. Decides nothing."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace

from daemon.core.incidents import IncidentClosed, IncidentGrew, IncidentOpened, Incidents
from daemon.core.supervision_events import OpenIncident

_log = logging.getLogger("exl3d.supervisor")

PATIENCE_SECONDS = 2.0
"""How long the disk may take before the supervisor acts without it. What was begun is still written."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What an interruption cost people."""

    waited: tuple[float, ...] = ()
    """Seconds each waiting request was paused."""
    reprefilled: int = 0
    """Prompt tokens prefilled again."""


class Scribe:
    """One incident is open at a time."""

    def __init__(self, engine: int, incidents: Incidents | None, wall: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._incidents = incidents
        self._wall = wall
        self._number: asyncio.Task[int] | None = None
        self._pending: set[asyncio.Task[None]] = set()

    async def open(self, note: OpenIncident, facts: tuple[str, ...]) -> None:
        """Write a new incident; durable when this returns, unless the disk takes longer than `PATIENCE_SECONDS`."""
        if self._incidents is None:
            return
        incident = IncidentOpened(
            t_wall=self._wall(),
            engine=self._engine,
            boot=note.boot,
            label=note.label.value,
            remedy=note.remedy.name.lower(),
            seen=(note.seen, *facts),
            decided=note.decided,
        )
        self._number = asyncio.create_task(self._opened(self._incidents, incident), name="incident")
        done, _ = await asyncio.wait({self._number}, timeout=PATIENCE_SECONDS)
        if not done:
            _log.warning("an incident could not be written within %.0f s; going on without", PATIENCE_SECONDS)

    async def _opened(self, incidents: Incidents, incident: IncidentOpened) -> int:
        return await incidents.opened(incident)

    def grow(self, seen: str) -> None:
        """More is known about the open incident."""
        if self._incidents is not None and self._number is not None:
            self._later(self._grow(self._incidents, self._number, seen))

    def close(self, outcome: str, cost: Callable[[], Awaitable[Cost]] | None) -> None:
        """The open incident is over; what it cost may be known only later."""
        number, self._number = self._number, None
        if self._incidents is not None and number is not None:
            self._later(self._close(self._incidents, number, IncidentClosed(self._wall(), outcome), cost))

    async def finish(self) -> None:
        """Wait until everything is written, or the disk takes too long."""
        if self._pending:
            await asyncio.wait(self._pending, timeout=PATIENCE_SECONDS)

    async def _grow(self, incidents: Incidents, number: asyncio.Task[int], seen: str) -> None:
        await incidents.grew(await number, IncidentGrew(seen=(seen,)))

    async def _close(
        self,
        incidents: Incidents,
        number: asyncio.Task[int],
        end: IncidentClosed,
        cost: Callable[[], Awaitable[Cost]] | None,
    ) -> None:
        paid = Cost() if cost is None else await cost()
        await incidents.closed(await number, replace(end, waited=paid.waited, reprefilled=paid.reprefilled))

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="incident")
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
