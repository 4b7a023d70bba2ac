"""Single layers and matrices: what one layer lacks that its fellows have, and whether a quantised matrix is whole."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from daemon.core.safetensors_header import Tensor
from daemon.core.vram_findings import Finding, Gravity, few
from daemon.core.vram_model import ModelShape
from daemon.core.vram_weights import Part, placement

_TILE = 16
_LAYER = re.compile(r"(?:^|\.)layers\.\d+\.(?P<rest>.+)$")
_EXPERT = re.compile(r"\.experts\.(?P<number>\d+)\.")
_STORAGE = re.compile(r"\.(?:trellis|suh|svh|su|sv|mcg|mul1|weight|weight_scale|weight_scale_inv)$")
_FOREIGN = {"qweight": "GPTQ or AWQ", "qzeros": "GPTQ or AWQ", "absmax": "bitsandbytes", "quant_map": "bitsandbytes"}
_LEAST_FELLOWS = 2
"""Layers of a kind from which on one that differs from the others is at fault, and not merely different."""


def lacking_matrices(model: ModelShape, tensors: tuple[Tensor, ...]) -> Iterator[Finding]:
    """Layers without a matrix that nearly all layers of their kind have, and layers with too few experts."""
    per_layer: dict[int, set[str]] = defaultdict(set)
    experts: dict[int, set[int]] = defaultdict(set)
    for tensor in tensors:
        place, found = placement(tensor.name), _LAYER.search(tensor.name)
        if place.layer is None or place.layer >= len(model.layers) or not found or place.part in {Part.VISION, Part.DRAFTER}:
            continue
        expert = _EXPERT.search(tensor.name)
        if expert:
            experts[place.layer].add(int(expert["number"]))
        elif _STORAGE.search(found["rest"]):
            per_layer[place.layer].add(_STORAGE.sub("", found["rest"]))
    if model.familiar and model.experts is None:  # others may have layers that differ on purpose
        yield from _differing(model, per_layer)
    if model.experts is not None:
        short = [f"{len(experts[n])} in layer {n}" for n in sorted(experts) if len(experts[n]) < model.experts.count]
        if short:
            yield Finding(Gravity.FATAL, f"config.json has {model.experts.count} experts a layer, and there are {few(short)}")


def _differing(model: ModelShape, per_layer: Mapping[int, set[str]]) -> Iterator[Finding]:
    kinds: dict[type, list[int]] = defaultdict(list)
    for number, layer in enumerate(model.layers):
        if number in per_layer:
            kinds[type(layer)].append(number)
    lacking: list[str] = []
    for numbers in kinds.values():
        have = Counter(name for number in numbers for name in per_layer[number])
        usual = {name for name, count in have.items() if count * 2 > len(numbers)}
        if len(numbers) > _LEAST_FELLOWS:
            lacking += [
                f"{name} in layer {number}"
                for number in numbers
                for name in sorted(usual - per_layer[number])
                if _partly(name, per_layer[number])
            ]
    if lacking:
        yield Finding(Gravity.FATAL, f"matrices are missing that the other layers have: {few(lacking)}")


def _partly(name: str, have: set[str]) -> bool:
    """Whether a layer has other matrices of the same part: one that lacks all of it is named by the check of parts."""
    part, _, inner = name.partition(".")
    return not inner or any(other.startswith(f"{part}.") for other in have)


def quantised_parts(tensors: tuple[Tensor, ...]) -> Iterator[Finding]:
    """Trellises without scales or with scales of another size, tensors of the wrong type, weights of other quantisers."""
    by_name = {tensor.name: tensor for tensor in tensors}
    halves: list[str] = []
    wrong: list[str] = []
    foreign: dict[str, list[str]] = defaultdict(list)
    for tensor in tensors:
        name, _, last = tensor.name.rpartition(".")
        if last in _FOREIGN:
            foreign[_FOREIGN[last]].append(tensor.name)
        expected = {"trellis": "I16", "suh": "F16", "svh": "F16"}.get(last)
        if expected is not None and tensor.dtype != expected:
            wrong.append(f"{tensor.name} is {tensor.dtype}, not {expected}")
        elif last == "trellis" and placement(tensor.name).part is not Part.EMBEDDING:
            halves += [] if _scaled(name, by_name) else [name]
            wrong += _unfit(name, tensor, by_name)
    if foreign:
        kind, names = next(iter(foreign.items()))
        yield Finding(Gravity.FATAL, f"these are weights of {kind}, which exl3d cannot load: {few(names)}")
    if halves:
        yield Finding(Gravity.FATAL, f"quantised weights lack their scales (suh and svh): {few(halves)}")
    if wrong:
        yield Finding(Gravity.FATAL, f"quantised weights are not as exllamav3 writes them: {few(wrong)}")


def _scaled(name: str, by_name: Mapping[str, Tensor]) -> bool:
    return (f"{name}.suh" in by_name or f"{name}.su" in by_name) and (f"{name}.svh" in by_name or f"{name}.sv" in by_name)


def _unfit(name: str, trellis: Tensor, by_name: Mapping[str, Tensor]) -> list[str]:
    if len(trellis.shape) != 3:  # noqa: PLR2004 - rows, columns and bits of tiles
        return [f"{trellis.name} has {len(trellis.shape)} dimensions, not 3"]
    wrong: list[str] = []
    for end, tiles in (("suh", trellis.shape[0]), ("svh", trellis.shape[1])):
        scale = by_name.get(f"{name}.{end}")
        if scale is not None and scale.shape != (tiles * _TILE,):
            wrong.append(f"{scale.name} has {scale.shape[0] if scale.shape else 0} values for {tiles * _TILE} of its matrix")
    return wrong
