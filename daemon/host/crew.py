"""Everybody who needs an engine, as one `Workforce` for the supervisor."""

from daemon.core.wire import Hello, Step
from daemon.host.link import CommandSink
from daemon.host.questions import Questions
from daemon.host.streams import StreamRegistry


class Crew:
    """The requests of people and the questions of the daemon itself."""

    def __init__(self, streams: StreamRegistry, questions: Questions) -> None:
        self._streams = streams
        self._questions = questions

    @property
    def outstanding(self) -> bool:
        """Whether the engine owes anything."""
        return self._streams.outstanding or self._questions.outstanding

    def engine_up(self, sink: CommandSink, hello: Hello) -> None:
        """This engine takes work."""
        self._questions.engine_up(sink)
        self._streams.engine_up(sink, hello)

    def engine_down(self, why: str) -> None:
        """It does no more."""
        self._questions.engine_down()
        self._streams.engine_down(why)

    def engine_coming(self) -> None:
        """One is being started."""
        self._streams.engine_coming()

    def give_up(self, why: str) -> None:
        """None will come."""
        self._questions.engine_down()
        self._streams.give_up(why)

    def step(self, step: Step) -> None:
        """What it did in a turn of its loop."""
        if step.answers:
            self._questions.answer(step.answers)
        self._streams.step(step)
