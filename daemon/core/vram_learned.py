"""What loading really took beyond the plan, remembered for a machine.

CUDA contexts, library workspaces, compiled kernels and fragmentation cannot be computed. After each load the daemon measures
what each card holds, and the rest that the plan does not explain is kept here. Plans use the largest rest seen lately: a
plan that is too small costs a crash, one that is too large a few thousand tokens.
"""

from collections.abc import Mapping

import msgspec

KEPT = 8
"""Loads remembered for a kind of card."""
ASSUMED_OVERHEAD = 768 << 20
"""Bytes a card until something was measured: context, cuBLAS, Triton, and the little a card reports less than its name says."""


class Rests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes beyond the plan, of the latest loads on one kind of card; newest last."""

    rests: tuple[int, ...] = ()

    @property
    def overhead(self) -> int:
        """What to plan with."""
        return max(self.rests) if self.rests else ASSUMED_OVERHEAD

    @property
    def confirmed(self) -> int:
        """How many loads stand behind it."""
        return len(self.rests)


class Learned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`memory.json` in the state directory: what was learned, by the name of the card."""

    cards: dict[str, Rests] = {}

    def of(self, card: str) -> Rests:
        """What is known of a kind of card; nothing, where it was never loaded on."""
        return self.cards.get(card, Rests())


FILE = "memory.json"


def learn(before: Learned, explained: Mapping[str, int], measured: Mapping[str, int]) -> Learned:
    """Take a load into account. `explained`: bytes by card that the plan computed, without its overhead row; `measured`: what
    the cards held. A measurement below the plan counts as no rest. Of several cards of one name hand in the worst.
    """
    cards = dict(before.cards)
    for card, size in measured.items():
        if card in explained:
            rest = max(0, size - explained[card])
            cards[card] = Rests((*before.of(card).rests, rest)[-KEPT:])
    return Learned(cards)
