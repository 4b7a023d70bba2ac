"""What the weight files weigh, by the part of the model each tensor belongs to.

Sizes come from safetensors headers, so they are exact up to the loader's padding. A tensor that exllamav3 does not load
(a drafter or a vision tower that is not asked for) is counted apart.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from daemon.core.safetensors_header import Tensor

_LAYER = re.compile(r"(?:^|\.)layers\.(?P<index>\d+)\.(?P<rest>.+)$")
_VISION = (
    "visual.",
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "model.visual.",
    "model.vision_tower.",
    "model.vision_model.",
)
_DRAFTER = ("mtp.", "model.mtp.")
_EMBEDDING = re.compile(r"(?:^|\.)embed_tokens\.")
_HEAD = re.compile(r"(?:^|\.)lm_head\.")
_EXPERTS = ".experts."
_ATTENTION = ("self_attn.", "linear_attn.", "attention.", "attn.")
_TILE = 16
_RECONSTRUCTED_COLUMNS = 32768
"""exllamav3 rebuilds a quantised matrix in fp16 for a prefill, at most this many columns at a time."""


class Part(Enum):
    """Where in the model a tensor sits."""

    EMBEDDING = "embedding"
    MIXING = "mixing"
    """Attention or what stands in its place."""
    FEED_FORWARD = "feed_forward"
    NORM = "norm"
    HEAD = "head"
    VISION = "vision"
    DRAFTER = "drafter"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Placement:
    """A tensor's part, and its layer where it has one."""

    part: Part
    layer: int | None = None


def placement(name: str) -> Placement:
    """Where a tensor of this name belongs."""
    if name.startswith(_VISION):
        return Placement(Part.VISION)
    if name.startswith(_DRAFTER):
        return Placement(Part.DRAFTER)
    layer = _LAYER.search(name)
    if layer:
        index, rest = int(layer["index"]), layer["rest"]
        if rest.startswith(_ATTENTION):
            return Placement(Part.MIXING, index)
        return Placement(Part.NORM if "norm" in rest.split(".")[0] else Part.FEED_FORWARD, index)
    if _EMBEDDING.search(name):
        return Placement(Part.EMBEDDING)
    if _HEAD.search(name):
        return Placement(Part.HEAD)
    return Placement(Part.NORM if name.endswith("norm.weight") else Part.OTHER)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Bytes of one layer. `rebuilt` is the largest matrix of it that a prefill rebuilds in fp16; 0 where none is quantised."""

    mixing: int
    feed_forward: int
    norm: int
    rebuilt: int
    experts: int = 0
    """Bytes that leave the GPU where exllamav3 leaves the routed experts in host memory: the trellises of those quantised with
    the codebook mul1. Their scales stay, for prompts are computed on the GPU.
    """
    experts_in_ram: int = 0
    """What they then take there: trellises and scales."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.mixing + self.feed_forward + self.norm


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a model by part."""

    layers: tuple[LayerWeights, ...]
    embedding: int
    embedding_quantised: bool
    """A quantised table lives on the GPU, a plain one in host memory."""
    head: int
    """The head's own bytes, or those of the embedding's copy where the two are tied."""
    head_rebuilt: int
    norm: int
    vision: int
    drafter: int
    other: int
    bits: float | None
    """Mean bits a weight of the quantised layer matrices; None where nothing is quantised."""

    @property
    def loaded(self) -> int:
        """Bytes of the text model on GPUs."""
        table = self.embedding if self.embedding_quantised else 0
        return sum(layer.total for layer in self.layers) + self.head + self.norm + self.other + table


def rebuilt_bytes(tensor: Tensor) -> int:
    """fp16 bytes that a prefill needs to rebuild this tensor's matrix; 0 for anything but a trellis."""
    if not tensor.name.endswith(".trellis") or len(tensor.shape) != 3:  # noqa: PLR2004 - rows, columns and bits of tiles
        return 0
    return tensor.shape[0] * _TILE * min(tensor.shape[1] * _TILE, _RECONSTRUCTED_COLUMNS) * 2


def loaded_bytes(tensor: Tensor) -> int:
    """Bytes a tensor takes when loaded: matrices stored in fp32 become fp16."""
    return (
        tensor.size // 2 if tensor.dtype == "F32" and len(tensor.shape) > 1 and tensor.name.endswith(".weight") else tensor.size
    )


def weigh(tensors: Iterable[Tensor], layers: int, *, tied: bool) -> Weights:
    """Add up a model's tensors. `layers` is how many layers config.json has; tensors of further layers count as `other`."""
    by_part = dict.fromkeys(Part, 0)
    per_layer = [{Part.MIXING: 0, Part.FEED_FORWARD: 0, Part.NORM: 0} for _ in range(layers)]
    rebuilt, trellises, experts, movable = [0] * layers, [0] * layers, [0] * layers, [False] * layers
    head_rebuilt = packed_bits = packed_weights = 0
    quantised_table = False
    for tensor in tensors:
        place = placement(tensor.name)
        size = loaded_bytes(tensor)
        if place.layer is not None and place.layer < layers:
            per_layer[place.layer][place.part] += size
            rebuilt[place.layer] = max(rebuilt[place.layer], rebuilt_bytes(tensor))
            if _EXPERTS in tensor.name:
                experts[place.layer] += 0 if tensor.name.endswith(".mul1") else size
                trellises[place.layer] += size if tensor.name.endswith((".trellis", ".mul1")) else 0
                movable[place.layer] = movable[place.layer] or tensor.name.endswith(".mul1")
            if tensor.name.endswith(".trellis") and len(tensor.shape) == 3:  # noqa: PLR2004 - as above
                packed_bits += tensor.size * 8
                packed_weights += tensor.shape[0] * tensor.shape[1] * _TILE * _TILE
            continue
        by_part[Part.OTHER if place.layer is not None else place.part] += size
        if place.part is Part.HEAD:
            head_rebuilt = max(head_rebuilt, rebuilt_bytes(tensor))
        quantised_table = quantised_table or (place.part is Part.EMBEDDING and tensor.name.endswith(".trellis"))
    head = by_part[Part.HEAD] or (by_part[Part.EMBEDDING] if tied else 0)
    return Weights(
        layers=tuple(
            LayerWeights(
                sizes[Part.MIXING],
                sizes[Part.FEED_FORWARD],
                sizes[Part.NORM],
                largest,
                experts=moved if may_move else 0,
                experts_in_ram=routed if may_move else 0,
            )
            for sizes, largest, moved, routed, may_move in zip(per_layer, rebuilt, trellises, experts, movable, strict=True)
        ),
        embedding=by_part[Part.EMBEDDING],
        embedding_quantised=quantised_table,
        head=head,
        head_rebuilt=head_rebuilt,
        norm=by_part[Part.NORM],
        vision=by_part[Part.VISION],
        drafter=by_part[Part.DRAFTER],
        other=by_part[Part.OTHER],
        bits=packed_bits / packed_weights if packed_weights else None,
    )


def offloaded(weights: Weights, count: int) -> frozenset[int]:
    """The layers whose experts lie in host memory where those of `count` layers do: the first ones that can."""
    return frozenset([number for number, layer in enumerate(weights.layers) if layer.experts][:count])
