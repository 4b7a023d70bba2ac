"""LoRA adapters: read, checked against the model down to every tensor, and put where both prefill and decode apply them.

exllamav3 adds an adapter's product in `Linear.forward` alone. Its fast decode kernels take the layer's weights past that method,
and its own loader passes over whatever matches nothing. So this room reads the files itself, refuses what it cannot carry out
whole, and takes the fast kernels away from the modules that carry an adapter; the others keep theirs.

An adapter is in force for every request of the engine. Prefixes kept on disk go by its digest, for their keys and values were
computed with it.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from exllamav3 import Model
from exllamav3.modules.attn import Attention
from exllamav3.modules.gated_delta_net import GatedDeltaNet
from exllamav3.modules.linear import Linear
from exllamav3.modules.mlp import MLP, GatedMLP
from exllamav3.modules.module import Module
from exllamav3.modules.transformer import TransformerBlock
from safetensors import SafetensorError
from safetensors.torch import load_file

from daemon.core.settings import LoraSettings
from daemon.core.wire import FatalClass
from daemon.engine.backend import EngineFailed
from daemon.engine.exl3.json_values import as_object

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
SHOWN = 4
"""Names listed in an error before it says how many more there are."""

_HALF = re.compile(r"^(?P<path>.+)\.lora_(?P<half>[AB])\.(?:default\.)?weight$")
_WRAPPERS = frozenset({"base_model", "model", "language_model"})
"""What PEFT, transformers and exllamav3 put before a layer's name, each in its own way."""
_BEYOND = ("use_dora", "fan_in_fan_out", "alpha_pattern", "modules_to_save", "lora_bias", "use_qalora", "target_parameters")
"""Switches of PEFT that ask for more than a product of two matrices, or for another place."""
_OWN_START = frozenset({"gaussian", "eva", "orthogonal"})
"""Ways to begin training that leave the base weights as they were; the others (PiSSA, OLoRA, ...) change them."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One layer's share: x·`down`·`up` is added to what it computes. down (inputs, rank), up (rank, outputs), scaled."""

    down: torch.Tensor
    up: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter as read: pairs by layer, named without wrappers ("layers.0.self_attn.q_proj")."""

    path: str
    pairs: Mapping[str, Pair]


@dataclass(frozen=True, slots=True)
class _Target:
    """A linear layer and what encloses it, outermost first."""

    linear: Linear
    around: tuple[Module, ...]


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What adapter_config.json says about strength. `rank` is None where layers differ."""

    rank: int | None
    alpha: float
    stabilised: bool

    def factor(self, rank: int) -> float:
        """Of a layer whose matrices have `rank`; rank-stabilised adapters divide by its root."""
        return self.alpha / (math.sqrt(rank) if self.stabilised else rank)


def digest(adapters: Sequence[LoraSettings]) -> str:
    """A name for exactly these adapters at these strengths, in this order. Raises EngineFailed where one cannot be read."""
    found = sha256()
    for adapter in adapters:
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            path = Path(adapter.path, name)
            try:
                with path.open("rb") as file:
                    while block := file.read(1 << 20):
                        found.update(block)
            except OSError as problem:
                raise _unreadable(path, problem) from problem
        found.update(f"\0{adapter.scale!r}\0".encode())
    return found.hexdigest()[:32]


def read(settings: LoraSettings) -> Adapter:
    """Read an adapter and scale it. Raises EngineFailed where something in it could not be applied."""
    recipe = _recipe(_read_config(Path(settings.path, CONFIG_FILE)), settings.path)
    halves: dict[str, dict[str, torch.Tensor]] = {}
    foreign: list[str] = []
    for name, tensor in _read_weights(Path(settings.path, WEIGHTS_FILE)).items():
        match = _HALF.match(name)
        if match is None or tensor.dim() != 2:  # noqa: PLR2004 - a matrix
            foreign.append(name)
            continue
        halves.setdefault(_bare(match["path"]), {})[match["half"]] = tensor
    if foreign:
        raise _wrong(settings.path, f"holds tensors that are not LoRA matrices of linear layers: {_listed(foreign)}")
    if not halves:
        raise _wrong(settings.path, "holds no LoRA matrices")
    return Adapter(settings.path, {layer: _pair(settings, layer, parts, recipe) for layer, parts in halves.items()})


def apply(model: Model, adapters: Iterable[Adapter]) -> None:
    """Put adapters on a loaded model, before its warm-up. Raises EngineFailed, naming layers, where one does not fit.

    Changes the model: each named layer's adapter tensors, and the fast decode kernels of the module around it.
    """
    targets = {_bare(target.linear.key): target for target in _linears(model.modules, ())}
    for adapter in adapters:
        missing = [layer for layer in adapter.pairs if layer not in targets]
        if missing:
            raise _wrong(adapter.path, f"is for layers this model does not have: {_listed(missing)}")
        bypassed = [layer for layer in adapter.pairs if not _applicable(targets[layer])]
        if bypassed:
            raise _wrong(
                adapter.path,
                f"is for layers where exl3d can apply none: {_listed(bypassed)}. It can in full attention, gated delta nets,"
                " plain feed-forward layers and lm_head; not in experts, sliding windows or layers split among GPUs",
            )
        for layer, pair in adapter.pairs.items():
            _attach(adapter, layer, pair, targets[layer])


def _attach(adapter: Adapter, layer: str, pair: Pair, target: _Target) -> None:
    linear = target.linear
    wanted = (linear.in_features_unpadded, linear.out_features_unpadded)
    given = (pair.down.shape[0], pair.up.shape[1])
    if given != wanted:
        raise _wrong(
            adapter.path,
            f"does not fit {layer}: it is for {given[0]} inputs and {given[1]} outputs, and the layer has {wanted[0]} and"
            f" {wanted[1]}. It was made for another model",
        )
    outputs = linear.out_features_unpadded if linear.trim_padded_out else linear.out_features
    down = torch.zeros(linear.in_features, pair.down.shape[1], dtype=torch.half)
    up = torch.zeros(pair.up.shape[0], outputs, dtype=torch.half)
    down[: given[0]] = pair.down
    up[:, : given[1]] = pair.up
    linear.lora_a_tensors[adapter] = down.to(linear.device)
    linear.lora_b_tensors[adapter] = up.to(linear.device)
    if target.around:
        _plain_decode(target.around[-1])


def _linears(modules: Iterable[Module], around: tuple[Module, ...]) -> Iterable[_Target]:
    for module in modules:
        if isinstance(module, Linear):
            yield _Target(module, around)
        else:
            yield from _linears(module.modules, (*around, module))


def _applicable(target: _Target) -> bool:
    """Whether every path to the layer can be made to pass its own method.

    By exact class, since a subclass may have paths of its own; and by the whole chain, since a mixture of experts reads the
    weights of the plain feed-forward layer inside it.
    """
    if target.linear.is_sliced or target.linear.weight_scale != 1.0:
        return False
    match target.around:
        case ():
            return True
        case (block, owner) if type(block) is TransformerBlock:
            if type(owner) is Attention:
                return owner.qsa_indexer is None
            return type(owner) in {GatedDeltaNet, GatedMLP, MLP}
        case _:
            return False


def _plain_decode(owner: Module) -> None:
    """Take the kernels away that read the weights without asking the layer: what stays is the path that prefill takes."""
    if isinstance(owner, Attention):
        owner.multi_kv = owner.multi_qg = owner.multi_qkv = None
        owner.bc_attn_step = _no_captured_step
    elif isinstance(owner, GatedDeltaNet):
        owner.bc = None
        owner.bc_split = False
        owner.multi_qkvz = None
    elif isinstance(owner, GatedMLP):
        owner.bc = None
        owner.multi_gu = [None] * len(owner.multi_gu)
    elif isinstance(owner, MLP):
        owner.bc = None


def _no_captured_step(*_arguments: object, **_options: object) -> None:
    """Answers as a layer does that has no captured graph: None, for the regular path."""


def _recipe(config: Mapping[str, object], path: str) -> _Recipe:
    """What a PEFT configuration asks for. Raises EngineFailed for kinds of adapter that cannot be carried out."""
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise _wrong(path, f"is of the kind {kind}; only LORA can be used")
    used = [name for name in _BEYOND if config.get(name)]
    if config.get("bias", "none") != "none":
        used.append("bias")
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start not in _OWN_START:
        used.append(f"init_lora_weights {start}")
    if used:
        raise _wrong(path, f"uses what exl3d cannot apply: {', '.join(used)}")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or not isinstance(alpha, int | float) or rank < 1:
        raise _wrong(path, f"has no usable r and lora_alpha in {CONFIG_FILE}")
    return _Recipe(None if config.get("rank_pattern") else rank, alpha, bool(config.get("use_rslora")))


def _pair(settings: LoraSettings, layer: str, parts: Mapping[str, torch.Tensor], recipe: _Recipe) -> Pair:
    down, up = parts.get("A"), parts.get("B")
    if down is None or up is None:
        raise _wrong(settings.path, f"has one half of {layer} only: lora_{'A' if down is None else 'B'} is missing")
    rank = down.shape[0]
    if up.shape[1] != rank or recipe.rank not in {None, rank}:
        said = "" if recipe.rank is None else f", and {CONFIG_FILE} says r = {recipe.rank}"
        raise _wrong(settings.path, f"does not fit itself in {layer}: lora_A has rank {rank}, lora_B {up.shape[1]}{said}")
    scaled = up.float() * (recipe.factor(rank) * settings.scale)
    pair = Pair(down.t().half(), scaled.t().half())
    if not (pair.down.isfinite().all() and pair.up.isfinite().all()):
        raise _wrong(settings.path, f"has values in {layer} that are not finite in half precision")
    return pair


def _bare(name: str) -> str:
    """A layer's name from where the layers begin."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        del parts[0]
    return ".".join(parts)


def _read_config(path: Path) -> dict[str, object]:
    try:
        return as_object(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as problem:
        raise _unreadable(path, problem) from problem


def _read_weights(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as problem:
        raise _unreadable(path, problem) from problem


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _unreadable(path: Path, problem: Exception) -> EngineFailed:
    return EngineFailed(FatalClass.CONFIG, f"{path} of engine.loras cannot be read: {problem}")


def _wrong(path: str, detail: str) -> EngineFailed:
    return EngineFailed(FatalClass.CONFIG, f"the adapter {path} of engine.loras {detail}")
