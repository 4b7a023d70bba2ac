"""The plan's cache and state bytes against what exllamav3's own Cache allocates, on the CPU."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol, cast

import pytest
import torch
from exllamav3 import Cache, CacheLayer_fp16, CacheLayer_quant, Config, Model
from exllamav3.model.model_tp_alloc import TPAllocator

from daemon.core.vram import tensor_plans
from daemon.core.vram_directory import read_model
from daemon.core.vram_learned import ASSUMED_OVERHEAD
from daemon.core.vram_model import Precision, checkpoint_bytes, describe, state_bytes, token_bytes
from daemon.core.vram_tensor import indivisible
from daemon.core.vram_values import Card, Demand, Item
from daemon.core.vram_weights import weigh
from daemon.disk.model_folder import ModelFolder
from tests.core.vram_models import MOE, ORNITH_9B, QWEN3_5_27B, dense_tensors, tensors, write_model
from tests.engine.checkpoints import Architecture
from tests.engine.conftest import ModelPath

GIB = 1 << 30
TOKENS = 1024
SLOTS = 3


class _State(Protocol):
    conv_state: torch.Tensor
    recurrent_state: torch.Tensor
    spec_conv: torch.Tensor
    spec_beta: torch.Tensor
    spec_g: torch.Tensor

    def get_checkpoint_size(self) -> int: ...


class _Module(Protocol):
    def get_tensors(self) -> Mapping[str, torch.Tensor]: ...


class _Divisible(Protocol):
    def make_tp_allocation(self, options: dict[str, bool]) -> list[object]: ...


class _Allocator(Protocol):
    def initial_split(self, max_mem: list[int]) -> tuple[list[int], list[int], list[int]]: ...


class _RealCache(Protocol):
    """What the library's cache tells of itself, beyond what the product uses."""

    recurrent_layers: Mapping[object, _State]

    def get_all_tensors(self) -> list[torch.Tensor]: ...


def _cache(model: Model, precision: Precision, history: int) -> _RealCache:
    build = cast("Callable[..., _RealCache]", Cache)
    if precision.full:
        return build(model, TOKENS, CacheLayer_fp16, SLOTS, history)
    return build(model, TOKENS, CacheLayer_quant, SLOTS, history, k_bits=precision.k_bits, v_bits=precision.v_bits)


def _held(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


@pytest.fixture(params=[Architecture.LLAMA, Architecture.QWEN3_5], ids=lambda architecture: architecture.name.lower())
def directory(request: pytest.FixtureRequest, model_path: ModelPath) -> Path:
    return model_path(request.param)


@pytest.mark.parametrize("precision", [Precision(), Precision(4, 4), Precision(8, 5)], ids=["fp16", "4-4", "8-5"])
@pytest.mark.parametrize("history", [0, 4])
def test_planned_bytes_equal_what_the_cache_allocates(directory: Path, precision: Precision, history: int) -> None:
    torch.set_num_threads(1)
    model = Model.from_config(Config.from_directory(str(directory)))
    cache = _cache(model, precision, history)
    with torch.inference_mode():
        model.load(device="cpu")
    shape = describe(json.loads((directory / "config.json").read_text()))
    try:
        kv = _held(cache.get_all_tensors())
        states = list(cache.recurrent_layers.values())
        recurrent = sum(
            _held([state.conv_state, state.recurrent_state, state.spec_conv, state.spec_beta, state.spec_g]) for state in states
        )
        checkpoint = sum(state.get_checkpoint_size() for state in states)
    finally:
        model.unload()
    assert kv == TOKENS * sum(token_bytes(layer, precision) for layer in shape.layers)
    assert recurrent == sum(state_bytes(layer, SLOTS, history) for layer in shape.layers)
    assert checkpoint == sum(checkpoint_bytes(layer) for layer in shape.layers)
    assert bool(states) == shape.recurrent


@pytest.mark.parametrize("sizes", [(12.0, 12.0), (16.0, 8.0), (10.0, 9.5), (12.0, 12.0, 6.0)])
@pytest.mark.parametrize(
    ("config", "bits", "people"), [(QWEN3_5_27B, 4, 5), (ORNITH_9B, 16, 6)], ids=["Qwen3.5-27B-like", "Ornith-9B-like"]
)
def test_shares_of_the_layout_tensor_equal_what_the_library_allots(
    tmp_path: Path, config: Mapping[str, object], bits: int, people: int, sizes: tuple[float, ...]
) -> None:
    """exllamav3's allocator reads headers alone, so that it can be asked without a GPU: within a thousandth on each card."""
    directory = write_model(tmp_path / "model", config)
    precision = Precision(bits, bits)
    demand = Demand(81920, people, precision)
    model = Model.from_config(Config.from_directory(str(directory)))
    build = cast("Callable[..., _RealCache]", Cache)
    kept = {} if precision.full else {"k_bits": bits, "v_bits": bits}
    cache = build(model, demand.tokens, CacheLayer_fp16 if precision.full else CacheLayer_quant, people, 0, **kept)
    cards = tuple(Card(f"GPU {n}", int(size * GIB), ASSUMED_OVERHEAD) for n, size in enumerate(sizes))
    components = [part for module in model.modules for part in cast("_Divisible", module).make_tp_allocation({})]
    allocator = cast("Callable[..., _Allocator]", TPAllocator)(components, demand.chunk, demand.streams)
    _, allotted, _ = allocator.initial_split([card.room for card in cards])
    assert cache is not None
    shape = describe(config)
    plans = tensor_plans(shape, weigh(tensors(config), len(shape.layers), tied=shape.tied), cards, demand)
    planned = [plan.size(Item.WEIGHTS) + plan.size(Item.KV) + plan.size(Item.RECURRENT) for plan in plans]
    assert planned == pytest.approx(allotted, rel=1e-3)


@pytest.mark.parametrize(
    ("heads", "width", "possible"), [(3, 64, False), (2, 64, True), (4, 32, True), (2, 32, False), (1, 128, True), (5, 128, True)]
)
def test_heads_that_cannot_be_divided_are_those_that_the_library_refuses(
    tmp_path: Path, heads: int, width: int, possible: bool
) -> None:
    """It says so by an assertion, when the processes of all cards are there already."""
    config = {
        **MOE, "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1,
        "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": width, "vocab_size": 256,
    }  # fmt: skip
    plain = {key: value for key, value in config.items() if "expert" not in key and key != "moe_intermediate_size"}
    shape = describe(plain)
    directory = write_model(tmp_path / "model", plain, dense_tensors(plain))
    model = Model.from_config(Config.from_directory(str(directory)))
    attention = next(module for module in cast("Iterable[_Divisible]", model) if type(module).__name__ == "Attention")
    assert (indivisible(shape) is None) is possible
    if possible:
        assert len(attention.make_tp_allocation({})) == 1
    else:
        with pytest.raises(AssertionError, match="cannot divide into 128-channel tensors"):
            attention.make_tp_allocation({})


def test_planned_weights_equal_what_the_loaded_modules_hold(directory: Path) -> None:
    torch.set_num_threads(1)
    model = Model.from_config(Config.from_directory(str(directory)))
    with torch.inference_mode():
        model.load(device="cpu")
    modules = cast("Iterable[_Module]", model)
    try:
        held = {name: tensor.nbytes for module in modules for name, tensor in module.get_tensors().items()}
    finally:
        model.unload()
    files = read_model(ModelFolder(directory))
    shape = describe(files.config)
    planned = weigh(files.tensors, len(shape.layers), tied=shape.tied)
    assert planned.loaded == sum(size for name, size in held.items() if "embed_tokens" not in name)
    assert planned.embedding == sum(size for name, size in held.items() if "embed_tokens" in name)
