"""What to change when people and context do not fit: each change tried out, not guessed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from daemon.core.vram import longest_context, most_people, place
from daemon.core.vram_model import ModelShape, Precision
from daemon.core.vram_values import Card, Demand, Fits, Layout
from daemon.core.vram_weights import Weights

_PRECISIONS = (Precision(8, 8), Precision(6, 6), Precision(5, 5), Precision(4, 4))
_CHUNKS = (1024, 512)
_LEAST_BITS = 2.0
_SHORTEST = 1024
"""Tokens of context below which a shorter context is no advice."""
SPECULATION_PAYS_TO = 4
"""Streams up to which drafting ahead pays: beyond, the batch itself uses the card well."""


class Lever(Enum):
    """What is changed."""

    CACHE_BITS = "cache_bits"
    CHUNK = "chunk"
    CONTEXT = "context"
    PEOPLE = "people"
    LAYOUT = "layout"
    SPECULATION = "speculation"
    WEIGHT_BITS = "weight_bits"
    EXPERTS = "experts"


@dataclass(frozen=True, slots=True)
class Change:
    """One change that makes it fit, and how many people then fit at the context it leaves."""

    lever: Lever
    words: str
    people: int


def _fit(model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand, layout: Layout) -> bool:
    return isinstance(place(model, weights, cards, demand, layout), Fits)


def lighter(weights: Weights, bits: float) -> Weights:
    """The same model quantised to `bits`: an estimate, since scales and unquantised parts stay."""
    if weights.bits is None:
        return weights
    ratio = bits / weights.bits
    return replace(
        weights,
        layers=tuple(
            replace(
                layer,
                mixing=int(layer.mixing * ratio),
                feed_forward=int(layer.feed_forward * ratio),
                experts=int(layer.experts * ratio),
                experts_in_ram=int(layer.experts_in_ram * ratio),
            )
            for layer in weights.layers
        ),
        bits=bits,
    )


def changes(model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand, layout: Layout) -> tuple[Change, ...]:
    """Every single change after which `demand.people` fit, or the nearest to it; empty where they fit as it is."""
    if _fit(model, weights, cards, demand, layout):
        return ()
    return tuple(_changes(model, weights, cards, demand, layout))


def _changes(model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand, layout: Layout) -> Iterator[Change]:
    yield from _thinner_cache(model, weights, cards, demand, layout)
    yield from _shorter_chunks(model, weights, cards, demand, layout)
    context = longest_context(model, weights, cards, demand, layout)
    if context >= _SHORTEST:
        yield Change(Lever.CONTEXT, f"a context of {context:,} tokens", demand.people)
    people = most_people(model, weights, cards, demand, layout)
    if people:
        yield Change(Lever.PEOPLE, f"{people} {'person' if people == 1 else 'people'} at this context", people)
    yield from _smaller_weights(model, weights, cards, demand, layout)
    moved = least_experts_moved(demand, weights, layout, lambda more: _fit(model, weights, cards, more, layout))
    if moved is not None:
        words = f"the experts of {moved.experts_on_cpu} layers in host memory"
        yield Change(Lever.EXPERTS, words, most_people(model, weights, cards, moved, layout))
    plain = replace(demand, history=0, drafter=False, draft=None)
    if plain != demand and _fit(model, weights, cards, plain, layout):
        yield Change(Lever.SPECULATION, "no speculation", most_people(model, weights, cards, plain, layout))
    for other in Layout:
        if other is not layout and len(cards) > 1 and _fit(model, weights, cards, demand, other):
            yield Change(Lever.LAYOUT, f"the layout {other.value}", most_people(model, weights, cards, demand, other))


def least_experts_moved(demand: Demand, weights: Weights, layout: Layout, fits: Callable[[Demand], bool]) -> Demand | None:
    """The demand with the experts of as few more layers in host memory as make it fit; None where that does not help."""
    most = sum(1 for layer in weights.layers if layer.experts)
    low, high = demand.experts_on_cpu + 1, most
    if layout is Layout.TENSOR or low > high or not fits(replace(demand, experts_on_cpu=most)):
        return None
    while low < high:
        middle = (low + high) // 2
        if fits(replace(demand, experts_on_cpu=middle)):
            high = middle
        else:
            low = middle + 1
    return replace(demand, experts_on_cpu=low)


def _thinner_cache(
    model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand, layout: Layout
) -> Iterator[Change]:
    thinner = [p for p in _PRECISIONS if p.k_bits + p.v_bits < demand.precision.k_bits + demand.precision.v_bits]
    for precision in thinner:
        thin = replace(demand, precision=precision)
        words = f"a cache of {precision.k_bits}-bit keys and {precision.v_bits}-bit values"
        if _fit(model, weights, cards, thin, layout):
            yield Change(Lever.CACHE_BITS, words, most_people(model, weights, cards, thin, layout))
            return
        people = most_people(model, weights, cards, thin, layout) if precision is thinner[-1] else 0
        if people > most_people(model, weights, cards, demand, layout):
            context = longest_context(model, weights, cards, thin, layout)
            each = f", or {demand.people} at {context:,} tokens" if context >= _SHORTEST else ""
            yield Change(Lever.CACHE_BITS, f"{words}, for {people} people at this context{each}", people)


def _shorter_chunks(
    model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand, layout: Layout
) -> Iterator[Change]:
    for chunk in _CHUNKS:
        short = replace(demand, chunk=chunk)
        if chunk < demand.chunk and _fit(model, weights, cards, short, layout):
            people = most_people(model, weights, cards, short, layout)
            yield Change(Lever.CHUNK, f"prefill chunks of {chunk} tokens", people)
            return


def _smaller_weights(
    model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand, layout: Layout
) -> Iterator[Change]:
    if weights.bits is None:
        return
    bits = weights.bits // 0.5 * 0.5
    while bits >= _LEAST_BITS:
        if bits < weights.bits:
            light = lighter(weights, bits)
            if _fit(model, light, cards, demand, layout):
                people = most_people(model, light, cards, demand, layout)
                yield Change(Lever.WEIGHT_BITS, f"the model quantised to about {bits:g} bits a weight", people)
                return
        bits -= 0.5


def speculation_advice(demand: Demand) -> str | None:
    """A sentence where drafting ahead is asked for and will not pay."""
    if (demand.history or demand.drafter) and demand.people > SPECULATION_PAYS_TO:
        return (
            f"Speculation rarely pays with {demand.people} people at once: it computes {1 + demand.history} rows a stream, and a"
            f" batch of more than {SPECULATION_PAYS_TO} streams already uses the card well. It helps a single stream."
        )
    return None
