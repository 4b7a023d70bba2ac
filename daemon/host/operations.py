"""Carries out what a person commands over the admin socket: implements `core.operating.Operating`."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from daemon.core.operating import Outcome, Reloaded
from daemon.core.supervision_values import Backoff, Draining, Event, Failed, Ready, RestartAsked, Starting, Stopped, Stopping
from daemon.host.reloading import Reloader
from daemon.host.supervisor import View

_log = logging.getLogger("exl3d")

RESTART_WORDS = "a person asked for a fresh engine"
DRAIN_WORDS = "The server is being drained for maintenance and takes no new requests."


class Supervising(Protocol):
    """A supervisor, as far as a person commands it."""

    def post(self, event: Event) -> None:
        """Let something be decided about."""
        ...

    def view(self) -> View:
        """What is known now."""
        ...


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
        supervisors: Sequence[Supervising],
        intake: Intake,
        reloader: Reloader,
        stopping: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._supervisors = supervisors
        self._intake = intake
        self._reloader = reloader
        self._stopping = stopping
        self._clock = clock

    def restart_engines(self) -> Outcome:
        """See Operating."""
        if self._stopping():
            return _STOPPING
        asked = [supervisor for supervisor in self._supervisors if _may_restart(supervisor.view())]
        for supervisor in asked:
            supervisor.post(RestartAsked(self._clock(), RESTART_WORDS))
        if not asked:
            return Outcome(done=False, words="the engine is being stopped already; nothing was changed")
        waiting = self._intake.running + self._intake.queued
        return Outcome(
            done=True, words=f"the engine is replaced; {_requests(waiting)} {'waits' if waiting == 1 else 'wait'} and will go on"
        )

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
