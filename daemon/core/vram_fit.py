"""Whether what is configured can be loaded at all: asked by the daemon before an engine touches a GPU. Pure.

The plan of `exl3ctl plan` turns people and context into caches; here caches and streams are given by the configuration.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from daemon.core.drafting import DRAFT_TOKENS, draft_length
from daemon.core.errors import ConfigError
from daemon.core.layout import reserves
from daemon.core.settings import EngineSettings, Speculation
from daemon.core.vram import place, split_words
from daemon.core.vram_advice import least_experts_moved
from daemon.core.vram_model import PAGE, ModelShape, Precision, state_bytes, token_bytes
from daemon.core.vram_report import mib
from daemon.core.vram_values import MARGIN, Adapters, Card, CardPlan, Demand, Draft, Fits, Item, Layout, NoRoom, pages
from daemon.core.vram_weights import Weights

_GIB = 1 << 30
_THIN = (Precision(8, 8), Precision(4, 4))
_CHUNK = 512
_LEAST_CACHE = 8 * PAGE
"""Tokens below which a smaller cache is no advice."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What the daemon is about to load. `cards` are those of one engine."""

    model: str
    shape: ModelShape
    weights: Weights
    cards: tuple[Card, ...]
    demand: Demand
    layout: Layout
    context: int
    """Longest request, in tokens."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What is loaded beside a model: the drafter of engine.draft_model, engine.loras; and how far drafts go by themselves."""

    draft: Draft | None = None
    adapters: Adapters | None = None
    head_drafts: int = DRAFT_TOKENS
    """Tokens that the model's own head drafts."""
    drafts: int = DRAFT_TOKENS
    """Tokens that the drafter drafts."""


ALONE = Beside()
"""Nothing."""


def demand_of(engine: EngineSettings, context: int, beside: Beside = ALONE) -> Demand:
    """What an engine with these settings allocates for requests of up to `context` tokens."""
    precision = Precision(engine.k_bits, engine.v_bits)
    precision.check()
    return Demand(
        context=context,
        people=1,
        precision=precision,
        chunk=engine.chunk_tokens,
        history=draft_length(engine, beside.head_drafts, beside.drafts),
        drafter=engine.speculation is Speculation.MTP,
        draft=beside.draft if engine.speculation is Speculation.DRAFT else None,
        vision=engine.vision,
        cache_tokens=engine.cache_tokens if engine.cache_tokens is not None else pages(context) * PAGE,
        slots=engine.max_batch,
        experts_on_cpu=engine.moe_cpu_layers,
        adapters=beside.adapters,
    )


def draft_of(shape: ModelShape, weights: Weights, precision: Precision, history: int) -> Draft:
    """A model as the drafter of another."""
    return Draft(
        weights=weights.loaded,
        token=sum(token_bytes(layer, precision) for layer in shape.layers),
        slot=sum(state_bytes(layer, 1, history) for layer in shape.layers),
    )


def limited(cards: tuple[Card, ...], engine: EngineSettings) -> tuple[Card, ...]:
    """The cards as far as an engine may use them. Raises ConfigError for a split over more cards than there are."""
    split = engine.gpu_split
    if split is None:
        free = reserves(engine, len(cards))
        return tuple(replace(card, reserve=MARGIN + (mib << 20)) for card, mib in zip(cards, free, strict=True))
    if len(split) > len(cards):
        raise ConfigError(f"engine.gpu_split names {len(split)} GPUs, and {len(cards)} can be used", "engine.gpu_split")
    if not all(size >= 0 for size in split) or not any(split):
        raise ConfigError(f"engine.gpu_split is {split}: sizes in GiB, one of them above 0", "engine.gpu_split")
    whole = (*split, *(0.0 for _ in cards[len(split) :]))
    return tuple(replace(card, limit=int(size * _GIB)) for card, size in zip(cards, whole, strict=True))


def refusal(plan: Planned) -> str | None:
    """Why this cannot be loaded, with the plan and what to change; None where it can."""
    placed = _place(plan, plan.demand)
    if isinstance(placed, Fits):
        return None
    lines = [
        f"{plan.model} does not fit as configured: {placed.words}; {mib(placed.short)} or more are missing.",
        *(f"  {line}" for line in _account(plan)),
        *(f"  would fit: {words}" for words in _changes(plan)),
        "  `exl3ctl plan MODEL` shows all of it. `exl3d --force` (engine.force: true) tries it nevertheless.",
    ]
    return "\n".join(lines)


def experts_refusal(asked: str, count: int, shape: ModelShape, weights: Weights) -> str | None:
    """Why the experts of `count` layers cannot be kept in host memory, in a sentence that begins with what was `asked`.

    None where they can be.
    """
    layers, able = len(shape.layers), sum(1 for layer in weights.layers if layer.experts)
    if not count or count <= able:
        return None
    if shape.experts is None:
        return f"{asked} is {count}, and the model has no experts in any of its {layers} layers"
    if not able:
        return f"{asked} is {count}, and exllamav3 moves only experts of the codebook mul1: here are none"
    return f"{asked} is {count}, and {able} of the model's {layers} layers have experts that can be moved"


def _place(plan: Planned, demand: Demand) -> Fits | NoRoom:
    """Cards of different sizes may be numbered differently by CUDA, which puts the fastest first: any order that fits will do,
    unless something is said about each of them.
    """
    placed = place(plan.shape, plan.weights, plan.cards, demand, plan.layout)
    numbered = any(card.limit is not None for card in plan.cards) or len({card.reserve for card in plan.cards}) > 1
    if isinstance(placed, Fits) or numbered:
        return placed
    largest_first = tuple(sorted(plan.cards, key=lambda card: -card.size))
    again = place(plan.shape, plan.weights, largest_first, demand, plan.layout)
    return again if isinstance(again, Fits) else placed


def _account(plan: Planned) -> Iterator[str]:
    """What is needed against what is there, in the words of the plan's table."""
    endless = tuple(replace(card, size=1 << 50, limit=None) for card in plan.cards[:1])
    whole = place(plan.shape, plan.weights, endless, plan.demand, Layout.SPLIT)
    if isinstance(whole, Fits):
        yield "needed: " + ", ".join(f"{item.value} {mib(size)} ({kind})" for item, size, kind in _needed(whole.cards[0]))
    for card in plan.cards:
        taken = [f"{mib(card.overhead)} of overhead ({_told(card)})", f"{mib(card.reserve)} left free"]
        taken += [f"{mib(card.others)} held by other programs"] if card.others else []
        most = f", at most {mib(card.limit)} of it" if card.limit is not None else ""
        yield f"{card.name}: {mib(card.size)}{most}; {', '.join(taken)}"
    if any(card.limit is not None for card in plan.cards):
        yield f"the split is {split_words(plan.cards)} GiB"


def _needed(card: CardPlan) -> Iterator[tuple[Item, int, str]]:
    for row in card.rows:
        if row.item not in {Item.OVERHEAD, Item.OTHERS, Item.MARGIN}:
            yield row.item, row.size, row.certainty.value


def _told(card: Card) -> str:
    if card.confirmed:
        return f"measured in {card.confirmed} load{'' if card.confirmed == 1 else 's'}"
    return f"seen in {card.elsewhere} loads under other circumstances" if card.elsewhere else "assumed"


def _changes(plan: Planned) -> Iterator[str]:
    """Single changes of the configuration, each tried out."""
    demand = plan.demand
    for precision in _THIN:
        thinner = precision.k_bits + precision.v_bits < demand.precision.k_bits + demand.precision.v_bits
        if thinner and _fits(plan, replace(demand, precision=precision)):
            yield f"engine.k_bits and engine.v_bits {precision.k_bits}"
            break
    tokens = _largest(plan, demand.tokens // PAGE, lambda n: replace(demand, cache_tokens=n * PAGE)) * PAGE
    if tokens >= _LEAST_CACHE:
        rest = f", so that one request has at most {tokens - 1:,} tokens" if tokens < plan.context else ""
        yield f"engine.cache_tokens {tokens}{rest}"
    yield from _left_out(plan)
    slots = _largest(plan, demand.streams, lambda n: replace(demand, slots=n))
    if slots:
        yield f"engine.max_batch {slots}"
    if demand.chunk > _CHUNK and _fits(plan, replace(demand, chunk=_CHUNK)):
        yield f"engine.chunk_tokens {_CHUNK}"
    moved = least_experts_moved(demand, plan.weights, plan.layout, lambda more: _fits(plan, more))
    if moved is not None:
        yield f"engine.moe_cpu_layers {moved.experts_on_cpu}"
    if any(card.limit is not None for card in plan.cards):
        free = replace(plan, cards=tuple(replace(card, limit=None) for card in plan.cards))
        if _fits(free, demand):
            yield "engine.gpu_split null: the whole of each card"


def _left_out(plan: Planned) -> Iterator[str]:
    """What is loaded beside the model and could stay away."""
    demand = plan.demand
    if demand.history and _fits(plan, replace(demand, history=0, drafter=False, draft=None)):
        yield "engine.speculation none"
    if demand.vision and _fits(plan, replace(demand, vision=False)):
        yield "engine.vision false: no pictures in chats"


def _fits(plan: Planned, demand: Demand) -> bool:
    return isinstance(_place(plan, demand), Fits)


def _largest(plan: Planned, high: int, at: Callable[[int], Demand]) -> int:
    """The largest number up to `high` with which it fits; 0 where it does with none."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(plan, at(middle)):
            low = middle
        else:
            high = middle - 1
    return low
