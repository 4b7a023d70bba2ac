"""A registry with a recording sink in the engine's place, and a clock that stands still until told."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from daemon.core.events import Broken, Ended, StreamEvent
from daemon.core.model import GenerationDefaults
from daemon.core.pictures import count_tokens
from daemon.core.poison import Policy
from daemon.core.ports import ModelCard
from daemon.core.requests import ValidRequest
from daemon.core.settings import ServerSettings
from daemon.core.wire import (
    PROTOCOL,
    Cancel,
    Command,
    Event,
    Finished,
    FinishReason,
    Hello,
    Limits,
    Phase,
    Pool,
    Started,
    Step,
    Submit,
    Suspend,
    Tokens,
    TokenSpan,
)
from daemon.host.conviction_store import ConvictionStore
from daemon.host.entry import Entry
from daemon.host.logs import RequestSummary
from daemon.host.streams import StreamRegistry
from tests.host.tiny import SPECIAL, tiny_vocabulary

CARD = ModelCard("tiny", (), 10_000, (256,), 260, "Tiny", GenerationDefaults(), created=0)


def hello(slots: int = 4, pages: int = 16) -> Hello:
    """What an engine says of itself."""
    limits = Limits(page=256, pages=pages, slots=slots, interval=0, max_batch=slots)
    return Hello(PROTOCOL, "boot", 1, "none", "Tiny", limits, [256], 260)


def request(prompt: str = "hi", max_tokens: int = 100, **changes: object) -> ValidRequest:
    """A request in which each byte of `prompt` is a token."""
    return ValidRequest("r", "local", (TokenSpan(list(prompt.encode())),), max_tokens, **changes)  # pyright: ignore[reportArgumentType]  # fields by name


@dataclass
class Engine:
    """A sink that remembers commands, and speaks for the engine."""

    commands: list[Command] = field(default_factory=list[Command])

    def send(self, command: Command) -> None:
        """Remember it."""
        self.commands.append(command)

    @property
    def submits(self) -> list[Submit]:
        """Requests given so far."""
        return [command for command in self.commands if isinstance(command, Submit)]

    @property
    def cancels(self) -> list[int]:
        """Requests taken back so far."""
        return [command.id for command in self.commands if isinstance(command, Cancel)]

    @property
    def suspends(self) -> list[int]:
        """Requests asked to be set aside so far."""
        return [command.id for command in self.commands if isinstance(command, Suspend)]


class Desk:
    """Everything a registry test touches."""

    def __init__(
        self,
        settings: ServerSettings | None = None,
        slots: int = 4,
        *,
        engines: int = 1,
        poison: Policy | None = None,
        convictions: ConvictionStore | None = None,
    ) -> None:
        self.now = 100.0
        self.summaries: list[RequestSummary] = []
        self.streams = StreamRegistry(
            card=CARD,
            vocabulary=tiny_vocabulary(),
            special=SPECIAL,
            settings=settings or ServerSettings(),
            on_end=self.summaries.append,
            clock=lambda: self.now,
            engines=engines,
            poison=poison,
            convictions=convictions,
        )
        self.slots = slots
        self.engine = Engine()
        self.steps = 0

    def engine_up(self, engine: int = 0, pages: int = 16) -> Engine:
        """A fresh engine takes requests."""
        self.engine = Engine()
        self.streams.engine_up(engine, self.engine, hello(self.slots, pages))
        return self.engine

    def step(self, *events: Event, pending: int = 0, engine: int = 0) -> None:
        """One turn of an engine's loop."""
        self.steps += 1
        pool = Pool(16, 0, self.slots, 0, pending)
        self.streams.step(engine, Step(self.steps, self.now, Phase.DECODE, pool, events=list(events)))

    def say(self, submit: Submit, text: str | Iterable[int], done: int = 0, *, engine: int = 0) -> None:
        """The engine has generated tokens after `done` others of this attempt."""
        ids = list(text.encode()) if isinstance(text, str) else list(text)
        self.step(tokens(submit, ids, done), engine=engine)

    def finish(self, submit: Submit, reason: FinishReason = FinishReason.LENGTH, *, engine: int = 0) -> None:
        """The engine says that it is done."""
        self.step(Finished(submit.id, submit.attempt, reason), engine=engine)


def length(submit: Submit) -> int:
    """Tokens of a submission."""
    return count_tokens(submit.spans)


def tokens(submit: Submit, ids: list[int], done: int = 0) -> Tokens:
    """A report of new tokens at the right place."""
    return Tokens(submit.id, submit.attempt, length(submit) + done, ids)


def started(submit: Submit, cached: int = 0) -> Started:
    """A report that a request holds its pages."""
    return Started(submit.id, submit.attempt, cached, 1)


async def drain(entry: Entry) -> list[StreamEvent]:
    """Every event of a stream that has ended."""
    return [event async for event in entry.events()]


def ends(events: list[StreamEvent]) -> list[Ended | Broken]:
    """The terminal events among them."""
    return [event for event in events if isinstance(event, Ended | Broken)]
