"""The layout tensor: a part of every layer on each card, shared out as exllamav3's allocator shares it (model/model_tp_alloc.py).

Piece after piece (attention, feed-forward, head) is divided by the room that each card has left, in whole units: heads, experts,
128 columns. What a card needs for a moment counts as taken while later pieces are divided. `tests/engine/test_vram_real.py`
compares the result with the allocator itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from daemon.core.vram_model import (
    AttentionLayer,
    DeltaLayer,
    LatentLayer,
    Layer,
    ModelShape,
    SlidingLayer,
    state_bytes,
    token_bytes,
)
from daemon.core.vram_values import Demand
from daemon.core.vram_weights import LayerWeights, Weights

_COLUMNS = 128
"""Columns of a quantised matrix that cannot be divided."""
_SLACK = 1.1
"""By how much the allocator enlarges its idea of the cards when they are full, and goes on."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one card holds, in bytes. `parts` are its shares of the attention and of the feed-forward part of each layer."""

    weights: int = 0
    kv: int = 0
    recurrent: int = 0
    parts: tuple[tuple[float, float], ...] = ()
    head: float = 0.0


@dataclass(frozen=True, slots=True)
class _Piece:
    """Something that is divided in `units`. Sizes in bytes; `each` is what every card holds of it whole."""

    units: int
    weights: int
    kv: int = 0
    recurrent: int = 0
    each: int = 0
    moment_each: int = 0
    moment: int = 0
    """What computing needs on each card, and what is divided like the piece."""


def _attention(model: ModelShape, layer: Layer, part: LayerWeights, demand: Demand) -> _Piece:
    kv = token_bytes(layer, demand.precision) * demand.tokens
    state = state_bytes(layer, demand.streams, demand.history)
    match layer:
        case AttentionLayer(q_heads, kv_heads, head_dim) | SlidingLayer(q_heads, kv_heads, head_dim):
            units, wide = _widened(kv_heads, head_dim), 2 * (q_heads + kv_heads) * head_dim
            rebuilt = 2 * model.hidden * 2 * q_heads * head_dim
        case LatentLayer(q_heads, rank, rope):
            units, wide = 1, 2 * q_heads * (rank + rope)
            rebuilt = 2 * model.hidden * q_heads * rank
        case DeltaLayer(k_heads, v_heads, k_dim, v_dim):
            units, wide = _widened(k_heads, k_dim), 2 * (k_heads * k_dim + v_heads * v_dim)
            rebuilt = 2 * model.hidden * layer.channels
    return _Piece(units, part.mixing, kv, state, part.norm, demand.chunk * model.hidden * 4, demand.chunk * wide * 2 + rebuilt)


def _widened(heads: int, width: int) -> int:
    """Units of as many heads as it takes to fill whole columns."""
    while width % _COLUMNS and heads % 2 == 0:
        heads, width = heads // 2, width * 2
    return heads


def indivisible(model: ModelShape) -> str | None:
    """Why exllamav3 cannot divide the layers of such a model, in half a sentence; None where nothing is known against it."""
    for layer in model.layers:
        match layer:
            case AttentionLayer(_, heads, width) | SlidingLayer(_, heads, width):
                kind = "key/value heads"
            case DeltaLayer(heads, _, width):
                kind = "key heads of its linear attention"
            case LatentLayer():
                continue
        if width * heads // _widened(heads, width) % _COLUMNS:
            return f"{heads} {kind}, {width} columns each, do not make whole blocks of {_COLUMNS} columns"
    return None


def _feed_forward(model: ModelShape, part: LayerWeights, demand: Demand) -> _Piece:
    each, rows = demand.chunk * model.hidden * 4, demand.chunk * 2
    if model.experts is None:
        units, wide = model.intermediate // _COLUMNS, model.intermediate
    else:
        units, wide = model.experts.count, model.experts.per_token * model.experts.intermediate
    return _Piece(max(1, units), part.feed_forward, moment_each=each, moment=2 * rows * wide + 2 * model.hidden * wide)


def _pieces(model: ModelShape, weights: Weights, demand: Demand) -> Iterator[_Piece]:
    for layer, part in zip(model.layers, weights.layers, strict=True):
        yield _attention(model, layer, part, demand)
        yield _feed_forward(model, part, demand)
    table = weights.embedding if weights.embedding_quantised else 0
    yield _Piece(max(1, model.vocabulary // _COLUMNS), weights.head + weights.other + table, each=weights.norm)


def shares(model: ModelShape, weights: Weights, demand: Demand, rooms: tuple[int, ...]) -> tuple[Share, ...]:
    """What each card holds; `rooms` are the bytes that may be used on each, 0 for a card that is left out."""
    room = [float(size) for size in rooms]
    held, moment = [0] * len(rooms), [0] * len(rooms)
    parts: list[list[float]] = [[] for _ in rooms]
    found = [Share() for _ in rooms]
    for piece in _pieces(model, weights, demand):
        left = _left(room, held, moment)
        counts = unit_counts(piece.units, left)
        for i, count in enumerate(counts):
            portion = count / piece.units
            parts[i].append(portion)
            if left[i] <= 0:
                continue
            now = found[i]
            found[i] = replace(
                now,
                weights=now.weights + piece.each + piece.weights * count // piece.units,
                kv=now.kv + piece.kv * count // piece.units,
                recurrent=now.recurrent + piece.recurrent * count // piece.units,
            )
            held[i] = found[i].weights + found[i].kv + found[i].recurrent
            moment[i] = max(moment[i], piece.moment_each + int(piece.moment * portion))
    return tuple(
        replace(share, parts=tuple(zip(portions[:-1:2], portions[1:-1:2], strict=True)), head=portions[-1])
        for share, portions in zip(found, parts, strict=True)
    )


def _left(room: list[float], held: list[int], moment: list[int]) -> list[float]:
    """Room on each card; where there is none anywhere, of cards imagined larger, since everything must go somewhere."""
    while True:
        left = [max(0.0, size - taken - needed) for size, taken, needed in zip(room, held, moment, strict=True)]
        if any(left) or not any(room):
            return left
        room[:] = [size * _SLACK for size in room]


def unit_counts(units: int, left: list[float]) -> list[int]:
    """Whole units shared out by the room that is left, the largest remainders first."""
    whole = sum(left) or 1.0
    exact = [units * size / whole for size in left]
    counts = [int(x) for x in exact]
    order = sorted(range(len(left)), key=lambda i: counts[i] - exact[i])
    for i in order[: units - sum(counts)]:
        counts[i] += 1
    return counts
