"""Watches how fast engines decode, and writes down when one works several times slower than it did. Restarts nothing."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from daemon.core.degraded import Change, Recovered, Slowed, StepPace
from daemon.core.incidents import IncidentClosed, IncidentOpened, Incidents
from daemon.core.wire import Step

_log = logging.getLogger("exl3d.watchdog")

DEGRADED = "degraded"
"""Label of an engine that works, but slowly."""
_DECIDED = (
    "nothing by itself: the GPU's memory is full, so something may be moved to host memory; a smaller engine.cache_tokens or"
    " another program less on that GPU would help"
)


@dataclass(slots=True)
class _Place:
    """The engine of one place."""

    boot: int
    pace: StepPace
    tokens: int = 0
    """Generated since the daemon started."""
    slow: asyncio.Task[int] | None = None
    """Writes the open incident; its result is the number."""


class PaceWatch:
    """See the module. `factor`: how many times slower is worth an incident."""

    def __init__(self, factor: float, incidents: Incidents, wall: Callable[[], float]) -> None:
        self._factor = factor
        self._incidents = incidents
        self._wall = wall
        self._places: dict[int, _Place] = {}
        self._writing: set[asyncio.Task[None]] = set()

    @property
    def tokens(self) -> int:
        """Tokens that all engines have generated: whoever generates one shows that the device works."""
        return sum(place.tokens for place in self._places.values())

    def spawned(self, engine: int, boot: int) -> None:
        """Another engine: its pace is learned anew."""
        place = self._places.setdefault(engine, _Place(boot, StepPace(self._factor)))
        self._end(place, "the engine was replaced")
        place.boot = boot
        place.pace.forget()

    def gone(self, engine: int, boot: int) -> None:
        """It ended."""
        place = self._places.get(engine)
        if place is not None and place.boot == boot:
            self._end(place, "the engine ended")

    def stepped(self, engine: int, step: Step, fullness: float | None) -> None:
        """It did a step. `fullness`: of the fullest GPU that it uses, 0 to 1; None where not known."""
        place = self._places.get(engine)
        if place is None:
            return
        place.tokens += step.durations.decode_tokens
        change = place.pace.saw(step.t, step.durations, step.pool, fullness)
        if change is not None:
            self._changed(engine, place, change)

    async def close(self) -> None:
        """Wait until everything is written."""
        slow = {place.slow for place in self._places.values() if place.slow is not None}
        if slow or self._writing:
            await asyncio.wait(slow | self._writing)

    def _changed(self, engine: int, place: _Place, change: Change) -> None:
        match change:
            case Slowed(times, step, learned):
                seen = f"decode steps take {step * 1000:.0f} ms instead of {learned * 1000:.0f} ms, {times:.1f} times as long"
                _log.warning("engine %d: %s", engine, seen)
                opened = IncidentOpened(self._wall(), engine, place.boot, DEGRADED, "none", (seen,), _DECIDED)
                place.slow = asyncio.create_task(self._open(opened), name="degraded")
            case Recovered(accepted=True):
                self._end(place, "it stays as slow as this")
            case Recovered(seconds):
                self._end(place, f"as fast as before after {seconds:.0f} s")

    async def _open(self, incident: IncidentOpened) -> int:
        return await self._incidents.opened(incident)

    def _end(self, place: _Place, outcome: str) -> None:
        opening, place.slow = place.slow, None
        if opening is not None:
            self._later(self._close(opening, IncidentClosed(self._wall(), outcome)))

    async def _close(self, opening: asyncio.Task[int], end: IncidentClosed) -> None:
        await self._incidents.closed(await opening, end)

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="degraded")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
