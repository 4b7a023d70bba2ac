"""Who gives work to engines and hears from them, as the supervisor of an engine sees it.

Engines are numbered from 0: one a GPU group, each with a supervisor of its own.
"""

from dataclasses import dataclass
from typing import Protocol

from daemon.core.wire import Hello, Step
from daemon.host.link import CommandSink


@dataclass(frozen=True, slots=True)
class Fall:
    """How an engine ended that had requests, told once its end is understood and before the next one serves."""

    why: str
    accuses: bool
    """Whether a request may have caused it. Kills by us, by a person or by the system's memory killer accuse nobody, and
    neither does evidence against the whole device.
    """
    prefilling: int | None
    """The request whose prefill was running, as the progress page says."""
    in_flight: tuple[int, ...]
    """The requests inside the engine's last step, the newest last."""


class Workforce(Protocol):
    """The stream registry and whoever asks questions."""

    def outstanding(self, engine: int) -> bool:
        """Whether this engine owes anything."""
        ...

    def engine_up(self, engine: int, sink: CommandSink, hello: Hello) -> None:
        """This engine takes work."""
        ...

    def engine_down(self, engine: int, why: str) -> None:
        """It does no more; what it held waits."""
        ...

    def engine_fell(self, engine: int, fall: Fall) -> None:
        """It died while it served. Comes after `engine_down` and before the next `engine_up`."""
        ...

    def engine_coming(self, engine: int) -> None:
        """One is being started."""
        ...

    def give_up(self, engine: int, why: str) -> None:
        """None will come."""
        ...

    def step(self, engine: int, step: Step) -> None:
        """What it did in a turn of its loop."""
        ...
