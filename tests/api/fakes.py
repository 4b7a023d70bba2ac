"""Fakes at the ports: a scripted Serving, a tokenizer over characters, and a Watching with settable facts."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from daemon.api.application import build
from daemon.api.preparing import PromptBuilding
from daemon.chat.messages import ChatInput, TextPart
from daemon.chat.prompt import RenderedPrompt
from daemon.core.errors import RequestError
from daemon.core.events import Broken, Ended, Ending, Opened, Piece, StreamEvent, Usage
from daemon.core.model import AddedToken, GenerationDefaults
from daemon.core.people import People, merge
from daemon.core.ports import Acquaintance, EngineStatus, Health, ModelCard, Overview, Status, TokenLedger
from daemon.core.requests import ValidRequest
from daemon.core.settings import ServerSettings, Settings
from daemon.core.wire import Pool, Sampler, TokenLogprob

EOS = 1
FIRST_CHARACTER = 10
"""Id of a character: its code point plus this, as long as that is below the vocabulary."""

CARD = ModelCard(
    name="fake-model",
    aliases=("other-name",),
    context=4096,
    eos=(EOS,),
    vocabulary=70_000,
    architecture="FakeForCausalLM",
    defaults=GenerationDefaults(Sampler(temperature=0.7, top_k=20)),
    created=1_700_000_000,
)

Script = Callable[[ValidRequest], Sequence[StreamEvent]]


def usage_of(request: ValidRequest, completion: int, cached: int = 0) -> Usage:
    """What a finished stream says it has used."""
    return Usage(request.prompt_tokens, cached, completion)


def says(*texts: str, cached: int = 0, ending: Ending = Ending.STOP, stop: str | int | None = EOS) -> Script:
    """A stream of pieces with these texts, one token each."""

    def script(request: ValidRequest) -> Sequence[StreamEvent]:
        probable = tuple(_logprob(request.logprobs, 7 + index) for index in range(len(texts)))
        pieces = [
            Piece(text, (FIRST_CHARACTER + ord(text[0]),), () if request.logprobs is None else (probable[index],))
            for index, text in enumerate(texts)
        ]
        return [Opened(cached, 0.25), *pieces, Ended(ending, usage_of(request, len(texts), cached), stop)]

    return script


def breaks(error: RequestError, *texts: str) -> Script:
    """A stream that breaks after these texts."""

    def script(request: ValidRequest) -> Sequence[StreamEvent]:
        pieces = [Piece(text, (FIRST_CHARACTER + ord(text[0]),)) for text in texts]
        return [Opened(0, 0.0), *pieces, Broken(error, usage_of(request, len(texts)))]

    return script


def _logprob(top: int | None, other: int) -> TokenLogprob:
    return TokenLogprob(-0.5, [(other, -0.5 - rank) for rank in range(top or 0)])


class FakeStream:
    """Plays a script. With `hold`, waits for `release` before the event of that number."""

    def __init__(self, events: Sequence[StreamEvent], hold: int | None) -> None:
        self.release = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.finished = False
        self._script = events
        self._hold = hold
        self._events = self._play()

    def events(self) -> AsyncIterator[StreamEvent]:
        """The script."""
        return self._events

    async def deliver(self, take: Callable[[StreamEvent], bool]) -> None:
        """The script, or what is left of it."""
        async for event in self._events:
            if not take(event):
                return

    async def _play(self) -> AsyncIterator[StreamEvent]:
        for index, event in enumerate(self._script):
            if index == self._hold:
                await self.release.wait()
            await asyncio.sleep(0)
            self.finished = isinstance(event, Ended | Broken)
            yield event

    def cancel(self) -> None:
        """Note that it was called before the end, or that all is over."""
        if not self.finished:
            self.cancelled.set()


@dataclass(slots=True)
class FakeServing:
    """Answers every request with `script`; `refusal` is raised instead where it is set."""

    script: Script = field(default_factory=lambda: says("Hello", " there", "."))
    hold: int | None = None
    refusal: RequestError | None = None
    served: ModelCard = CARD
    requests: list[ValidRequest] = field(default_factory=list[ValidRequest])
    streams: list[FakeStream] = field(default_factory=list[FakeStream])

    def open(self, request: ValidRequest) -> FakeStream:
        """Accept a request."""
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        self.streams.append(FakeStream(self.script(request), self.hold))
        return self.streams[-1]

    def card(self) -> ModelCard:
        """What is served."""
        return self.served


class FakeTokenizing:
    """One token a character."""

    async def encode_rendered(self, text: str) -> tuple[int, ...]:
        """Ids of text."""
        return tuple(FIRST_CHARACTER + ord(character) for character in text)

    async def encode_plain(self, text: str) -> tuple[int, ...]:
        """Ids of text."""
        return await self.encode_rendered(text)

    async def decode(self, ids: Sequence[int], *, hide_special: bool) -> str:
        """Text of ids."""
        return "".join(self.token_text(token) for token in ids if not (hide_special and token < FIRST_CHARACTER))

    def token_text(self, token: int) -> str:
        """One character."""
        return chr(token - FIRST_CHARACTER) if token >= FIRST_CHARACTER else f"<{token}>"

    def token_bytes(self, token: int) -> bytes:
        """Its UTF-8."""
        return self.token_text(token).encode()


@dataclass(slots=True)
class FakePrompts:
    """Renders a chat as one line a message, and `ending` behind it."""

    tool_source: str = ""
    ending: str = ""

    def render(self, chat: ChatInput) -> RenderedPrompt:
        """`Type: text` for each message."""
        lines: list[str] = []
        for message in chat.messages:
            parts = [TextPart(message.content)] if isinstance(message.content, str) else message.content
            text = "".join(part.text for part in parts if isinstance(part, TextPart))
            lines.append(f"{type(message).__name__}: {text}\n")
        return RenderedPrompt("".join(lines) + self.ending, "default")


STATUS = Status(
    version="9.9.9",
    uptime=12.5,
    ready=True,
    model=CARD.name,
    context=CARD.context,
    engines=(
        EngineStatus(
            state="ready",
            detail="",
            pid=4242,
            backend="fake",
            pool=Pool(pages=320, referenced=12, slots=16, running=1, pending=0),
            page=256,
            restarts=3,
            uptime=11.0,
        ),
    ),
    running=1,
    queued=2,
    requests=7,
    prompt_tokens=100,
    cached_tokens=40,
    generated_tokens=60,
)


WELL = Health(ok=True, reason="the engine makes progress")


@dataclass(slots=True)
class FakeWatching:
    """Says what it is told to say."""

    told: Health = WELL
    told_deep: Health = WELL

    def ready(self) -> Health:
        """As set."""
        return self.told

    async def deep(self) -> Health:
        """As set."""
        return self.told_deep

    def status(self) -> Status:
        """A fixed one."""
        return STATUS

    def overview(self) -> Overview:
        """The fixed one without streams."""
        return Overview(self.status(), ())


@dataclass(slots=True)
class FakePeople:
    """Everybody, as set; another set is another state of people."""

    people: People

    def current(self) -> People:
        """As set."""
        return self.people


class FakeLedger:
    """Counts tokens in memory."""

    def __init__(self) -> None:
        self._spent: Counter[tuple[str, int]] = Counter()

    def spent(self, owner: str, day: int) -> int:
        """Tokens of a person on a day."""
        return self._spent[owner, day]

    def add(self, owner: str, day: int, tokens: int) -> None:
        """Count tokens."""
        self._spent[owner, day] += tokens


def settings(**server: object) -> Settings:
    """Settings with these server values."""
    return Settings(server=ServerSettings(**server))  # pyright: ignore[reportArgumentType]  # the struct checks nothing; tests do


def application(
    serving: FakeServing | None = None,
    chosen: Settings | None = None,
    watching: FakeWatching | None = None,
    prompts: PromptBuilding | None = None,
    added: Sequence[AddedToken] = (),
    tokenizing: FakeTokenizing | None = None,
    people: Acquaintance | None = None,
    ledger: TokenLedger | None = None,
) -> web.Application:
    """The real application over the fakes. Without `people` they are those of the settings, for good."""
    settings = chosen or Settings()
    return build(
        serving=serving or FakeServing(),
        watching=watching or FakeWatching(),
        tokenizing=tokenizing or FakeTokenizing(),
        prompts=prompts or FakePrompts(),
        added=added,
        settings=settings,
        version="9.9.9",
        people=people or FakePeople(merge(settings.keys, settings.people, settings.sharing)),
        ledger=ledger or FakeLedger(),
    )
