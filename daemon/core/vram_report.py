"""A whole plan as one value: what `exl3ctl plan` prints for people and machines."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from daemon.core.layout import UNDIVIDED
from daemon.core.vram import longest_context, most_people, place
from daemon.core.vram_advice import Change, changes, speculation_advice
from daemon.core.vram_findings import Finding
from daemon.core.vram_host import KEPT_FREE, HostItem, HostPlan, Kept, host_plan
from daemon.core.vram_model import ModelShape
from daemon.core.vram_tensor import indivisible
from daemon.core.vram_values import Card, CardPlan, Demand, Fits, Layout, NoRoom
from daemon.core.vram_weights import Weights


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What one person is promised, in tokens of cache."""

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Household:
    """The machine around the cards: host memory that is given away, and how much there is in bytes; None where nobody said."""

    kept: Kept
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """The cache everybody shares, and what of it is promised. Tokens; of replicas, all engines together."""

    tokens: int
    promised: int
    streams: int
    """Streams at once."""

    @property
    def free(self) -> int:
        """What is nobody's; negative where more is promised than there is."""
        return self.tokens - self.promised


@dataclass(frozen=True, slots=True)
class LayoutReport:
    """One layout. `cards` is how it looks with the people asked for, or with as many as fit where fewer do."""

    layout: Layout
    fits: bool
    most_people: int
    """At the context asked for."""
    longest_context: int
    """For the people asked for; 0 where they fit at none."""
    cards: tuple[CardPlan, ...]
    problem: str | None
    """Why it does not fit, in one sentence."""
    changes: tuple[Change, ...]
    pool: Pool | None
    """With the people that `cards` shows; None where nobody fits."""
    host: HostPlan
    """What the machine's own memory is needed for."""


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Everything about one model on some cards. Sizes are bytes, contexts tokens."""

    model: str
    architecture: str
    demand: Demand
    cards: tuple[Card, ...]
    """As the first layout sees them."""
    weight_bytes: int
    """On GPUs, without drafter and vision tower."""
    weight_bits: float | None
    layouts: tuple[LayoutReport, ...]
    guarantees: tuple[Guarantee, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether any layout does."""
        return any(layout.fits for layout in self.layouts)


def mib(size: int) -> str:
    """A size for people: MiB below ten GiB, so that little differences show."""
    return f"{size / (1 << 20):,.0f} MiB" if size < 10 << 30 else f"{size / (1 << 30):,.1f} GiB"


def report_layout(
    model: ModelShape,
    weights: Weights,
    cards: tuple[Card, ...],
    demand: Demand,
    layout: Layout,
    household: Household,
    promised: int = 0,
) -> LayoutReport:
    """Plan one layout. `promised`: tokens of cache that people are guaranteed."""
    most = most_people(model, weights, cards, demand, layout)
    placed = place(model, weights, cards, demand, layout)
    people = demand.people if isinstance(placed, Fits) else most
    shown = placed if isinstance(placed, Fits) or not most else place(model, weights, cards, replace(demand, people=most), layout)
    problem = f"{placed.words}; {mib(placed.short)} or more are missing" if isinstance(placed, NoRoom) else None
    host = host_plan(model, weights, demand, layout, len(cards), household.kept, household.memory)
    return LayoutReport(
        layout=layout,
        fits=problem is None and not host.short,
        most_people=most,
        longest_context=longest_context(model, weights, cards, demand, layout),
        cards=shown.cards if isinstance(shown, Fits) else (),
        problem=problem or host_problem(host),
        changes=changes(model, weights, cards, demand, layout),
        pool=Pool(replace(demand, people=people).tokens, promised, people) if people else None,
        host=host,
    )


def host_problem(host: HostPlan) -> str | None:
    """Why the machine's own memory does not do, in a sentence without its end; None where it does."""
    if not host.short or host.total is None:
        return None
    rows = ", ".join(f"{row.item.value} {mib(row.size)}" for row in host.rows if row.item is not HostItem.CHECKPOINTS)
    return (
        f"host memory is short by {mib(host.short)}: {rows}; the machine has {mib(host.total)},"
        f" of which exllamav3 leaves {mib(KEPT_FREE)} free"
    )


def _notes(
    model: ModelShape, weights: Weights, cards: Mapping[Layout, tuple[Card, ...]], demand: Demand, layouts: tuple[Layout, ...]
) -> Iterator[str]:
    if not model.familiar:
        yield f"{model.architecture} was not compared with what loading takes: the plan takes it for an ordinary transformer."
    if model.context and demand.context > model.context:
        yield f"The context asked for, {demand.context:,}, is longer than the model's own {model.context:,} tokens."
    if Layout.TENSOR in layouts and model.architecture in UNDIVIDED:
        yield f"exllamav3 1.6.5 has no tensor-parallel code for {model.architecture}: the layout tensor is arithmetic only."
    heads = indivisible(model) if Layout.TENSOR in layouts else None
    if heads is not None:
        yield f"exllamav3 1.6.5 cannot divide this model among cards: {heads}. The layout tensor is arithmetic only."
    yield from _of_overheads(cards)
    advice = speculation_advice(demand)
    if advice is not None:
        yield advice
    yield from _of_drafter(model, weights, cards, demand, layouts)


def _of_overheads(cards: Mapping[Layout, tuple[Card, ...]]) -> Iterator[str]:
    every = [card for planned in cards.values() for card in planned]
    assumed = dict.fromkeys(card.name for card in every if not card.confirmed and not card.elsewhere)
    if assumed:
        yield f"The overhead of {', '.join(assumed)} is assumed: nothing was loaded there yet."
    guessed = {card.name: card.elsewhere for card in every if card.elsewhere}
    for name, loads in guessed.items():
        told = f"{loads} load{'' if loads == 1 else 's'}"
        yield f"The overhead of {name} comes from {told} with another driver, layout or neighbour: nothing confirms it here."


def _of_drafter(
    model: ModelShape, weights: Weights, cards: Mapping[Layout, tuple[Card, ...]], demand: Demand, layouts: tuple[Layout, ...]
) -> Iterator[str]:
    """What a drafter costs in people."""
    if not demand.history:
        return
    plain = replace(demand, history=0, drafter=False, draft=None)
    for layout in layouts:
        with_it = most_people(model, weights, cards[layout], demand, layout)
        without = most_people(model, weights, cards[layout], plain, layout)
        if with_it != without:
            yield f"Without speculation {without} people fit in the layout {layout.value}, with it {with_it}."


def report(
    name: str,
    model: ModelShape,
    weights: Weights,
    cards: Mapping[Layout, tuple[Card, ...]],
    demand: Demand,
    *,
    household: Household | None = None,
    findings: tuple[Finding, ...] = (),
    notes: tuple[str, ...] = (),
    guarantees: tuple[Guarantee, ...] = (),
) -> PlanReport:
    """Plan every layout that `cards` has, which says what is known of the cards in each; `notes` are added to the plan's own.

    Raises ConfigError for cache bits that no cache has.
    """
    demand.precision.check()
    layouts, around = tuple(cards), household or Household(Kept())
    promised = sum(each.tokens for each in guarantees)
    return PlanReport(
        model=name,
        architecture=model.architecture,
        demand=demand,
        cards=cards[layouts[0]],
        weight_bytes=weights.loaded,
        weight_bits=weights.bits,
        layouts=tuple(report_layout(model, weights, cards[layout], demand, layout, around, promised) for layout in layouts),
        guarantees=guarantees,
        findings=findings,
        notes=(*_notes(model, weights, cards, demand, layouts), *notes),
    )
