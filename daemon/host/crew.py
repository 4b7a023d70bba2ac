"""Everybody who needs an engine, as one `Workforce` for the supervisor."""

from daemon.core.wire import Hello, Step
from daemon.host.link import CommandSink
from daemon.host.questions import Questions
from daemon.host.streams import StreamRegistry
from daemon.host.workforce import Fall


class Crew:
    """The requests of people and the questions of the daemon itself."""

    def __init__(self, streams: StreamRegistry, questions: Questions) -> None:
        self._streams = streams
        self._questions = questions

    def outstanding(self, engine: int) -> bool:
        """Whether this engine owes anything."""
        return self._streams.outstanding(engine) or self._questions.outstanding(engine)

    def engine_up(self, engine: int, sink: CommandSink, hello: Hello) -> None:
        """This engine takes work."""
        self._questions.engine_up(engine, sink)
        self._streams.engine_up(engine, sink, hello)

    def engine_down(self, engine: int, why: str) -> None:
        """It does no more."""
        self._questions.engine_down(engine)
        self._streams.engine_down(engine, why)

    def engine_fell(self, engine: int, fall: Fall) -> None:
        """It died while it served."""
        self._streams.engine_fell(engine, fall)

    def engine_coming(self, engine: int) -> None:
        """One is being started."""
        self._streams.engine_coming(engine)

    def give_up(self, engine: int, why: str) -> None:
        """None will come."""
        self._questions.engine_down(engine)
        self._streams.give_up(engine, why)

    def step(self, engine: int, step: Step) -> None:
        """What it did in a turn of its loop."""
        if step.answers:
            self._questions.answer(step.answers)
        self._streams.step(engine, step)
