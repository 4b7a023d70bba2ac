"""What the plan says of things beside a model, against what exllamav3 really holds: experts that leave a card, adapters; and how
far drafts go, against what the engine tells the generator.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

import pytest
import torch
from exllamav3 import Config, Model
from exllamav3.architecture import architectures
from exllamav3.modules.linear import Linear
from exllamav3.modules.module import Module

from daemon.core.drafting import BLOCKS, DRAFT_TOKENS, HEADS, drafter_tokens, own_head_tokens
from daemon.core.settings import BackendKind, EngineSettings, LoraSettings, Speculation
from daemon.core.vram import place
from daemon.core.vram_adapters import read_adapter, weigh_adapters
from daemon.core.vram_directory import read_model
from daemon.core.vram_model import ModelShape, describe
from daemon.core.vram_values import Card, Fits, Item, Layout
from daemon.core.vram_weights import Weights, offloaded, weigh
from daemon.disk.model_folder import ModelFolder
from daemon.engine.exl3 import lora
from daemon.engine.exl3.placing import Placing
from daemon.engine.exl3.speculation import prepare
from daemon.host.fit import weigh_model
from tests.engine.checkpoints import Architecture, Codebook, write_exl3_checkpoint, write_mtp_checkpoint
from tests.engine.conftest import ModelPath
from tests.engine.test_lora import make_adapter
from tests.engine.workbench import Workbench

_HOST = "exllamav3.model.moe_cpu_host"


class _Experts(Protocol):
    """A layer of experts, as far as it is asked here."""

    key: str

    def __iter__(self) -> Iterator["_Experts"]: ...
    def get_tensors(self) -> Mapping[str, torch.Tensor]: ...
    def load_cpu_offload(self, device: torch.device) -> bool: ...
    def cpu_maybe_offload_load(self, device: torch.device) -> bool: ...


def _planned(directory: Path) -> tuple[ModelShape, Weights]:
    files = read_model(ModelFolder(directory))
    shape = describe(files.config)
    return shape, weigh(files.tensors, len(shape.layers), tied=shape.tied)


def _expert_layers(model: Model) -> list[_Experts]:
    found = [module for module in cast("Iterable[object]", model) if hasattr(module, "load_cpu_offload")]
    return cast("list[_Experts]", found)


class _Worker:
    """Stands for the process that would compute the experts: notes what it is given, and what of it lies on the card."""

    def __init__(self) -> None:
        self.layers: list[str] = []
        self.beside = 0

    def for_config(self, _config: Config) -> "_Worker":
        return self

    def register_layer(self, key: str, *_shapes: object, aux: Mapping[str, list[torch.Tensor] | None], **_more: object) -> int:
        self.layers.append(key)
        self.beside += sum(tensor.nbytes for tensors in aux.values() for tensor in tensors or ())
        return len(self.layers) - 1


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> _Worker:
    stand_in, module = _Worker(), ModuleType(_HOST)
    setattr(module, "MoeCpuHost", stand_in)  # noqa: B010 - a module has no such attribute for the type checker
    monkeypatch.setitem(sys.modules, _HOST, module)
    return stand_in


@pytest.mark.parametrize("architecture", [Architecture.QWEN3_MOE, Architecture.QWEN3_5_MOE], ids=lambda each: each.name.lower())
def test_what_stays_on_the_card_without_its_experts_is_what_the_library_loads_there(
    architecture: Architecture, tmp_path: Path, worker: _Worker
) -> None:
    """The library's own code for it, told that the card is the CPU; the experts themselves would be another process's."""
    torch.set_num_threads(1)
    directory = write_exl3_checkpoint(architecture, tmp_path)
    shape, weights = _planned(directory)
    layers = _expert_layers(Model.from_config(Config.from_directory(str(directory))))
    assert len(layers) == len(shape.layers)
    with torch.inference_mode():
        assert layers[0].load_cpu_offload(torch.device("cpu"))
    held = sum(tensor.nbytes for module in layers[0] for tensor in module.get_tensors().values())
    planned = weights.layers[0]
    assert planned.experts > 0
    assert held + worker.beside == planned.feed_forward - planned.experts
    assert planned.experts_in_ram == planned.experts - 4 * 3 * 8 + worker.beside, "trellises without their marks, and scales"


def test_the_first_layers_with_experts_give_them_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as were told to, counted by the library."""
    directory = write_exl3_checkpoint(Architecture.QWEN3_5_MOE, tmp_path)
    _, weights = _planned(directory)
    config = Config.from_directory(str(directory))
    config.infer_params.moe_cpu_offload = 2
    layers = _expert_layers(Model.from_config(config))

    def moved(_layer: object, _device: torch.device) -> bool:
        return True

    monkeypatch.setattr(type(layers[0]), "load_cpu_offload", moved)
    taken = [number for number, layer in enumerate(layers) if layer.cpu_maybe_offload_load(torch.device("cuda:0"))]
    assert taken == sorted(offloaded(weights, 2)) == [0, 1]
    assert config.infer_params.moe_cpu_offload_assigned == {"text": 2}


def test_experts_of_another_codebook_stay_and_the_plan_knows(tmp_path: Path, worker: _Worker) -> None:
    directory = write_exl3_checkpoint(Architecture.QWEN3_MOE, tmp_path, codebook=Codebook.MCG)
    _, weights = _planned(directory)
    layers = _expert_layers(Model.from_config(Config.from_directory(str(directory))))
    assert not layers[0].load_cpu_offload(torch.device("cpu"))
    assert worker.layers == []
    assert offloaded(weights, 2) == frozenset()


@pytest.mark.parametrize("architecture", [Architecture.LLAMA, Architecture.QWEN3_5], ids=lambda each: each.name.lower())
def test_planned_adapter_bytes_equal_what_the_layers_hold(
    architecture: Architecture, model_path: ModelPath, tmp_path: Path
) -> None:
    """Both halves in half precision beside each layer, of two adapters at once."""
    torch.set_num_threads(1)
    directory = model_path(architecture)
    parts = ("q_proj", "o_proj", "up_proj", "down_proj", "out_proj")
    paths = [make_adapter(tmp_path / name, directory, parts, seed=seed) for seed, name in enumerate(("one", "two"))]
    model = Model.from_config(Config.from_directory(str(directory)))
    with torch.inference_mode():
        model.load(device="cpu")
        lora.apply(model, [lora.read(LoraSettings(path=str(path))) for path in paths])
    shape, _ = _planned(directory)
    planned = weigh_adapters([(str(path), read_adapter(ModelFolder(path))) for path in paths], len(shape.layers))
    held = [0] * len(shape.layers)
    for linear in _linears(model.modules):
        number = re.search(r"layers\.(\d+)\.", linear.key)
        halves = [*linear.lora_a_tensors.values(), *linear.lora_b_tensors.values()]
        if number is not None:
            held[int(number[1])] += sum(half.nbytes for half in halves)
    model.unload()
    assert planned is not None
    assert list(planned.layers) == held
    assert planned.total > 0


def _linears(modules: Iterable[Module]) -> Iterable[Linear]:
    for module in modules:
        if isinstance(module, Linear):
            yield module
        else:
            yield from _linears(module.modules)


def _engine(speculation: Speculation, tokens: int | None, draft: Path | None) -> EngineSettings:
    return EngineSettings(
        backend=BackendKind.CPU,
        cache_tokens=2048,
        max_batch=2,
        chunk_tokens=256,
        threads=1,
        speculation=speculation,
        draft_tokens=tokens,
        draft_model=None if draft is None else str(draft),
    )


@pytest.mark.parametrize("tokens", [None, 2])
@pytest.mark.parametrize("speculation", list(Speculation))
def test_planned_drafts_are_as_long_as_those_the_engine_makes(
    speculation: Speculation, tokens: int | None, model_path: ModelPath, tmp_path: Path
) -> None:
    """What the generator drafts, what the caches can take back, and what the plan reckons with are one number."""
    model = model_path(Architecture.QWEN3_5)
    if speculation is Speculation.MTP:
        model = write_mtp_checkpoint(tmp_path)
    settings = _engine(speculation, tokens, model_path(Architecture.LLAMA) if speculation is Speculation.DRAFT else None)
    demand = weigh_model(model, "model", settings).demand(settings, 1024)
    generator = Workbench(model, settings).generator
    told = cast("_Drafts", generator)
    assert demand.history == told.num_draft_tokens
    assert demand.history == told.cache.max_history
    assert demand.drafter == (speculation is Speculation.MTP)
    assert (demand.draft is not None) == (speculation is Speculation.DRAFT)


@pytest.mark.parametrize("speculation", [Speculation.DRAFT, Speculation.MTP])
def test_planned_drafter_bytes_equal_what_the_drafter_and_its_cache_hold(
    speculation: Speculation, model_path: ModelPath, tmp_path: Path
) -> None:
    """A model of its own, or the model's own head, whose head and table are the model's."""
    torch.set_num_threads(1)
    model = write_mtp_checkpoint(tmp_path)
    small = model_path(Architecture.LLAMA)
    settings = _engine(speculation, None, small if speculation is Speculation.DRAFT else None)
    weighed = weigh_model(model, "model", settings)
    config = Config.from_directory(str(model))
    drafting = prepare(settings, config, 2048, Config.from_directory, on_cpu=True)
    assert drafting.model is not None
    with torch.inference_mode():
        drafting.load(settings, torch.device("cpu"), Placing(), lambda _done, _total: None)
    modules = cast("Iterable[_Experts]", drafting.model)
    held = {name: tensor.nbytes for module in modules for name, tensor in module.get_tensors().items()}
    table = sum(size for name, size in held.items() if "embed_tokens" in name)
    kept = sum(tensor.untyped_storage().nbytes() for tensor in cast("_Kept", drafting.cache).get_all_tensors())
    placed = place(weighed.shape, weighed.weights, (Card("big", 1 << 40, 0),), weighed.demand(settings, 1024), Layout.SPLIT)
    assert isinstance(placed, Fits)
    assert placed.cards[0].size(Item.DRAFTER) == sum(held.values()) - table + kept


class _Kept(Protocol):
    def get_all_tensors(self) -> list[torch.Tensor]: ...


class _Historic(Protocol):
    max_history: int


class _Drafts(Protocol):
    num_draft_tokens: int
    cache: _Historic


def test_drafts_of_own_heads_are_as_long_as_the_library_suggests() -> None:
    """Read from its sources: a number that changes there must change here."""
    said: dict[str, int] = {}
    for name, known in architectures.get_architectures().items():
        module = inspect.getmodule(cast("Mapping[str, type]", known)["model_class"])
        own = module and re.search(r'"mtp": (\w+)', inspect.getsource(module))
        head = getattr(module, own[1], None) if own else None
        size = re.search(r'"default_draft_size": (\d+)', inspect.getsource(head)) if inspect.isclass(head) else None
        if size is not None:
            said[name] = int(size[1])
    assert len(said) > 3
    assert {name: own_head_tokens(name) for name in said} == said
    assert set(said) | {"BailingMoeV3ForCausalLM", "Glm5NextForConditionalGeneration"} >= set(HEADS)


@pytest.mark.parametrize("architecture", sorted(BLOCKS))
def test_drafters_of_blocks_draft_all_but_the_token_that_is_known(architecture: str) -> None:
    model = cast("Mapping[str, Callable[..., object]]", architectures.get_architectures()[architecture])["model_class"]
    assert '"default_draft_size": config.block_size - 1' in inspect.getsource(model)
    assert drafter_tokens(architecture, {"block_size": 16}) == 15
    assert drafter_tokens(architecture, {"dflash_config": {"block_size": 8}}) == 7
    assert drafter_tokens("LlamaForCausalLM", {"block_size": 16}) == DRAFT_TOKENS
