"""How many people fit at how much context: arithmetic before anything is loaded.

Pure. `host/` and `exl3ctl plan` read config.json and safetensors headers and hand values in. Every row says how far it can be
believed: weights, KV and states are exact; prefill transients and logits are estimated from the shapes of what is computed;
the overhead is assumed until a load on this machine measured it.
"""

from dataclasses import dataclass, replace

from daemon.core.drafting import logit_rows
from daemon.core.vram_model import (
    PAGE,
    AttentionLayer,
    DeltaLayer,
    LatentLayer,
    Layer,
    ModelShape,
    SlidingLayer,
    state_bytes,
    token_bytes,
)
from daemon.core.vram_tensor import shares
from daemon.core.vram_values import Adapters, Card, CardPlan, Certainty, Demand, Fits, Item, Layout, NoRoom, Placing, Row
from daemon.core.vram_weights import LayerWeights, Weights, offloaded

MOST_PEOPLE = 256
_REBUILD_ROWS = 144
"""Rows above which exllamav3 rebuilds quantised matrices instead of multiplying by them as they are."""
_STAGING_PAGES = 256


@dataclass(frozen=True, slots=True)
class _Sums:
    """A card's account while it is being filled."""

    weights: int = 0
    adapters: int = 0
    kv: int = 0
    recurrent: int = 0
    drafter: int = 0
    vision: int = 0
    transient: int = 0
    logits: int = 0

    @property
    def total(self) -> int:
        held = self.weights + self.adapters + self.kv + self.recurrent + self.drafter + self.vision
        return held + self.transient + self.logits


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _mixing_transient(layer: Layer, demand: Demand, share: float) -> int:
    rows = demand.chunk
    match layer:
        case AttentionLayer(q_heads, kv_heads, head_dim) | SlidingLayer(q_heads, kv_heads, head_dim):
            activations = rows * (3 * q_heads + 2 * kv_heads) * head_dim * 2
            staging = 0
            if not demand.precision.full and isinstance(layer, AttentionLayer):
                padded = -(-rows // 128) * 128
                staging = 2 * _STAGING_PAGES * PAGE * kv_heads * head_dim * 2 + padded * q_heads * _power_of_two(head_dim) * 4
            return int((activations + staging) * share)
        case LatentLayer(q_heads, rank, rope):
            return int(rows * (q_heads * 2 + 2) * (rank + rope) * 2 * share)
        case DeltaLayer(_, v_heads, _, v_dim):
            return int(rows * (2 * layer.channels + 3 * v_heads * v_dim) * 2 * share)


def layer_transient(model: ModelShape, layer: Layer, weights: LayerWeights, demand: Demand, share: float = 1.0) -> int:
    """Bytes a prefill chunk needs for a moment in one layer: the larger of its two halves, beside the fp32 residual."""
    rows = demand.chunk
    rebuilt = int(weights.rebuilt * share) if rows > _REBUILD_ROWS else 0
    wide = model.experts.per_token * model.experts.intermediate if model.experts else model.intermediate
    feed_forward = int(2 * rows * wide * 2 * share)
    residual = 2 * rows * model.hidden * 4
    return residual + rebuilt + max(feed_forward, _mixing_transient(layer, demand, share))


def logits_bytes(model: ModelShape, demand: Demand) -> int:
    """Rows of logits in fp16 with their fp32 copy: one a stream, and one more a draft token."""
    padded = -(-model.vocabulary // 128) * 128
    rows = logit_rows(demand.streams, demand.history, drafter=demand.drafter or demand.draft is not None)
    return rows * padded * 6


def _head_transient(model: ModelShape, weights: Weights) -> int:
    return weights.head_rebuilt + 2 * model.hidden * 4


def _drafter_bytes(model: ModelShape, weights: Weights, demand: Demand) -> int:
    """Weights and cache of the model's own drafter, or of a model that drafts for it."""
    size = 0
    if demand.draft is not None:
        size = demand.draft.weights + demand.draft.token * demand.tokens + demand.draft.slot * demand.streams
    if demand.drafter:
        attention = next((layer for layer in model.layers if isinstance(layer, AttentionLayer)), None)
        kv = token_bytes(attention, demand.precision) * demand.tokens * model.drafter_layers if attention else 0
        size += weights.drafter + kv
    return size


def _overhead_certainty(card: Card) -> Certainty:
    if card.confirmed:
        return Certainty.MEASURED
    return Certainty.ESTIMATED if card.elsewhere else Certainty.ASSUMED


def _rows(card: Card, sums: _Sums, weights: Certainty) -> tuple[Row, ...]:
    rows = (
        Row(Item.WEIGHTS, sums.weights, weights),
        Row(Item.ADAPTERS, sums.adapters, Certainty.EXACT),
        Row(Item.KV, sums.kv, weights),
        Row(Item.RECURRENT, sums.recurrent, weights),
        Row(Item.DRAFTER, sums.drafter, Certainty.EXACT),
        Row(Item.VISION, sums.vision, Certainty.EXACT),
        Row(Item.PREFILL, sums.transient, Certainty.ESTIMATED),
        Row(Item.LOGITS, sums.logits, Certainty.ESTIMATED),
        Row(Item.OVERHEAD, card.overhead, _overhead_certainty(card)),
        Row(Item.OTHERS, card.others, Certainty.MEASURED),
        Row(Item.MARGIN, card.reserve, Certainty.EXACT),
    )
    return tuple(row for row in rows if row.size)


@dataclass(frozen=True, slots=True)
class _Module:
    """What the loader places as a whole."""

    name: str
    layer: int | None
    weights: int
    adapters: int
    kv: int
    recurrent: int
    transient: int
    logits: int = 0


def _modules(model: ModelShape, weights: Weights, demand: Demand) -> tuple[_Module, ...]:
    alike: dict[tuple[Layer, LayerWeights], tuple[int, int, int]] = {}
    modules: list[_Module] = []
    adapters = demand.adapters or Adapters((0,) * len(model.layers))
    moved = offloaded(weights, demand.experts_on_cpu)
    for number, (layer, part) in enumerate(zip(model.layers, weights.layers, strict=True)):
        sizes = alike.get((layer, part))
        held = part.total - (part.experts if number in moved else 0)
        if sizes is None:
            sizes = alike[layer, part] = (
                token_bytes(layer, demand.precision) * demand.tokens,
                state_bytes(layer, demand.streams, demand.history),
                layer_transient(model, layer, part, demand),
            )
        modules.append(_Module(f"layer {number}", number, held, adapters.layers[number], *sizes))
    tail, transient = weights.head + weights.norm + weights.other, _head_transient(model, weights)
    return (*modules, _Module("the head", None, tail, adapters.head, 0, 0, transient, logits_bytes(model, demand)))


def _start(model: ModelShape, weights: Weights, demand: Demand) -> _Sums:
    """What lies on the first card, whatever the split."""
    return _Sums(
        weights=weights.embedding if weights.embedding_quantised else 0,
        drafter=_drafter_bytes(model, weights, demand),
        vision=weights.vision if demand.vision else 0,
    )


def _split(model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand) -> Placing:
    """Fill the cards in order, as exllamav3's own split does: a card that a module does not fit is closed."""
    start = _start(model, weights, demand)
    sums = [start, *(_Sums() for _ in cards[1:])]
    held: list[list[int]] = [[] for _ in cards]
    at = 0
    modules = _modules(model, weights, demand)
    for module in modules:
        grown = _grown(sums[at], module)
        while grown.total > cards[at].room:
            at += 1
            if at == len(cards):
                return _no_room(modules, start.total, cards, module)
            grown = _grown(sums[at], module)
        sums[at] = grown
        if module.layer is not None:
            held[at].append(module.layer)
    return Fits(
        tuple(
            CardPlan(card, _rows(card, total, Certainty.EXACT), (numbers[0], numbers[-1]) if numbers else None, demand.streams)
            for card, total, numbers in zip(cards, sums, held, strict=True)
        )
    )


def split_as(model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand, held: tuple[int, ...]) -> Fits:
    """The plan of a split that was made by somebody else, whether it fits or not: `held` layers on each card, in order. The head
    lies where the last layer does.
    """
    modules = _modules(model, weights, demand)
    sums, at = [_start(model, weights, demand), *(_Sums() for _ in cards[1:])], 0
    left = list(held)
    for module in modules:
        while module.layer is not None and left[at] == 0 and at + 1 < len(cards):
            at += 1
        sums[at] = _grown(sums[at], module)
        left[at] -= module.layer is not None
    firsts = [sum(held[:n]) for n in range(len(held))]
    return Fits(
        tuple(
            CardPlan(card, _rows(card, total, Certainty.EXACT), (first, first + n - 1) if n else None, demand.streams)
            for card, total, first, n in zip(cards, sums, firsts, held, strict=True)
        )
    )


def _grown(sums: _Sums, module: _Module) -> _Sums:
    return _Sums(
        weights=sums.weights + module.weights,
        adapters=sums.adapters + module.adapters,
        kv=sums.kv + module.kv,
        recurrent=sums.recurrent + module.recurrent,
        drafter=sums.drafter,
        vision=sums.vision,
        transient=max(sums.transient, module.transient),
        logits=sums.logits + module.logits,
    )


def _no_room(modules: tuple[_Module, ...], start: int, cards: tuple[Card, ...], last: _Module) -> NoRoom:
    """What a split lacks at least: everything that must be held, against everything the cards have."""
    need = start + sum(module.weights + module.adapters + module.kv + module.recurrent + module.logits for module in modules)
    have = sum(max(0, card.room - last.transient) for card in cards)
    where = f"{last.name} of {len(modules) - 1}" if last.layer is not None else last.name
    if any(card.limit is not None for card in cards):
        return NoRoom(f"{where} finds no room in the split {split_words(cards)}", max(1, need - have))
    return NoRoom(f"{where} finds no room on {'the card' if len(cards) == 1 else 'any card'}", max(1, need - have))


def split_words(cards: tuple[Card, ...]) -> str:
    """A split as people write it, in GiB."""
    return ",".join("all" if card.limit is None else f"{card.limit / (1 << 30):g}" for card in cards)


def tensor_plans(model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand) -> tuple[CardPlan, ...]:
    """A part of every layer on each card that is used, whether it fits or not, as exllamav3's allocator shares it out."""
    start, first = _start(model, weights, demand), next((i for i, card in enumerate(cards) if card.limit != 0), 0)
    beside = [start.drafter + start.vision if i == first else 0 for i in range(len(cards))]
    rooms = tuple(max(1, card.room - size) if card.limit != 0 else 0 for card, size in zip(cards, beside, strict=True))
    plans: list[CardPlan] = []
    for i, (card, share) in enumerate(zip(cards, shares(model, weights, demand, rooms), strict=True)):
        moments = [
            layer_transient(model, layer, part, demand, max(portions))
            for layer, part, portions in zip(model.layers, weights.layers, share.parts, strict=True)
            if any(portions)
        ]
        sums = _Sums(
            weights=share.weights,
            kv=share.kv,
            recurrent=share.recurrent,
            drafter=start.drafter if i == first else 0,
            vision=start.vision if i == first else 0,
            transient=max([*moments, int(_head_transient(model, weights) * share.head)]) if rooms[i] else 0,
            logits=logits_bytes(model, demand) if i == first else 0,
        )
        held = (0, len(model.layers) - 1) if rooms[i] else None
        plans.append(CardPlan(card, _rows(card, sums, Certainty.ESTIMATED), held, demand.streams))
    return tuple(plans)


def _tensor(model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand) -> Placing:
    plans = tensor_plans(model, weights, cards, demand)
    worst = min((plan for plan in plans if plan.card.limit != 0), key=lambda plan: plan.free)
    if worst.free < 0:
        return NoRoom(f"the share of {worst.card.name} does not fit it", -worst.free)
    return Fits(plans)


def _replicas(model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand) -> Placing:
    """A whole engine on each card; people go where the most room is left."""
    most = [_most_people(model, weights, (card,), demand, Layout.SPLIT) for card in cards]
    if sum(most) < demand.people:
        first = _split(model, weights, cards[:1], replace(demand, people=1))
        if isinstance(first, NoRoom):
            return NoRoom(f"the whole model does not fit {cards[0].name}: {first.words}", first.short)
        shorts = [_short(model, weights, card, replace(demand, people=n + 1)) for card, n in zip(cards, most, strict=True)]
        return NoRoom(f"{sum(most)} people fit on {len(cards)} cards, {demand.people} are wanted", min(shorts))
    counts = [0] * len(cards)
    for _ in range(demand.people):
        freest = max((i for i in range(len(cards)) if counts[i] < most[i]), key=lambda i: most[i] - counts[i])
        counts[freest] += 1
    plans: list[CardPlan] = []
    for card, count in zip(cards, counts, strict=True):
        placed = _split(model, weights, (card,), replace(demand, people=count)) if count else Fits(())
        if isinstance(placed, NoRoom):  # _most_people said that it fits
            return placed
        plans.extend(placed.cards)
    return Fits(tuple(plans))


def _short(model: ModelShape, weights: Weights, card: Card, demand: Demand) -> int:
    """What a card lacks for a whole engine."""
    placed = _split(model, weights, (card,), demand)
    return placed.short if isinstance(placed, NoRoom) else 0


def place(model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand, layout: Layout) -> Placing:
    """Put the model, `demand.people` caches and everything else on the cards."""
    match layout:
        case Layout.SPLIT:
            return _split(model, weights, cards, demand)
        case Layout.TENSOR:
            return _tensor(model, weights, cards, demand)
        case Layout.REPLICAS:
            return _replicas(model, weights, cards, demand)


def _most_people(model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand, layout: Layout) -> int:
    if layout is Layout.REPLICAS:
        return sum(_most_people(model, weights, (card,), demand, Layout.SPLIT) for card in cards)
    low, high = 0, MOST_PEOPLE
    while low < high:
        middle = (low + high + 1) // 2
        if isinstance(place(model, weights, cards, replace(demand, people=middle), layout), Fits):
            low = middle
        else:
            high = middle - 1
    return low


def most_people(model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand, layout: Layout) -> int:
    """How many people fit at `demand.context`; at most `MOST_PEOPLE` a group of cards."""
    return _most_people(model, weights, cards, demand, layout)


def longest_context(model: ModelShape, weights: Weights, cards: tuple[Card, ...], demand: Demand, layout: Layout) -> int:
    """The longest context, in whole pages, at which `demand.people` fit; 0 where they do not fit at any."""
    low, high = 0, (model.context or 1 << 20) // PAGE
    while low < high:
        middle = (low + high + 1) // 2
        if isinstance(place(model, weights, cards, replace(demand, context=middle * PAGE), layout), Fits):
            low = middle
        else:
            high = middle - 1
    return low * PAGE
