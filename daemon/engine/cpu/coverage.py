"""What a model needs against what the CPU has, found before its weights are loaded, so that nothing is missing in mid-request.

1. A kind of layer that has been checked on a CPU is listed in `_CHECKED`, with the operations its code names but a CPU never
   reaches. Any other kind is missing as a whole: it may call Triton kernels, which no list of operations shows.
2. Of a checked kind, every other operation its code names must be in `extension.OPERATIONS`.
3. Some settings of a checked kind need more; `_settings_missing` knows them.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Protocol

from daemon.engine.cpu.extension import OPERATIONS, OperationMissing

_CUDA_BUNDLES = frozenset({"exl3_mgemm"})
"""Several EXL3 layers multiplied at once: such bundles are only built on CUDA."""

_CHECKED: Mapping[str, frozenset[str]] = {
    "Attention": _CUDA_BUNDLES,
    "BlockSparseMLP": frozenset({"BC_BlockSparseMLP", "exl3_moe", "exl3_moe_gather", "exl3_moe_max_concurrency"}),
    "Conv": frozenset(),
    "DeepstackEmbed": frozenset(),
    "Embedding": frozenset(),
    "GatedDeltaNet": _CUDA_BUNDLES | {"BC_GatedDeltaNet", "BC_GatedDeltaNetSplit", "gated_delta_net_fused_op"},
    "GatedMLP": _CUDA_BUNDLES,
    "GatedRMSNorm": frozenset(),
    "LayerNorm": frozenset(),
    "Linear": frozenset({"pinned_cuda_view"}),
    "MLP": frozenset(),
    "Qwen3VLPosEmbedding": frozenset(),
    "Qwen3VLVisionPatchMerger": frozenset(),
    "RMSNorm": frozenset(),
    "Qwen3_5MTPInputLayer": frozenset(),
    "TransformerBlock": frozenset(),
}


class _Layer(Protocol):
    """What this room reads of exllamav3's Module."""

    @property
    def key(self) -> str:
        """Its name in the checkpoint."""
        ...

    @property
    def modules(self) -> Sequence["_Layer"]:
        """What it is made of."""
        ...


class _Model(Protocol):
    """What this room reads of exllamav3's Model."""

    @property
    def modules(self) -> Sequence[_Layer]:
        """Its layers."""
        ...


def _layers(layers: Sequence[_Layer]) -> Iterator[_Layer]:
    for layer in layers:
        yield layer
        yield from _layers(layer.modules)


@cache
def _named(kind: type) -> frozenset[str]:
    """Operations that the source of a class names, as `ext.NAME`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return frozenset(
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ext"
    )


def _settings_missing(layer: _Layer) -> Iterator[str]:
    """Operations that a layer needs because of how it is set up."""
    match type(layer).__name__:
        case "GatedDeltaNet":
            if getattr(layer, "kda", False):
                yield "chunk_kda"
            if getattr(layer, "qkvz_proj", None) is not None:
                yield "gated_delta_net_fused_op"
        case "BlockSparseMLP":
            router = getattr(layer, "router_type", "std")
            if router != "std":
                yield f"routing_{router}"
        case "Attention":
            if getattr(layer, "use_cu_seqlens", False):
                yield "attention over packed sequences"
            if getattr(layer, "qsa_indexer", None) is not None:
                yield "sparse attention"
        case _:
            return


def missing_operations(model: _Model) -> tuple[str, ...]:
    """Names of what `model` needs and a CPU lacks, sorted; empty for a model that can be served. Works before loading."""
    missing: set[str] = set()
    for layer in _layers(model.modules):
        kind = type(layer)
        if kind.__name__ not in _CHECKED:
            missing.add(f"{kind.__module__}.{kind.__name__}")
            continue
        missing |= _named(kind) - _CHECKED[kind.__name__] - set(OPERATIONS)
        missing.update(_settings_missing(layer))
    return tuple(sorted(missing))


def require_operations(model: _Model) -> None:
    """Raise OperationMissing, a ConfigError, where `model` cannot run on a CPU."""
    missing = missing_operations(model)
    if missing:
        raise OperationMissing(f"this model cannot run on a CPU, which has no {', '.join(missing)}", type(model).__name__)
