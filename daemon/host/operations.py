"""Carries out what a person commands over the admin socket: implements `core.operating.Operating`."""

import logging
from collections.abc import Callable
from typing import Protocol

from daemon.core.operating import Outcome, Reloaded
from daemon.core.supervision_events import RestartAsked
from daemon.core.supervision_values import Backoff, Draining, Failed, Ready, Starting, Stopped, Stopping
from daemon.host.engines import Engines
from daemon.host.reloading import Reloader
from daemon.host.supervisor import View

_log = logging.getLogger("exl3d")

RESTART_WORDS = "a person asked for a fresh engine"
DRAIN_WORDS = "The server is being drained for maintenance and takes no new requests."


class Intake(Protocol):
    """The stream registry's door."""

    @property
    def running(self) -> int:
        """Requests inside engines."""
        ...

    @property
    def queued(self) -> int:
        """Requests that wait."""
        ...

    def pause_intake(self, why: str) -> None:
        """Refuse new requests with these words; what was accepted goes on."""
        ...

    def resume_intake(self) -> None:
        """Accept requests again."""
        ...


class Operations:
    """See the module. `stopping` says whether the daemon is about to end."""

    def __init__(
        self,
        *,
        engines: Engines,
        intake: Intake,
        reloader: Reloader,
        stopping: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._engines = engines
        self._intake = intake
        self._reloader = reloader
        self._stopping = stopping
        self._clock = clock

    def restart_engines(self, engine: int | None = None) -> Outcome:
        """See Operating."""
        if self._stopping():
            return _STOPPING
        chosen = self._engines.chosen(engine)
        if not chosen:
            count = len(self._engines.views)
            have = "one engine, number 0" if count == 1 else f"engines 0 to {count - 1}"
            return Outcome(done=False, words=f"there is no engine {engine}: this daemon has {have}; nothing was changed")
        asked = [supervisor for supervisor in chosen if _may_restart(supervisor.view())]
        for supervisor in asked:
            supervisor.post(RestartAsked(self._clock(), RESTART_WORDS))
        if not asked:
            return Outcome(done=False, words="the engine is being stopped already; nothing was changed")
        return Outcome(done=True, words=self._replaced(engine))

    def _replaced(self, engine: int | None) -> str:
        """What happens now, for people."""
        if engine is not None and self._engines.several:
            return f"engine {engine} is replaced; its requests go on elsewhere"
        waiting = self._intake.running + self._intake.queued
        subject = "the engines are" if self._engines.several else "the engine is"
        return f"{subject} replaced; {_requests(waiting)} {'waits' if waiting == 1 else 'wait'} and will go on"

    def drain(self) -> Outcome:
        """See Operating."""
        if self._stopping():
            return _STOPPING
        self._intake.pause_intake(DRAIN_WORDS)
        left = self._intake.running + self._intake.queued
        _log.info("drain: no new requests are taken, %s left", _requests(left))
        return Outcome(
            done=True, words=f"no new requests are taken; {_requests(left)} left. `exl3ctl resume` opens the door again"
        )

    def resume(self) -> Outcome:
        """See Operating."""
        if self._stopping():
            return _STOPPING
        self._intake.resume_intake()
        _log.info("resume: requests are taken again")
        return Outcome(done=True, words="requests are taken again")

    async def reload(self) -> Reloaded:
        """See Operating."""
        return await self._reloader.reload()


_STOPPING = Outcome(done=False, words="the daemon is shutting down")


def _may_restart(view: View) -> bool:
    match view.mode:
        case Stopped() | Starting() | Ready() | Backoff() | Failed():
            return True
        case Draining() | Stopping():
            return False


def _requests(count: int) -> str:
    return f"{count} request{'' if count == 1 else 's'}"
