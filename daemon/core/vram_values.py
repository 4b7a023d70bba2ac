"""The values a memory plan is made of. Sizes are bytes."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from daemon.core.vram_model import PAGE, Precision

FP16 = Precision()


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
    KV = "KV cache"
    RECURRENT = "recurrent states"
    DRAFTER = "drafter"
    VISION = "vision"
    PREFILL = "prefill transient"
    LOGITS = "logits"
    OVERHEAD = "overhead"
    MARGIN = "margin"


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU. `size` is what it has in bytes; `overhead` what is spent besides the model, with how many loads confirmed it."""

    name: str
    size: int
    overhead: int
    confirmed: int = 0


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
    vision: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of cache: whole pages a person, and the token that exllamav3 keeps free in each."""
        return self.people * -(-(self.context + 1) // PAGE) * PAGE


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
    def free(self) -> int:
        """Bytes left; negative where it does not fit."""
        return self.card.size - self.used

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
