"""LoRA adapters: the same numbers as weights with the adapter merged in, and every adapter that does not fit named."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import pytest
import torch
from exllamav3 import Model
from exllamav3.modules.attn import Attention
from exllamav3.modules.gated_delta_net import GatedDeltaNet
from exllamav3.modules.linear import Linear
from exllamav3.modules.mlp import GatedMLP
from exllamav3.modules.module import Module
from safetensors.torch import load_file, save_file

from daemon.core.settings import BackendKind, EngineSettings, LoraSettings
from daemon.core.wire import Configure, FatalClass
from daemon.engine.backend import EngineFailed
from daemon.engine.exl3 import loading, lora
from daemon.engine.exl3.runtime import Device, DeviceKind
from tests.engine.checkpoints import Architecture
from tests.engine.conftest import ModelPath
from tests.engine.device import BACKEND
from tests.engine.workbench import Workbench, ask, text
from tests.engine.written import Checkpoint

RANK = 4
ALPHA = 8
PROMPT = text(300)
"""Longer than a page, so that chunks and steps both happen."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A model, its layers that get an adapter by the end of their names, and what rounding may make of the two ways.

    `tolerance` is of the logits' root mean square. Measured: 0.002 and 0.010 as it should be, at least 0.33 and 0.06 where any
    one kind of layer goes without its adapter.
    """

    architecture: Architecture
    layers: tuple[str, ...]
    tolerance: float


LLAMA = _Case(Architecture.LLAMA, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"), 0.01)
HYBRID = _Case(
    Architecture.QWEN3_5,
    ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj", "q_proj", "k_proj", "v_proj", "o_proj", "down_proj"),
    0.03,
)
CASES = pytest.mark.parametrize("case", [LLAMA, HYBRID], ids=["llama", "hybrid"])


def _engine(loras: list[LoraSettings]) -> EngineSettings:
    return EngineSettings(
        backend=BACKEND, cache_tokens=4096, max_batch=2, chunk_tokens=256, reserve_tokens=512, threads=1, loras=loras
    )


def make_adapter(
    directory: Path, model: Path, layers: tuple[str, ...], *, seed: int = 0, changes: Mapping[str, object] | None = None
) -> Path:
    """An adapter in PEFT's files whose product is about a third of each weight; `changes` go into its configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    random = torch.Generator()
    random.manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in load_file(model / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if not layer.endswith(layers):
            continue
        outputs, inputs = weight.shape
        size = (0.1 * weight.float().std().item()) ** 0.5
        tensors[f"base_model.model.{layer}.lora_A.weight"] = torch.randn(RANK, inputs, generator=random) * size
        tensors[f"base_model.model.{layer}.lora_B.weight"] = torch.randn(outputs, RANK, generator=random) * size
    save_file(tensors, directory / lora.WEIGHTS_FILE)
    config: dict[str, object] = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    (directory / lora.CONFIG_FILE).write_text(json.dumps(config | dict(changes or {})), encoding="utf-8")
    return directory


def _merge(model: Path, directory: Path, adapters: list[tuple[Path, float]]) -> Path:
    """A copy of a model with adapters added into its weights, each with its whole factor."""
    directory.mkdir()
    for file in model.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    tensors = load_file(directory / "model.safetensors")
    for adapter, factor in adapters:
        halves = load_file(adapter / lora.WEIGHTS_FILE)
        for name in [name for name in halves if ".lora_A." in name]:
            weight = f"{name.removeprefix('base_model.model.').split('.lora_A')[0]}.weight"
            product = halves[name.replace("lora_A", "lora_B")] @ halves[name]
            tensors[weight] = (tensors[weight].float() + product * factor).half()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _logits(bench: Workbench, ids: list[int], chunk: int) -> torch.Tensor:
    """Logits (tokens, vocabulary) of `ids`, each `chunk` of them computed from nothing, without a cache."""
    found = [
        bench.generator.model.forward(torch.tensor([ids[start : start + chunk]]), {"attn_mode": "flash_attn_nc"})[0].float().cpu()
        for start in range(0, len(ids), chunk)
    ]
    return torch.cat(found)


def _distance(one: torch.Tensor, two: torch.Tensor) -> float:
    """Root mean square of a difference, of that of `two`."""
    return ((one - two).square().mean().sqrt() / two.square().mean().sqrt()).item()


def _use(path: Path, scale: float = 1.0) -> LoraSettings:
    return LoraSettings(path=str(path), scale=scale)


@CASES
def test_an_adapter_computes_what_its_merged_weights_do(model_path: ModelPath, tmp_path: Path, case: _Case) -> None:
    """In passes of many tokens and of one, and in whole greedy answers through prefill, cache and decode."""
    base = model_path(case.architecture)
    adapter = make_adapter(tmp_path / "adapter", base, case.layers)
    merged = _merge(base, tmp_path / "merged", [(adapter, ALPHA / RANK)])
    plain, adapted, reference = (
        Workbench(*each) for each in ((base, _engine([])), (base, _engine([_use(adapter)])), (merged, _engine([])))
    )
    for chunk in (48, 1):
        ours, theirs, without = (_logits(bench, PROMPT[:48], chunk) for bench in (adapted, reference, plain))
        assert _distance(ours, theirs) < case.tolerance
        assert _distance(without, theirs) > 0.5
    answers = [bench.run(ask(1, PROMPT, 24))[1] for bench in (adapted, reference, plain)]
    reference.assert_same(PROMPT, answers[0], answers[1])
    assert answers[2] != answers[1]


def test_adapters_add_up_each_at_its_strength(model_path: ModelPath, tmp_path: Path) -> None:
    """One with the square root of its rank below its alpha, one turned round by a negative scale."""
    base = model_path(LLAMA.architecture)
    first = make_adapter(tmp_path / "first", base, LLAMA.layers, seed=1, changes={"use_rslora": True})
    second = make_adapter(tmp_path / "second", base, ("q_proj", "lm_head"), seed=2)
    merged = _merge(base, tmp_path / "merged", [(first, 0.5 * ALPHA / RANK**0.5), (second, -1.5 * ALPHA / RANK)])
    ours = Workbench(base, _engine([_use(first, 0.5), _use(second, -1.5)]))
    assert _distance(_logits(ours, PROMPT[:48], 48), _logits(Workbench(merged, _engine([])), PROMPT[:48], 48)) < LLAMA.tolerance


def test_a_quantised_layer_adds_the_adapter_to_what_it_computes(
    model_path: ModelPath, exl3_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """EXL3 weights, few rows and many: they have a path each."""
    adapter = make_adapter(tmp_path / "adapter", model_path(LLAMA.architecture), ("q_proj", "down_proj"))
    quantised = exl3_checkpoint(LLAMA.architecture)
    layers = [
        {layer.key: layer for layer in _linear_layers(Workbench(quantised, _engine(loras)))} for loras in ([], [_use(adapter)])
    ]
    halves = load_file(adapter / lora.WEIGHTS_FILE)
    for key in ("model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"):
        plain, adapted = layers[0][key], layers[1][key]
        down, up = (halves[f"base_model.model.{key}.lora_{half}.weight"] for half in "AB")
        for rows in (1, 200):
            x = torch.randn(1, rows, down.shape[1], generator=torch.Generator().manual_seed(rows)).half()
            with torch.inference_mode():
                expected = plain.forward(x, {}).float() + x.float() @ down.t() @ up.t() * (ALPHA / RANK)
                assert _distance(adapted.forward(x, {}).float(), expected) < 0.01


def _walk(modules: list[Module]) -> Iterator[Module]:
    for module in modules:
        yield module
        yield from _walk(module.modules)


def _model(bench: Workbench) -> Model:
    """The library's model, out of what watches it."""
    return cast("Model", bench.generator.model)


def _linear_layers(bench: Workbench) -> Iterator[Linear]:
    yield from (module for module in _walk(_model(bench).modules) if isinstance(module, Linear))


class _Bypass:
    """A fast kernel that reads a layer's weights without asking it."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"the adapter is bypassed: {name}")

    def __call__(self, *_arguments: object, **_options: object) -> object:
        raise AssertionError("the adapter is bypassed")


def _plant(model: Model) -> None:
    """Put a bypass wherever exllamav3 keeps one on a GPU."""
    for module in _walk(model.modules):
        if isinstance(module, Attention):
            module.multi_qkv = module.multi_qg = module.multi_kv = _Bypass()
            module.bc_attn_step = _Bypass()
        elif isinstance(module, GatedDeltaNet):
            module.bc, module.bc_split, module.multi_qkvz = _Bypass(), True, _Bypass()
            module.ba_weight_filled = True  # a buffer that only the bypass reads, and that a CPU does not have
        elif isinstance(module, GatedMLP):
            module.bc, module.multi_gu = _Bypass(), [_Bypass()]


@CASES
def test_a_layer_with_an_adapter_is_left_no_way_around_it(model_path: ModelPath, tmp_path: Path, case: _Case) -> None:
    """Each kernel that a GPU would have is a trap here; with adapters on all layers, a whole answer meets none."""
    bench = Workbench(model_path(case.architecture), _engine([]))
    said = bench.run(ask(1, PROMPT, 4))[1]
    _plant(_model(bench))
    with pytest.raises(AssertionError, match="bypassed"):
        _logits(bench, PROMPT[:2], 2)
    adapter = make_adapter(tmp_path / "adapter", model_path(case.architecture), case.layers)
    lora.apply(_model(bench), [lora.read(_use(adapter, scale=0.0))])
    assert bench.library(PROMPT, 4) == said
    # the captured step is never asked for on a CPU: it must have nothing to say
    attentions = [module for module in _walk(_model(bench).modules) if isinstance(module, Attention)]
    assert attentions
    assert all(module.bc_attn_step() is None for module in attentions)


def test_modules_without_an_adapter_keep_their_fast_kernels(model_path: ModelPath, tmp_path: Path) -> None:
    """What an adapter costs is paid where it is."""
    bench = Workbench(model_path(LLAMA.architecture), _engine([]))
    _plant(_model(bench))
    adapter = make_adapter(tmp_path / "adapter", model_path(LLAMA.architecture), ("layers.0.self_attn.q_proj",))
    lora.apply(_model(bench), [lora.read(_use(adapter))])
    kept = {module.key: module.multi_qkv is not None for module in _walk(_model(bench).modules) if isinstance(module, Attention)}
    assert kept == {"model.layers.0.self_attn": False, "model.layers.1.self_attn": True}
    assert all(isinstance(module.bc, _Bypass) for module in _walk(_model(bench).modules) if isinstance(module, GatedMLP))


Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], Tensors]


def _renamed(old: str, new: str) -> Change:
    return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}


def _cut(half: str, axis: int) -> Change:
    def change(tensors: Tensors) -> Tensors:
        return {name: tensor.narrow(axis, 0, 3).contiguous() if half in name else tensor for name, tensor in tensors.items()}

    return change


def _halved(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if "lora_B" not in name}


def _infinite(tensors: Tensors) -> Tensors:
    return {name: tensor / 0 for name, tensor in tensors.items()}


def _with_whole_weight(tensors: Tensors) -> Tensors:
    return tensors | {"base_model.model.lm_head.weight": torch.ones(2, 2)}


def _emptied(_tensors: Tensors) -> Tensors:
    return {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_renamed("layers.1.", "layers.7."), ("does not have", "layers.7.self_attn.q_proj")),
        (_renamed("self_attn.q_proj", "visual.qkv"), ("does not have", "layers.0.visual.qkv")),
        (_cut("lora_A", 1), ("layers.0.self_attn.q_proj", "3 inputs", "has 128")),
        (_cut("lora_B", 0), ("3 outputs", "256")),
        (_cut("lora_B", 1), ("lora_A has rank 4, lora_B 3", "r = 4")),
        (_halved, ("lora_B is missing",)),
        (_infinite, ("not finite",)),
        (_with_whole_weight, ("not LoRA", "lm_head.weight")),
        (_renamed("lora_A.weight", "lora_magnitude_vector"), ("not LoRA", "layers.1.self_attn.q_proj.lora_magnitude_vector")),
        (_emptied, ("holds no LoRA matrices",)),
    ],
    ids=["layer", "kind", "inputs", "outputs", "rank", "half", "infinite", "whole weight", "magnitudes", "empty"],
)
def test_tensors_that_do_not_fit_are_named(model_path: ModelPath, tmp_path: Path, change: Change, words: tuple[str, ...]) -> None:
    """Nothing is passed over."""
    adapter = make_adapter(tmp_path, model_path(LLAMA.architecture), ("q_proj",))
    save_file(change(load_file(adapter / lora.WEIGHTS_FILE)), adapter / lora.WEIGHTS_FILE)
    with pytest.raises(EngineFailed) as raised:
        Workbench(model_path(LLAMA.architecture), _engine([_use(adapter)]))
    assert raised.value.kind is FatalClass.CONFIG
    assert all(word in raised.value.detail for word in (*words, str(adapter))), raised.value.detail


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "IA3"}, "kind IA3"),
        ({"use_dora": True}, "use_dora"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"bias": "lora_only"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"alpha_pattern": {"q_proj": 4}}, "alpha_pattern"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights pissa"),
        ({"r": 8}, "says r = 8"),
        ({"r": None}, "no usable r"),
        ({"lora_alpha": "much"}, "no usable r and lora_alpha"),
    ],
)
def test_kinds_of_adapter_that_cannot_be_applied_are_refused(
    model_path: ModelPath, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    """By the name of the switch that asks for more."""
    adapter = make_adapter(tmp_path, model_path(LLAMA.architecture), ("q_proj",), changes=changes)
    with pytest.raises(EngineFailed, match=words) as raised:
        lora.read(_use(adapter))
    assert raised.value.kind is FatalClass.CONFIG


@pytest.mark.parametrize("name", [lora.CONFIG_FILE, lora.WEIGHTS_FILE])
def test_files_that_are_missing_or_broken_are_named(model_path: ModelPath, tmp_path: Path, name: str) -> None:
    """With the directory."""
    adapter = make_adapter(tmp_path, model_path(LLAMA.architecture), ("q_proj",))
    (adapter / name).write_bytes(b"nothing of the kind")
    with pytest.raises(EngineFailed, match=rf"{name} of engine\.loras cannot be read"):
        lora.read(_use(adapter))
    (adapter / name).unlink()
    with pytest.raises(EngineFailed, match=rf"{name} of engine\.loras cannot be read"):
        lora.read(_use(adapter))
    with pytest.raises(EngineFailed, match=rf"{name} of engine\.loras cannot be read"):
        lora.digest([_use(adapter)])


def test_ranks_may_differ_where_the_adapter_says_so(model_path: ModelPath, tmp_path: Path) -> None:
    """PEFT's rank_pattern; each layer is scaled by its own rank."""
    base = model_path(LLAMA.architecture)
    adapter = make_adapter(tmp_path / "adapter", base, ("q_proj",), changes={"r": 16, "rank_pattern": {"q_proj": RANK}})
    merged = _merge(base, tmp_path / "merged", [(adapter, ALPHA / RANK)])
    ours, theirs = (
        _logits(Workbench(*each), PROMPT[:48], 48) for each in ((base, _engine([_use(adapter)])), (merged, _engine([])))
    )
    assert _distance(ours, theirs) < LLAMA.tolerance


@pytest.mark.parametrize(
    ("architecture", "layer"),
    [
        (Architecture.QWEN3_MOE, "layers.0.mlp.experts.3.down_proj"),
        (Architecture.QWEN3_5_MOE, "layers.0.mlp.shared_expert.down_proj"),
    ],
)
def test_adapters_of_experts_are_refused(model_path: ModelPath, tmp_path: Path, architecture: Architecture, layer: str) -> None:
    """The kernels for experts read their weights by address."""
    tmp_path.joinpath("adapter").mkdir()
    name = f"base_model.model.model.{layer}"
    parts = {f"{name}.lora_A.weight": torch.ones(RANK, 128), f"{name}.lora_B.weight": torch.ones(128, RANK)}
    save_file(parts, tmp_path / "adapter" / lora.WEIGHTS_FILE)
    (tmp_path / "adapter" / lora.CONFIG_FILE).write_text('{"r": 4, "lora_alpha": 4}', encoding="utf-8")
    with pytest.raises(EngineFailed, match="not in experts") as raised:
        Workbench(model_path(architecture), _engine([_use(tmp_path / "adapter")]))
    assert layer in raised.value.detail


def test_a_layer_is_found_under_every_library_s_name_for_it(model_path: ModelPath, tmp_path: Path) -> None:
    """Adapters trained on the text model alone, or on the whole one."""
    names = [
        make_adapter(tmp_path / prefix, model_path(HYBRID.architecture), ("o_proj", "in_proj_z")) for prefix in ("whole", "text")
    ]
    path = names[1] / lora.WEIGHTS_FILE
    save_file(_renamed("model.language_model.", "model.")(load_file(path)), path)
    assert load_file(path).keys() != load_file(names[0] / lora.WEIGHTS_FILE).keys()
    assert lora.read(_use(names[0])).pairs.keys() == lora.read(_use(names[1])).pairs.keys()


def test_prefixes_on_disk_are_kept_apart_by_adapter(model_path: ModelPath, tmp_path: Path) -> None:
    """By content, strength and order; keys and values of one are wrong for another."""
    base = model_path(LLAMA.architecture)
    one, other = (make_adapter(tmp_path / str(seed), base, ("q_proj",), seed=seed) for seed in (1, 2))
    copy = make_adapter(tmp_path / "copy", base, ("q_proj",), seed=1)
    chosen = [[_use(one)], [_use(other)], [_use(one, 0.5)], [_use(one), _use(other)], [_use(other), _use(one)], []]

    def place(loras: list[LoraSettings]) -> Path:
        return loading.prefix_directory(Configure(str(base), 1024, _engine(loras), str(tmp_path)))

    assert len({place(loras) for loras in chosen}) == len(chosen)
    assert place([_use(copy)]) == place([_use(one)])
    assert place([]) == tmp_path / "prefixes"


def test_the_null_backend_refuses_adapters(tmp_path: Path) -> None:
    """It has no layers."""
    settings = msgspec.structs.replace(_engine([_use(tmp_path)]), backend=BackendKind.NULL)
    with pytest.raises(EngineFailed, match="null backend has no layers"):
        loading.load(
            Configure("/m", 1024, settings, "/s"),
            Device(DeviceKind.NULL, 1),
            _NoWatch(),
            lambda _stage, _done, _total: None,
            lambda: None,
        )


class _NoWatch:
    def prefilling(self, request: int | None) -> None:
        del request
