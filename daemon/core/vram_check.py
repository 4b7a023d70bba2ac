"""Whether a model directory is complete: what a converter forgot, or an upload left out, named before anything is loaded."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from daemon.core.safetensors_header import Tensor
from daemon.core.vram_findings import Finding, Gravity, few
from daemon.core.vram_model import AttentionLayer, DeltaLayer, ModelShape
from daemon.core.vram_parts import lacking_matrices, quantised_parts
from daemon.core.vram_weights import Part, placement, weigh

_TILE = 16
_PAD = 128
_BITS_APART = 0.75
"""How far mean bits may be from config.json's: a mix of 4 and 5 bits is called 4.5, not 4."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What lies in the directory besides config.json and the tensors."""

    has_tokenizer: bool
    """tokenizer.json is there."""
    has_template: bool
    """tokenizer_config.json or a file of its own holds a chat template."""
    has_preprocessor: bool
    """preprocessor_config.json is there."""
    shards_named: frozenset[str] = frozenset()
    """Files that model.safetensors.index.json names."""
    shards_present: frozenset[str] = frozenset()
    tensors_named: frozenset[str] = frozenset()
    """Tensors that the index names."""
    damaged: tuple[str, ...] = ()
    """Files that are cut off or cannot be read, a sentence each."""
    twice: tuple[str, ...] = ()
    """Tensors that are in two files, with both."""
    strayed: tuple[str, ...] = ()
    """Tensors in another file than the index says."""
    highest_token: int | None = None
    """Highest id of tokenizer.json; None where nobody looked, or it cannot be read."""


class _Quantisation(msgspec.Struct, frozen=True):
    quant_method: str = ""
    bits: float | None = None
    head_bits: float | None = None


class _Quantised(msgspec.Struct, frozen=True):
    quantization_config: _Quantisation | None = None


def check(
    config: Mapping[str, object], model: ModelShape, tensors: tuple[Tensor, ...], around: Surroundings
) -> tuple[Finding, ...]:
    """Everything that is wrong, the fatal things first."""
    findings = [
        *_files(around, tensors),
        *_parts(model, tensors, around),
        *lacking_matrices(model, tensors),
        *_shapes(model, tensors),
        *quantised_parts(tensors),
        *_quantisation(config, model, tensors),
        *_tokenizer(model, around),
    ]
    return tuple(sorted(findings, key=lambda finding: finding.gravity is not Gravity.FATAL))


def _files(around: Surroundings, tensors: tuple[Tensor, ...]) -> Iterator[Finding]:
    missing = sorted(around.shards_named - around.shards_present)
    if missing:
        yield Finding(Gravity.FATAL, f"files are missing that model.safetensors.index.json names: {few(missing)}")
    absent = sorted(around.tensors_named - {tensor.name for tensor in tensors})
    if absent and not missing:
        yield Finding(Gravity.FATAL, f"tensors are missing that model.safetensors.index.json names: {few(absent)}")
    for words in around.damaged:
        yield Finding(Gravity.FATAL, words)
    if not tensors:
        yield Finding(Gravity.FATAL, "there is no tensor in any .safetensors file here")
    if around.twice:
        yield Finding(Gravity.FATAL, f"tensors are there twice, and which of them is loaded is chance: {few(around.twice)}")
    if around.strayed:
        yield Finding(
            Gravity.WARNING, f"tensors lie in other files than model.safetensors.index.json says: {few(around.strayed)}"
        )


def _parts(model: ModelShape, tensors: tuple[Tensor, ...], around: Surroundings) -> Iterator[Finding]:
    if not tensors:
        return
    places = [placement(tensor.name) for tensor in tensors]
    parts = {place.part for place in places}
    if Part.EMBEDDING not in parts:
        yield Finding(Gravity.FATAL, "the embeddings (embed_tokens) are missing")
    if Part.HEAD not in parts and not model.tied:
        yield Finding(Gravity.FATAL, "the head (lm_head) is missing, and config.json does not tie it to the embeddings")
    if not any(place.part is Part.NORM and place.layer is None for place in places):
        yield Finding(Gravity.FATAL, "the final norm is missing")
    yield from _layers(len(model.layers), {(place.layer, place.part) for place in places if place.layer is not None})
    if model.vision and Part.VISION not in parts:
        yield Finding(Gravity.FATAL, "config.json has a vision tower (vision_config), but its weights are missing")
    if model.vision and not around.has_preprocessor:
        yield Finding(Gravity.FATAL, "config.json has a vision tower, but preprocessor_config.json is missing")
    if model.drafter_layers and Part.DRAFTER not in parts:
        words = "config.json has a drafter (mtp_num_hidden_layers), but its weights are missing: no MTP speculation"
        yield Finding(Gravity.WARNING, words)


def _layers(count: int, have: set[tuple[int, Part]]) -> Iterator[Finding]:
    names = {Part.MIXING: "attention", Part.FEED_FORWARD: "feed-forward", Part.NORM: "norm"}
    for part, called in names.items():
        lacking = [str(n) for n in range(count) if (n, part) not in have]
        if lacking:
            yield Finding(Gravity.FATAL, f"{called} weights are missing in layer {few(lacking)} of {count}")
    beyond = sorted({layer for layer, _ in have if layer >= count})
    if beyond:
        numbers = few([str(n) for n in beyond])
        yield Finding(Gravity.WARNING, f"weights of layer {numbers} are here, but config.json has {count} layers")


def _sizes(tensor: Tensor) -> tuple[str, int, int] | None:
    """A matrix as (its name without suffix, columns in, columns out)."""
    if tensor.name.endswith(".trellis") and len(tensor.shape) == 3:  # noqa: PLR2004 - rows, columns and bits of tiles
        return tensor.name.removesuffix(".trellis"), tensor.shape[0] * _TILE, tensor.shape[1] * _TILE
    if tensor.name.endswith(".weight") and len(tensor.shape) == 2:  # noqa: PLR2004 - a matrix
        return tensor.name.removesuffix(".weight"), tensor.shape[1], tensor.shape[0]
    return None


def _expected(model: ModelShape, name: str) -> tuple[int, tuple[int, ...]] | None:
    """Columns in, and the allowed numbers of columns out, of a matrix; None where config.json says nothing about it."""
    place = placement(name + ".weight")
    if place.part in {Part.EMBEDDING, Part.HEAD}:
        return model.hidden, (model.vocabulary,)
    if place.layer is None or place.layer >= len(model.layers):
        return None
    layer, last = model.layers[place.layer], name.rsplit(".", 1)[-1]
    if place.part is Part.MIXING and isinstance(layer, AttentionLayer):
        queries, keys = layer.q_heads * layer.head_dim, layer.kv_heads * layer.head_dim
        table = {
            "q_proj": (model.hidden, (queries, 2 * queries)),
            "k_proj": (model.hidden, (keys,)),
            "v_proj": (model.hidden, (keys,)),
        }
        return (queries, (model.hidden,)) if last == "o_proj" else table.get(last)
    if place.part is Part.MIXING and isinstance(layer, DeltaLayer):
        values = layer.v_heads * layer.v_dim
        table = {"in_proj_qkv": (model.hidden, (layer.channels,)), "in_proj_z": (model.hidden, (values,))}
        return (values, (model.hidden,)) if last == "out_proj" else table.get(last)
    if place.part is Part.FEED_FORWARD and model.experts is None:
        table = {"up_proj": (model.hidden, (model.intermediate,)), "gate_proj": (model.hidden, (model.intermediate,))}
        return (model.intermediate, (model.hidden,)) if last == "down_proj" else table.get(last)
    return None


def _same(have: int, want: int) -> bool:
    """Equal, or equal when padded as quantised matrices are."""
    return have in {want, -(-want // _PAD) * _PAD}


def _shapes(model: ModelShape, tensors: tuple[Tensor, ...]) -> Iterator[Finding]:
    if not model.familiar:
        return
    wrong: list[str] = []
    for tensor in tensors:
        sizes = _sizes(tensor)
        expected = _expected(model, sizes[0]) if sizes else None
        if sizes is None or expected is None:
            continue
        name, columns_in, columns_out = sizes
        if not _same(columns_in, expected[0]) or not any(_same(columns_out, out) for out in expected[1]):
            wrong.append(f"{name} is {columns_in} to {columns_out}, config.json wants {expected[0]} to {expected[1][0]}")
    if wrong:
        yield Finding(Gravity.FATAL, f"weights do not fit config.json: {few(wrong)}")


def _quantisation(config: Mapping[str, object], model: ModelShape, tensors: tuple[Tensor, ...]) -> Iterator[Finding]:
    try:
        said = msgspec.convert(config, _Quantised).quantization_config
    except msgspec.ValidationError as problem:
        yield Finding(Gravity.WARNING, f"quantization_config cannot be read: {problem}")
        return
    trellises = [tensor for tensor in tensors if tensor.name.endswith(".trellis")]
    if said is None:
        if trellises:
            yield Finding(Gravity.WARNING, "weights are quantised (EXL3), but config.json has no quantization_config")
        return
    if said.quant_method != "exl3":
        method = said.quant_method or "quantised somehow"
        yield Finding(Gravity.FATAL, f"config.json says the weights are {method}: exl3d loads EXL3 and plain fp16 or bf16")
        return
    if not trellises and tensors:
        yield Finding(Gravity.FATAL, "config.json says exl3, but no weight is quantised (there is no .trellis)")
        return
    bits = weigh(tensors, len(model.layers), tied=model.tied).bits
    if said.bits is not None and bits is not None and abs(bits - said.bits) > _BITS_APART:
        yield Finding(Gravity.WARNING, f"config.json says {said.bits:g} bits, the weights have {bits:.2f} on average")
    head = next((tensor for tensor in trellises if placement(tensor.name).part is Part.HEAD), None)
    if said.head_bits is not None and head is not None and abs(head.shape[-1] / _TILE - said.head_bits) > _BITS_APART:
        yield Finding(
            Gravity.WARNING, f"config.json says {said.head_bits:g} bits for the head, which has {head.shape[-1] / _TILE:g}"
        )


def _tokenizer(model: ModelShape, around: Surroundings) -> Iterator[Finding]:
    if not around.has_tokenizer:
        yield Finding(Gravity.FATAL, "tokenizer.json is missing")
    if not around.has_template:
        yield Finding(Gravity.WARNING, "there is no chat template: chats cannot be served until one is configured")
    if around.highest_token is not None and around.highest_token >= model.vocabulary:
        words = f"tokenizer.json has ids up to {around.highest_token}, and config.json has {model.vocabulary} rows (vocab_size)"
        yield Finding(Gravity.WARNING, f"{words}: a prompt with such a token cannot be served")
