"""What loading really took beyond the plan, remembered for a machine.

CUDA contexts, library workspaces, compiled kernels and fragmentation cannot be computed. After each load the daemon compares
what the plan predicted with what each card holds, and keeps both. Plans use the largest rest seen lately on the same cards,
with the same driver and layout: a plan that is too small costs a crash, one that is too large a few thousand tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from daemon.core.vram_values import Card, Layout

FILE = "memory.json"
"""In the state directory."""
KEPT = 8
"""Loads remembered for a machine."""
MOST_MACHINES = 16
"""Sets of cards, drivers and layouts remembered; the one that was not loaded on for longest is forgotten first."""
ASSUMED_OVERHEAD = 768 << 20
"""Bytes a card until something was measured: context, cuBLAS, Triton, and the little a card reports less than its name says."""


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What overheads depend on."""

    gpus: tuple[str, ...]
    """Names of an engine's cards, in CUDA's order."""
    driver: str
    """Empty where it is not known."""
    layout: Layout


class Held(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One card after one load, in bytes."""

    predicted: int
    """What the plan computed: weights, caches, transients; without overhead and margin."""
    measured: int
    """The most that the engine held there."""
    total: int
    """What CUDA can use of the card."""
    others: int | None = None
    """What other programs held before the engine came; None where nobody could tell, so that it counts as the engine's."""

    @property
    def rest(self) -> int:
        """What the plan does not explain."""
        return max(0, self.measured - self.predicted)


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One load."""

    t: float
    """Wall clock, seconds since 1970."""
    model: str
    cards: tuple[Held, ...]


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The latest loads on one machine; newest last."""

    machine: Machine
    loads: tuple[Load, ...]


class Learned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`memory.json`: what was learned, the machine loaded on last at the end."""

    version: int = 1
    known: tuple[Known, ...] = ()

    def of(self, machine: Machine) -> tuple[Load, ...]:
        """The loads on exactly this machine; none where it was never loaded on."""
        return next((known.loads for known in self.known if known.machine == machine), ())

    def of_card(self, name: str) -> Iterator[Held]:
        """What any load showed of a kind of card, in whatever company; the latest last."""
        for known in self.known:
            for load in known.loads:
                yield from (held for gpu, held in zip(known.machine.gpus, load.cards, strict=False) if gpu == name)


def learn(before: Learned, machine: Machine, load: Load) -> Learned:
    """Take a load into account."""
    others = tuple(known for known in before.known if known.machine != machine)
    now = Known(machine, (*before.of(machine), load)[-KEPT:])
    return Learned(known=(*others, now)[-MOST_MACHINES:])


@dataclass(frozen=True, slots=True)
class Label:
    """One card as whoever asks knows it: `name` as the driver calls it, or empty; `size` in bytes; `shown` for people."""

    name: str
    size: int
    shown: str
    others: int | None = None
    """What other programs hold now, where somebody looked."""


def cards_of(learned: Learned, labels: Sequence[Label], driver: str, layout: Layout) -> tuple[Card, ...]:
    """The cards with their learned overheads.

    1. Loads on exactly these cards, with this driver and layout, confirm an overhead. 2. Failing that, loads on a card of the
    same kind tell it unconfirmed. 3. Failing that, it is assumed.
    """
    if layout is Layout.REPLICAS:
        return tuple(card for label in labels for card in _together(learned, (label,), driver, layout))
    return _together(learned, labels, driver, layout)


def _together(learned: Learned, labels: Sequence[Label], driver: str, layout: Layout) -> tuple[Card, ...]:
    loads = learned.of(Machine(tuple(label.name for label in labels), driver, layout))
    whole = [load.cards for load in loads if len(load.cards) == len(labels)]
    return tuple(_card(learned, label, [cards[n] for cards in whole]) for n, label in enumerate(labels))


def _card(learned: Learned, label: Label, held: Sequence[Held]) -> Card:
    seen = list(held) or (list(learned.of_card(label.name)) if label.name else [])
    if not seen:
        return Card(label.shown, label.size, ASSUMED_OVERHEAD, others=label.others or 0)
    others = label.others if label.others is not None else seen[-1].others or 0
    return Card(
        label.shown,
        min(label.size, seen[-1].total),
        max(each.rest for each in seen),
        confirmed=len(held),
        others=others,
        elsewhere=0 if held else len(seen),
    )
