"""What `api` asks of `host`, as protocols. Both rooms import this file and never each other; `daemon/__main__.py` joins them."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from daemon.core.admission_views import SharingFigures
from daemon.core.events import StreamEvent
from daemon.core.gpu import GpuReading
from daemon.core.model import GenerationDefaults
from daemon.core.people import People
from daemon.core.pictures import PictureRule
from daemon.core.prefix_watch import PrefixFigures
from daemon.core.requests import ValidRequest
from daemon.core.senses import Sense
from daemon.core.stream_view import StreamView
from daemon.core.wire import Pool


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is served. `context` is the longest prompt + answer in tokens. Known before an engine has loaded anything,
    but for `context` and `pictures`, which an engine may lower.
    """

    name: str
    aliases: tuple[str, ...]
    context: int
    eos: tuple[int, ...]
    vocabulary: int
    architecture: str
    defaults: GenerationDefaults
    created: int
    """Seconds since the epoch when the daemon started: OpenAI's models list wants it."""
    pictures: PictureRule | None = None
    """What the model does with pictures; None: it reads text only."""


class Tokenizing(Protocol):
    """The model's tokenizer, run off the event loop."""

    async def encode_rendered(self, text: str) -> tuple[int, ...]:
        """Ids of a rendered template. Control tokens count, except where `core.guarded` marked them as people's text."""
        ...

    async def encode_plain(self, text: str) -> tuple[int, ...]:
        """Ids of text in which no control token counts; with the BOS the model wants in front."""
        ...

    async def decode(self, ids: Sequence[int], *, hide_special: bool) -> str:
        """Text of ids."""
        ...

    def token_text(self, token: int) -> str:
        """One token as text, for logprobs; U+FFFD where it is part of a character."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """One token as bytes, for logprobs."""
        ...


class Stream(Protocol):
    """One accepted request. Read it to its end, in one of the two ways, or call `cancel`; leaving early without it is a leak."""

    def events(self) -> AsyncIterator[StreamEvent]:
        """The events in order; the last is Ended or Broken."""
        ...

    async def deliver(self, take: Callable[[StreamEvent], bool]) -> None:
        """The same for readers in a hurry: `take` is called with each event, as soon as it comes and without waking this task,
        until it gives False or the stream is over. Call again for the rest. `take` must not block; what it raises is raised here.
        """
        ...

    def cancel(self) -> None:
        """The client is gone. Frees pages within two steps; safe to call at any time and more than once."""
        ...


class Serving(Protocol):
    """Where requests go."""

    def open(self, request: ValidRequest) -> Stream:
        """Accept a request. Raises Overloaded, NotReady or ShuttingDown; afterwards the stream tells everything."""
        ...

    def card(self) -> ModelCard:
        """What is served now."""
        ...


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine as people see it in `exl3ctl status`."""

    state: str
    """Name of the supervisor's state, lower case: starting, ready, backoff, failed …"""
    detail: str
    """One sentence: progress of loading, why it failed and what to do."""
    pid: int | None
    backend: str
    pool: Pool | None
    page: int
    restarts: int
    """Since the daemon started."""
    uptime: float
    loading: float | None = None
    """Share of the load that is done, 0 to 1; None when not loading."""
    interval: int = 0
    """Tokens between two recurrent checkpoints; 0 where the model has no recurrent state, or is not loaded."""
    recovering: int = 0
    """Requests that lost the last engine in this place and wait for their next token."""
    recovery_seconds: float = 0.0
    """Longest wait after that loss, of those that have got it."""
    gpus: tuple[str, ...] = ()
    """Uuids of the GPUs that it alone uses, where there are replicas."""


@dataclass(frozen=True, slots=True)
class Status:
    """The daemon as people see it."""

    version: str
    uptime: float
    ready: bool
    model: str
    context: int
    engines: tuple[EngineStatus, ...]
    running: int
    queued: int
    requests: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    prefix: PrefixFigures = field(default_factory=PrefixFigures)
    shut: str = ""
    """Why a person's wish keeps new requests out, in words; empty where it does not."""
    interruptions: int = 0
    """Times a request lost its engine to a death and had to go on with another."""
    suspensions: int = 0
    """Times a request was set aside for others."""
    reprefilled_tokens: int = 0
    """Tokens prefilled a second time after either."""
    convictions: int = 0
    """Requests refused for having killed an engine while alone."""
    incidents: Mapping[str, int] = field(default_factory=dict[str, int])
    """Incidents since the daemon started, by label."""
    senses: tuple[Sense, ...] = ()
    """What the watchdog looks at, and why something is not."""
    gpus: tuple[GpuReading, ...] = ()
    """The last good values of each GPU."""
    sharing: SharingFigures = field(default_factory=SharingFigures)
    """Who has what of the engines, and what requests wait for."""
    accepted_drafts: int = 0
    """Draft tokens that the model accepted (speculation), of answers whose end an engine told."""
    rejected_drafts: int = 0


@dataclass(frozen=True, slots=True)
class Overview:
    """What `exl3ctl top` shows."""

    status: Status
    streams: tuple[StreamView, ...]
    """Every accepted request, the oldest first."""


@dataclass(frozen=True, slots=True)
class Health:
    """Answer of one of the health checks, with the reason in words."""

    ok: bool
    reason: str


class Acquaintance(Protocol):
    """Who may ask."""

    def current(self) -> People:
        """Everybody, now. The same object until something changes, so that it may be compared by identity."""
        ...


class TokenLedger(Protocol):
    """Tokens of each person, day by day. Days are numbered from the epoch, in UTC."""

    def spent(self, owner: str, day: int) -> int:
        """Tokens of a person on a day: today, or the day before. Answers from memory."""
        ...

    def add(self, owner: str, day: int, tokens: int) -> None:
        """Count tokens. Never blocks; they are written a moment later."""
        ...


class Watching(Protocol):
    """Health and status. `live` is not here: whoever can answer is alive."""

    def ready(self) -> Health:
        """Whether requests are accepted and the engine makes progress. Computed from evidence at each call; milliseconds."""
        ...

    async def deep(self) -> Health:
        """Whether a token was produced lately; an idle engine is asked for one, once for all callers."""
        ...

    def status(self) -> Status:
        """Everything `exl3ctl status` shows."""
        ...

    def overview(self) -> Overview:
        """The same with every accepted request."""
        ...
