"""The words of fair admission: policy and state. Events and effects stand in `admission_events.py`.

What is decided with them stands in `admission.py`. Pages are pages of an engine's KV cache; service is tokens times prices; a
counter is a person's service divided by their weight. Times are CLOCK_MONOTONIC seconds and come inside events.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

import msgspec

from daemon.core.people import People
from daemon.core.people import Person as KnownPerson
from daemon.core.settings import EngineSettings, ServerSettings, SharingOrder

# --- policy ---------------------------------------------------------------------------------------------------------


class Share(msgspec.Struct, frozen=True):
    """What one person may have."""

    weight: float = 1.0
    guaranteed: int = 0
    """Tokens of cache that are always theirs."""
    max_concurrent: int | None = None
    max_queued: int | None = None


class Prices(msgspec.Struct, frozen=True):
    """Service per token."""

    prefill: float = 1.0
    cached: float = 0.02
    decode: float = 4.0


class Policy(msgspec.Struct, frozen=True):
    """Who may have what, and the engine's habits that pages are counted by."""

    people: Mapping[str, Share] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    """By owner: everybody who has a key."""
    others: Share = Share()
    """For owners that are not among them."""
    prices: Prices = Prices()
    order: SharingOrder = SharingOrder.FAIR
    max_queued: int = 256
    """Requests that may wait."""
    reserve: int = 2048
    """Answer tokens for which an engine claims pages at a time."""
    window: int = 4096
    """Prompt tokens inside an engine, not yet computed, up to which a person may add more than one prompt."""
    quantum: float = 1024.0
    """Service by which a cached prefix may bring a request forward."""

    def share(self, owner: str) -> Share:
        """What this owner may have."""
        return self.people.get(owner, self.others)

    @classmethod
    def of(cls, crowd: People, server: ServerSettings, engine: EngineSettings) -> "Policy":
        """From the settings, and whoever can ask."""
        sharing = crowd.sharing
        return cls(
            people=MappingProxyType({name: _share(crowd.of(name)) for name in crowd.names}),
            others=Share(max_concurrent=sharing.max_concurrent, max_queued=sharing.max_queued),
            prices=Prices(sharing.prefill_price, sharing.cached_price, sharing.decode_price),
            order=sharing.order,
            max_queued=server.max_queued,
            reserve=engine.reserve_tokens,
            window=2 * engine.chunk_tokens,
        )


def _share(person: KnownPerson) -> Share:
    return Share(person.weight, person.guaranteed_context, person.max_concurrent, person.max_queued)


# --- state ----------------------------------------------------------------------------------------------------------


class Hint(msgspec.Struct, frozen=True):
    """What an engine's prefix cache probably holds of a prompt."""

    engine: int
    cached: int
    """Tokens."""
    extends: int | None = None
    """The request whose sequence this prompt goes on with."""


class Place(msgspec.Struct, frozen=True):
    """Where a request is inside an engine."""

    engine: int
    base: int
    """Tokens of its sequence when it was given: whatever is longer has been generated since."""
    need: int
    """Pages it is counted with."""
    extent: int
    """Tokens up to which it has, or will claim, pages."""
    uncached: int
    """Prompt tokens that are probably to be computed."""
    owed: float = 0.0
    """Service already charged for a prompt that is not computed yet."""
    rank: int = 0
    started: bool = False
    """It holds its pages."""
    suspending: bool = False
    """It was told to give its place up."""
    waits: int = 0
    """Pages it waits for inside the engine; 0: it does not wait."""


class Quote(msgspec.Struct, frozen=True):
    """What an engine said a prompt would need, or was asked for."""

    engine: int
    version: int
    """The engine's composition the answer holds for."""
    pages: int | None = None
    """None: no answer yet."""


class Request(msgspec.Struct, frozen=True):
    """An accepted request."""

    id: int
    owner: str
    live: bool
    order: int
    """The how-manieth request this was to arrive: the lower, the older."""
    arrived: float
    limit: int
    """Tokens its sequence may grow to."""
    hints: tuple[Hint, ...] = ()
    place: Place | None = None
    """None: it waits."""
    given: int = 0
    """How often it was given."""
    suspended: bool = False
    """It waits because it was set aside; it comes back only with room to grow."""
    charged: bool = False
    """Its prompt is on its person's account; coming back costs nothing."""
    claim: int | None = None
    """The engine in which room is being made for it."""
    passed: int = 0
    """How often others went first while there was no room for it."""
    quote: Quote | None = None


class Warm(msgspec.Struct, frozen=True):
    """A conversation that is over for now and stands in an engine's prefix cache."""

    id: int
    engine: int
    pages: int
    at: float


class Person(msgspec.Struct, frozen=True):
    """What is remembered of an owner."""

    counter: float = 0.0
    """Service charged, divided by weight."""
    owed: float = 0.0
    """The part of it that is not done yet."""
    live: tuple[int, ...] = ()
    """Waiting, in the order in which they will be given: those that come back first."""
    background: tuple[int, ...] = ()
    seen: float = float("-inf")
    """When a request last arrived or ended."""
    warm: tuple[Warm, ...] = ()
    """Newest last."""
    served: int = 0
    """Tokens generated for them."""
    waits: int = 0
    """Requests given for the first time."""
    waited: float = 0.0
    """Seconds those waited, together."""

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self.live) + len(self.background)

    @property
    def done(self) -> float:
        """Service done, divided by weight."""
        return self.counter - self.owed


class Engine(msgspec.Struct, frozen=True):
    """An engine that takes requests."""

    slots: int
    pages: int
    page: int
    interval: int
    """Tokens between two recurrent checkpoints; 0 where there are none."""
    inside: tuple[int, ...] = ()
    """Requests in it, in the order they were given."""
    referenced: int = 0
    """Pages held, as last reported."""
    settled: int = 0
    """The same, but while a request waits inside it does not fall: a request that grows gives its pages up for a moment."""
    pending: int = 0
    version: int = 0
    """Counts the changes of `inside`."""
    kept: tuple[int, ...] = ()
    """The last `Keep`."""


class Pulse(msgspec.Struct, frozen=True):
    """How fast engines serve."""

    since: float = 0.0
    service: float = 0.0
    """Done since then."""
    rate: float | None = None
    """Service per second."""
    answer: float = 256.0
    """Mean length of answers in tokens."""


class Admission(msgspec.Struct, frozen=True):
    """Who waits, who runs, and what everybody has had."""

    people: Mapping[str, Person] = msgspec.field(default_factory=dict[str, Person])
    requests: Mapping[int, Request] = msgspec.field(default_factory=dict[int, Request])
    sizes: Mapping[int, int] = msgspec.field(default_factory=dict[int, int])
    """Tokens of each request's sequence, prompt and answer so far."""
    engines: Mapping[int, Engine] = msgspec.field(default_factory=dict[int, Engine])
    resting: Mapping[int, tuple[int, ...]] = msgspec.field(default_factory=dict[int, tuple[int, ...]])
    """What dead engines held, until it is understood why they died."""
    expected: frozenset[int] = frozenset()
    """Engines that are down and will come back."""
    suspects: tuple[int, ...] = ()
    """Requests that may have killed an engine, in the order in which they run alone. Those that wait stand in no queue."""
    arrivals: int = 0
    virtual: float = 0.0
    """The largest account of anybody whose request was given or ended: where all start when nobody waits."""
    pulse: Pulse = Pulse()
    suspensions: int = 0
    """Requests told to give their place up."""
    resumes: int = 0
    """Requests given again."""

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self.requests) - self.running

    @property
    def running(self) -> int:
        """Requests inside engines."""
        return sum(len(engine.inside) for engine in self.engines.values())


class Reason(Enum):
    """Why a request waits."""

    ENGINE = "no_engine"
    SLOTS = "slots"
    PAGES = "pages"
    OWN_LIMIT = "own_limit"
    PREFILL = "prefill"
    """The person's prompts before it are still being computed."""
    ALONE = "alone"
    """It must run alone, or another does."""
    TURN = "turn"
    """There is room, but others come first."""
