"""The engines of a daemon as one: what is posted to all of them, and what their states mean together. Decides nothing about one.

Each is started, watched and replaced by a supervisor of its own, so that none waits for another.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from daemon.core.gpu import GpuReading
from daemon.core.supervision_events import Event, Judged, StartAsked, StopAsked
from daemon.core.supervision_values import Backoff, Draining, Failed, Mode, Ready, Rung, Starting, Stopped, Stopping, ThenStop
from daemon.host.supervisor import View
from daemon.host.vacancy import MemoryGauge, UsedMemory


class Supervising(Protocol):
    """The supervisor of one engine."""

    def post(self, event: Event) -> None:
        """Let something be decided about."""
        ...

    def view(self) -> View:
        """What is known now."""
        ...

    def observe(self) -> None:
        """Look at the engine now."""
        ...

    async def run(self) -> None:
        """Decide about events as they come, until cancelled."""
        ...


class Engines:
    """See the module. Numbered from 0, in the order in which they are added."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._supervisors: list[Supervising] = []
        self._clock = clock

    def add(self, supervisor: Supervising) -> None:
        """One more."""
        self._supervisors.append(supervisor)

    @property
    def several(self) -> bool:
        """Whether people must be told which one is meant."""
        return len(self._supervisors) > 1

    @property
    def views(self) -> tuple[Callable[[], View], ...]:
        """What each knows."""
        return tuple(each.view for each in self._supervisors)

    def supervise(self) -> list[asyncio.Task[None]]:
        """Run all supervisors, a task each."""
        return [asyncio.create_task(each.run(), name=f"supervisor {n}") for n, each in enumerate(self._supervisors)]

    def start(self) -> None:
        """Have every engine started."""
        for each in self._supervisors:
            each.post(StartAsked(self._clock()))

    def stop(self, seconds: float) -> None:
        """Have every engine stopped, once it has nothing to do or after so many seconds."""
        for each in self._supervisors:
            each.post(StopAsked(self._clock(), seconds))

    def observe(self) -> None:
        """Look at every engine now: something that may matter to a drain has changed."""
        for each in self._supervisors:
            each.observe()

    def hand_on(self, engine: int | None, verdict: Judged) -> None:
        """Tell the engine that a verdict is about; all of them where it is about the machine."""
        for each in self._supervisors if engine is None else self._supervisors[engine : engine + 1]:
            each.post(verdict)

    def chosen(self, engine: int | None) -> Sequence[Supervising]:
        """The one with this number, or all; empty where there is none with it."""
        if engine is None:
            return tuple(self._supervisors)
        return tuple(self._supervisors[engine : engine + 1]) if engine >= 0 else ()

    @property
    def _modes(self) -> list[Mode]:
        return [each.view().mode for each in self._supervisors]

    @property
    def ready(self) -> bool:
        """Whether any of them serves."""
        return any(isinstance(mode, Ready) for mode in self._modes)

    @property
    def hopeless(self) -> list[Failed]:
        """Why none will ever serve, engine by engine; empty while one may."""
        failed = [mode for mode in self._modes if isinstance(mode, Failed)]
        return failed if len(failed) == len(self._supervisors) else []

    @property
    def stopped(self) -> bool:
        """Whether no engine is wanted and none can be waited for: one that hangs in the kernel does not end."""
        return all(isinstance(mode, Stopped) or _is_stuck(mode) for mode in self._modes)

    @property
    def done(self) -> bool:
        """Whether each is gone, or about to go for good: nobody's request is computed any more."""
        return all(_works_no_more(mode) for mode in self._modes)


def _is_stuck(mode: Mode) -> bool:
    return isinstance(mode, Stopping) and mode.rung is Rung.STUCK


def _works_no_more(mode: Mode) -> bool:
    match mode:
        case Stopped():
            return True
        case Stopping():
            return isinstance(mode.after, ThenStop)
        case Starting() | Ready() | Draining() | Backoff() | Failed():
            return False


class OwnCards:
    """How much memory is used on the cards of one engine, by their uuids: implements `vacancy.MemoryGauge`. `gauge` and
    `readings` number the same cards alike.
    """

    def __init__(self, gauge: MemoryGauge, readings: Callable[[], Sequence[GpuReading]], uuids: Sequence[str]) -> None:
        self._gauge = gauge
        self._readings = readings
        self._uuids = frozenset(uuids)

    def used_mib(self) -> UsedMemory | None:
        """See vacancy.MemoryGauge."""
        reading = self._gauge.used_mib()
        if reading is None:
            return None
        uuids = [gpu.uuid for gpu in self._readings()]
        return UsedMemory(reading.t, {gpu: mib for gpu, mib in reading.mib.items() if uuids[gpu] in self._uuids})

    def read_soon(self) -> None:
        """See vacancy.MemoryGauge."""
        self._gauge.read_soon()
