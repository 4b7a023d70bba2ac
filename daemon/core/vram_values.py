"""The values a memory plan is made of. Sizes are bytes."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from daemon.core.vram_model import PAGE, Precision

FP16 = Precision()
MARGIN = 256 << 20
"""Bytes exllamav3 leaves free on each card when it splits by itself."""


class Layout(Enum):
    """How cards are used together."""

    SPLIT = "split"
    """Layers one card after the other."""
    TENSOR = "tensor"
    """Every layer on all cards."""
    REPLICAS = "replicas"
    """The whole model on each card, people shared out."""


class Certainty(Enum):
    """How far a number can be believed."""

    EXACT = "exact"
    ESTIMATED = "estimated"
    ASSUMED = "assumed"
    MEASURED = "measured"


class Item(Enum):
    """What memory is spent on."""

    WEIGHTS = "weights"
    ADAPTERS = "adapters"
    KV = "KV cache"
    RECURRENT = "recurrent states"
    DRAFTER = "drafter"
    VISION = "vision"
    PREFILL = "prefill transient"
    LOGITS = "logits"
    OVERHEAD = "overhead"
    OTHERS = "other programs"
    MARGIN = "margin"


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU. `size` is what it has in bytes; `overhead` what is spent besides the model, with how many loads confirmed it."""

    name: str
    size: int
    overhead: int
    confirmed: int = 0
    elsewhere: int = 0
    """Loads that told the overhead on such a card, but with another driver, layout or neighbour: not a confirmation."""
    others: int = 0
    """Bytes that other programs (a desktop, a browser) hold."""
    limit: int | None = None
    """Most bytes that may be used there (engine.gpu_split); None: all."""
    reserve: int = MARGIN
    """Bytes to leave free."""

    @property
    def room(self) -> int:
        """Bytes for model, cache and what computing needs."""
        free = self.size - self.others - self.reserve
        return (free if self.limit is None else min(free, self.limit)) - self.overhead


@dataclass(frozen=True, slots=True)
class Draft:
    """A model that drafts for another, in bytes: its weights, its cache of one token, its state of one stream."""

    weights: int
    token: int
    slot: int


@dataclass(frozen=True, slots=True)
class Adapters:
    """LoRA matrices as they lie beside their layers, in bytes. `head`: those of lm_head."""

    layers: tuple[int, ...]
    head: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.layers) + self.head


@dataclass(frozen=True, slots=True)
class Demand:
    """What is wanted."""

    context: int
    """Tokens a person: prompt and answer."""
    people: int
    precision: Precision = FP16
    chunk: int = 2048
    """Prompt tokens a step."""
    history: int = 0
    """Draft tokens a step that a recurrent model can take back."""
    drafter: bool = False
    """Load the model's own drafter."""
    draft: Draft | None = None
    """A drafter that is a model of its own."""
    vision: bool = False
    cache_tokens: int | None = None
    """Tokens of cache, where they are configured and do not follow from people and context."""
    slots: int | None = None
    """Streams at once (engine.max_batch), where they are configured; None: one a person."""
    experts_on_cpu: int = 0
    """Layers, the first ones that have some, whose routed experts lie in host memory."""
    adapters: Adapters | None = None
    """LoRA adapters, all together."""

    @property
    def tokens(self) -> int:
        """Tokens of cache: whole pages a person, and the token that exllamav3 keeps free in each."""
        return self.cache_tokens if self.cache_tokens is not None else self.people * pages(self.context) * PAGE

    @property
    def streams(self) -> int:
        """Streams at once: slots of recurrent state, rows of logits."""
        return self.slots if self.slots is not None else self.people


def pages(context: int) -> int:
    """Whole pages for a context and the token that exllamav3 keeps free."""
    return -(-(context + 1) // PAGE)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a card's account, in bytes."""

    item: Item
    size: int
    certainty: Certainty


@dataclass(frozen=True, slots=True)
class CardPlan:
    """What one card holds. `layers` are the numbers of the first and the last one; None where it has none."""

    card: Card
    rows: tuple[Row, ...]
    layers: tuple[int, int] | None
    people: int

    @property
    def used(self) -> int:
        """Bytes in all rows."""
        return sum(row.size for row in self.rows)

    @property
    def computed(self) -> int:
        """Bytes that the plan computes: all rows but those of overhead, other programs and margin."""
        return sum(row.size for row in self.rows if row.item not in {Item.OVERHEAD, Item.OTHERS, Item.MARGIN})

    @property
    def free(self) -> int:
        """Bytes left; negative where it does not fit."""
        return self.card.room - self.computed

    def size(self, item: Item) -> int:
        """Bytes of one row."""
        return sum(row.size for row in self.rows if row.item is item)


@dataclass(frozen=True, slots=True)
class Fits:
    """It fits like this."""

    cards: tuple[CardPlan, ...]


@dataclass(frozen=True, slots=True)
class NoRoom:
    """It does not fit: `words` says where it ended, `short` how many bytes are missing at least."""

    words: str
    short: int


Placing: TypeAlias = Fits | NoRoom
