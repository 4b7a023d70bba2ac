"""The host room around a real child process, without HTTP: what process tests run."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from daemon.core.events import Broken, Ended, Opened, Paused, Piece, StreamEvent
from daemon.core.model import GenerationDefaults
from daemon.core.ports import ModelCard, Stream
from daemon.core.requests import ValidRequest
from daemon.core.settings import EngineSettings, ServerSettings
from daemon.core.supervision_events import StartAsked, StopAsked
from daemon.core.supervision_values import Policy
from daemon.core.wire import Configure, Sampler, Step, TokenLogprob, TokenSpan
from daemon.host.crew import Crew
from daemon.host.detokenizer import Vocabulary
from daemon.host.logs import RequestSummary
from daemon.host.questions import Questions
from daemon.host.streams import StreamRegistry
from daemon.host.supervisor import Supervisor, View
from tests.host.tiny import SPECIAL, tiny_vocabulary

FAKE = (sys.executable, "-P", "-m", "tests.fake_engine")
POLICY = Policy(load_stall=20, step_stall=20, term=5, restarts=5, window=600, backoff=0.05, backoff_limit=0.1)
CARD = ModelCard(
    name="fake",
    aliases=(),
    context=100_000,
    eos=(0,),
    vocabulary=260,
    architecture="Fake",
    defaults=GenerationDefaults(),
    created=0,
)


def ask(prompt: Sequence[int], max_tokens: int, sampler: Sampler | None = None, *, logprobs: int | None = None) -> ValidRequest:
    """A request for `max_tokens` tokens after `prompt`."""
    return ValidRequest("r", "local", (TokenSpan(list(prompt)),), max_tokens, sampler=sampler or Sampler(), logprobs=logprobs)


@dataclass
class Heard:
    """What a stream gave, folded."""

    text: str = ""
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    opened: int = 0
    paused: int = 0
    ends: list[Ended | Broken] = field(default_factory=list[Ended | Broken])

    def add(self, event: StreamEvent) -> None:
        """Fold one event in."""
        match event:
            case Piece(text, ids, logprobs):
                self.text += text
                self.ids.extend(ids)
                self.logprobs.extend(logprobs)
            case Opened():
                self.opened += 1
            case Paused():
                self.paused += 1
            case Ended() | Broken():
                self.ends.append(event)


async def hear(stream: Stream) -> Heard:
    """Read a stream to its end."""
    heard = Heard()
    async for event in stream.events():
        heard.add(event)
    return heard


async def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Poll until `condition` holds; fail with `what` after a generous time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain: {what}")
        await asyncio.sleep(0.005)


@dataclass
class House:
    """Everything a process test touches."""

    streams: StreamRegistry
    questions: Questions
    supervisor: Supervisor
    summaries: list[RequestSummary]
    views: list[View]
    steps: list[Step]
    running: asyncio.Task[None]

    async def ready(self) -> None:
        """Wait until requests are accepted by a living engine."""
        await until(lambda: self.running.done() or (self.streams.accepting and self.view.hello is not None), "engine ready")
        if self.running.done():
            self.running.result()

    @property
    def view(self) -> View:
        """What the supervisor knows."""
        return self.supervisor.view()


class _Recorder(Crew):
    """The crew, remembering every step."""

    def __init__(self, streams: StreamRegistry, questions: Questions) -> None:
        super().__init__(streams, questions)
        self.steps: list[Step] = []

    def step(self, engine: int, step: Step) -> None:
        self.steps.append(step)
        super().step(engine, step)


@asynccontextmanager
async def house(
    *flags: str,
    argv: Sequence[str] = FAKE,
    policy: Policy = POLICY,
    server: ServerSettings | None = None,
    configure: Configure | None = None,
    vocabulary: Vocabulary | None = None,
    card: ModelCard = CARD,
) -> AsyncGenerator[House]:
    """A running host; the engine is stopped at the end."""
    summaries: list[RequestSummary] = []
    views: list[View] = []
    streams = StreamRegistry(
        card=card,
        vocabulary=vocabulary or tiny_vocabulary(),
        special=SPECIAL,
        settings=server or ServerSettings(),
        on_end=summaries.append,
        clock=time.monotonic,
    )
    questions = Questions()
    crew = _Recorder(streams, questions)
    supervisor = Supervisor(
        engine=0,
        argv=(*argv, *flags),
        configure=configure or Configure("/nowhere", 100_000, EngineSettings(), "/nowhere"),
        policy=policy,
        workforce=crew,
        on_change=views.append,
    )
    running = asyncio.create_task(supervisor.run())
    supervisor.post(StartAsked(time.monotonic()))
    try:
        yield House(streams, questions, supervisor, summaries, views, crew.steps, running)
    finally:
        supervisor.post(StopAsked(time.monotonic(), 0))
        stopped = asyncio.ensure_future(supervisor.stopped())
        await asyncio.wait([stopped, running], timeout=30, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        await asyncio.wait([running])
        assert stopped.done(), "the engine did not stop"
