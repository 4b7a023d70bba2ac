"""A whole plan as one value: what `exl3ctl plan` prints, and what the daemon shows when it refuses to load."""

from dataclasses import dataclass, replace

from daemon.core.vram import longest_context, most_people, place
from daemon.core.vram_advice import Change, changes, speculation_advice
from daemon.core.vram_check import Finding
from daemon.core.vram_model import ModelShape
from daemon.core.vram_values import Card, CardPlan, Demand, Fits, Layout, NoRoom
from daemon.core.vram_weights import Weights


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


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Everything about one model on some cards. Sizes are bytes, contexts tokens."""

    model: str
    architecture: str
    demand: Demand
    cards: tuple[Card, ...]
    weight_bytes: int
    """On GPUs, without drafter and vision tower."""
    weight_bits: float | None
    layouts: tuple[LayoutReport, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether any layout does."""
        return any(layout.fits for layout in self.layouts)


def mib(size: int) -> str:
    """A size for people: MiB below ten GiB, so that little differences show."""
    return f"{size / (1 << 20):,.0f} MiB" if size < 10 << 30 else f"{size / (1 << 30):,.1f} GiB"


def report_layout(model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand, layout: Layout) -> LayoutReport:
    """Plan one layout."""
    most = most_people(model, weights, cards, demand, layout)
    placed = place(model, weights, cards, demand, layout)
    shown = placed if isinstance(placed, Fits) or not most else place(model, weights, cards, replace(demand, people=most), layout)
    problem = f"{placed.words}; {mib(placed.short)} or more are missing" if isinstance(placed, NoRoom) else None
    return LayoutReport(
        layout=layout,
        fits=problem is None,
        most_people=most,
        longest_context=longest_context(model, weights, cards, demand, layout),
        cards=shown.cards if isinstance(shown, Fits) else (),
        problem=problem,
        changes=changes(model, weights, cards, demand, layout),
    )


def _notes(model: ModelShape, demand: Demand, cards: tuple[Card, ...]) -> tuple[str, ...]:
    notes: list[str] = []
    if not model.familiar:
        notes.append(
            f"{model.architecture} was not compared with what loading takes: the plan takes it for an ordinary transformer."
        )
    if model.context and demand.context > model.context:
        notes.append(f"The context asked for, {demand.context:,}, is longer than the model's own {model.context:,} tokens.")
    unmeasured = [card.name for card in cards if not card.confirmed]
    if unmeasured:
        notes.append(f"The overhead of {', '.join(unmeasured)} is assumed: nothing was loaded there yet.")
    advice = speculation_advice(demand)
    if advice is not None:
        notes.append(advice)
    return tuple(notes)


def report(
    name: str,
    model: ModelShape,
    weights: Weights,
    cards: tuple[Card, ...],
    demand: Demand,
    layouts: tuple[Layout, ...],
    findings: tuple[Finding, ...] = (),
    notes: tuple[str, ...] = (),
) -> PlanReport:
    """Plan every layout of `layouts`; `notes` are added to its own. Raises ConfigError for cache bits that no cache has."""
    demand.precision.check()
    return PlanReport(
        model=name,
        architecture=model.architecture,
        demand=demand,
        cards=cards,
        weight_bytes=weights.loaded,
        weight_bits=weights.bits,
        layouts=tuple(report_layout(model, weights, cards, demand, layout) for layout in layouts),
        findings=findings,
        notes=(*_notes(model, demand, cards), *notes),
    )
