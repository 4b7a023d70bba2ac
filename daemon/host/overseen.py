"""A workforce whose work is looked at: tells the watchdog of each step, the memory plan of each load, and changes nothing."""

from collections.abc import Callable

from daemon.core.wire import Hello, Step
from daemon.host.link import CommandSink
from daemon.host.workforce import Fall, Workforce


class Overseen:
    """Passes everything on to `workforce`, each step to `look` as well, and the greeting of each engine to `greet`."""

    def __init__(self, workforce: Workforce, look: Callable[[int, Step], None], greet: Callable[[Hello], None]) -> None:
        self._workforce = workforce
        self._look = look
        self._greet = greet

    def outstanding(self, engine: int) -> bool:
        """See Workforce."""
        return self._workforce.outstanding(engine)

    def engine_up(self, engine: int, sink: CommandSink, hello: Hello) -> None:
        """See Workforce."""
        self._greet(hello)
        self._workforce.engine_up(engine, sink, hello)

    def engine_down(self, engine: int, why: str) -> None:
        """See Workforce."""
        self._workforce.engine_down(engine, why)

    def engine_fell(self, engine: int, fall: Fall) -> None:
        """See Workforce."""
        self._workforce.engine_fell(engine, fall)

    def engine_coming(self, engine: int) -> None:
        """See Workforce."""
        self._workforce.engine_coming(engine)

    def give_up(self, engine: int, why: str) -> None:
        """See Workforce."""
        self._workforce.give_up(engine, why)

    def step(self, engine: int, step: Step) -> None:
        """See Workforce."""
        self._workforce.step(engine, step)
        self._look(engine, step)
