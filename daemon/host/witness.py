"""Who watches besides the supervisor: the watchdog, as the supervisor of an engine sees it."""

from typing import Protocol

from daemon.core.wire import Fatal


class Witness(Protocol):
    """Hears what happens to engine processes. Engines are numbered places; `boot` is the process's life there."""

    def spawned(self, engine: int, boot: int, pid: int) -> None:
        """A process was started."""
        ...

    def own_kill(self, engine: int, boot: int) -> None:
        """We are about to send it a signal: what the kernel and the driver say next may be its echo."""
        ...

    def fatal(self, engine: int, boot: int, fatal: Fatal) -> None:
        """It announced its own end."""
        ...

    def hung(self, engine: int, boot: int, phase: str, seconds: float) -> None:
        """It made no progress for so long and is being ended."""
        ...

    def gone(self, engine: int, boot: int, pid: int, code: int) -> None:
        """It ended."""
        ...


class Unwatched:
    """Nobody watches."""

    def spawned(self, engine: int, boot: int, pid: int) -> None:
        """See Witness."""

    def own_kill(self, engine: int, boot: int) -> None:
        """See Witness."""

    def fatal(self, engine: int, boot: int, fatal: Fatal) -> None:
        """See Witness."""

    def hung(self, engine: int, boot: int, phase: str, seconds: float) -> None:
        """See Witness."""

    def gone(self, engine: int, boot: int, pid: int, code: int) -> None:
        """See Witness."""
