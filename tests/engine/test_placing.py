"""What exllamav3's loader is told for each layout, and what is refused in words before it is asked. Nothing here needs a GPU:
only arguments are looked at, and what the library says of itself.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import cast

import pytest
import torch
from exllamav3 import Config, Model
from exllamav3.architecture.architectures import get_architectures

from daemon.core.layout import UNDIVIDED
from daemon.core.settings import EngineLayout, EngineSettings, LoraSettings, TensorBackend
from daemon.core.wire import FatalClass
from daemon.engine.backend import EngineFailed
from daemon.engine.exl3.faults import DeviceLost, FaultKind, classify
from daemon.engine.exl3.placing import Placing, check_model, check_offloaded, offload_experts, placing
from daemon.engine.exl3.runtime import Device, DeviceKind
from daemon.engine.exl3.sharded import guarded
from tests.engine.checkpoints import Architecture
from tests.engine.conftest import ModelPath

CUDA, TENSOR = DeviceKind.CUDA, EngineLayout.TENSOR


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (EngineSettings(), Placing(reserve=(0.25, 0.25))),
        (EngineSettings(reserve_gpu_mib=[1024, 0]), Placing(reserve=(1.0, 0.0))),
        (EngineSettings(gpu_split=[11.0]), Placing(use=(11.0,))),
        (EngineSettings(gpu_split=[11.0, 8.5], reserve_gpu_mib=512), Placing(use=(11.0, 8.5))),
        (EngineSettings(layout=TENSOR), Placing(reserve=(0.25, 0.25), tensor=True)),
        (
            EngineSettings(layout=TENSOR, gpu_split=[11.0, 8.0], tensor_backend=TensorBackend.NCCL),
            Placing(use=(11.0, 8.0), tensor=True, exchange=TensorBackend.NCCL),
        ),
    ],
)
def test_settings_become_what_the_loader_is_told(settings: EngineSettings, expected: Placing) -> None:
    assert placing(settings, CUDA, 2) == expected


def test_the_loader_knows_every_option_by_the_name_we_use() -> None:
    """It swallows none: a name that changes is a TypeError, but only on a machine with GPUs."""
    options = inspect.signature(_of_library("load_gen")).parameters
    assert {"use_per_device", "reserve_per_device", "tensor_p", "tp_backend", "max_batch_size", "draft_model"} <= set(options)
    source = inspect.getsource(_of_library("create_tp_context"))
    assert all(f'case "{backend.value}"' in source for backend in TensorBackend)


def _of_library(name: str) -> Callable[..., object]:
    """A method of the library's model that the product does not name."""
    return getattr(Model, name)


@pytest.mark.parametrize(
    ("settings", "kind", "cards", "words"),
    [
        (EngineSettings(layout=TENSOR), CUDA, 1, "needs two GPUs or more, and CUDA sees 1"),
        (EngineSettings(layout=TENSOR), DeviceKind.CPU, 0, "divides layers among GPUs, and this engine has none"),
        (EngineSettings(layout=TENSOR), DeviceKind.NULL, 0, "this engine has none"),
        (EngineSettings(layout=TENSOR, loras=[LoraSettings(path="/a")]), CUDA, 2, "engine.loras names 1"),
        (EngineSettings(layout=TENSOR, moe_cpu_layers=2), CUDA, 2, "keeps the experts of 2 layers"),
        (EngineSettings(moe_cpu_layers=2), DeviceKind.CPU, 0, "engine.moe_cpu_layers is 2, which takes experts off a GPU"),
        (EngineSettings(gpu_split=[6.0, 6.0, 6.0]), CUDA, 2, "names 3 GPUs, and CUDA sees 2"),
        (EngineSettings(reserve_gpu_mib=[256]), CUDA, 2, "has 1 number, and 2 GPUs can be used"),
    ],
)
def test_what_is_not_there_is_refused_with_the_numbers(
    settings: EngineSettings, kind: DeviceKind, cards: int, words: str
) -> None:
    with pytest.raises(EngineFailed, match=words) as raised:
        placing(settings, kind, cards)
    assert raised.value.kind is FatalClass.CONFIG


def test_architectures_that_cannot_be_divided_are_those_that_the_library_names() -> None:
    """Read from its sources: the nearest class that speaks of it decides."""
    undivided = {
        name for name, known in get_architectures().items() if not _divisible(cast("Mapping[str, type]", known)["model_class"])
    }
    drafters = {"DFlashDraftModel", "DFlash2DraftModel", "DFlashLagunaForCausalLM", "Gemma4AssistantForCausalLM"}
    assert undivided - drafters - {"MuseGlimmerAssistantModel"} == UNDIVIDED


def _divisible(model: type) -> bool:
    for each in model.__mro__:
        said = re.search(r'"supports_tp": (True|False)', inspect.getsource(each)) if each is not object else None
        if said is not None:
            return said[1] == "True"
    raise AssertionError(model)


def test_model_whose_layers_cannot_be_divided_is_refused_before_it_is_loaded(model_path: ModelPath) -> None:
    config = Config.from_directory(str(model_path(Architecture.LLAMA)))
    model = Model.from_config(config)
    check_model(model, config, Placing(tensor=True))
    model.caps["supports_tp"] = False
    check_model(model, config, Placing())
    with pytest.raises(EngineFailed, match="cannot divide the layers of LlamaForCausalLM among GPUs: use split"):
        check_model(model, config, Placing(tensor=True))


def test_experts_that_did_not_move_are_an_error_with_both_numbers(model_path: ModelPath) -> None:
    """The library prints a line and keeps them on the GPU."""
    config = Config.from_directory(str(model_path(Architecture.QWEN3_MOE)))
    settings = EngineSettings(moe_cpu_layers=2)
    offload_experts(config, settings)
    assert config.infer_params.moe_cpu_offload == 2
    config.infer_params.moe_cpu_offload_assigned["text"] = 1
    with pytest.raises(EngineFailed, match="moe_cpu_layers is 2, and exllamav3 moved the experts of 1 layers"):
        check_offloaded(config, settings)
    config.infer_params.moe_cpu_offload_assigned["text"] = 2
    check_offloaded(config, settings)


class _Failing:
    """A model whose passes fail in a given way."""

    output_device: torch.device | None = None
    loaded_tp = True

    def __init__(self, problem: Exception) -> None:
        self._problem = problem

    def forward(self, input_ids: torch.Tensor, params: dict[str, object]) -> torch.Tensor:
        del input_ids, params
        raise self._problem

    def prefill(self, input_ids: torch.Tensor, params: dict[str, object]) -> object:
        del input_ids, params
        raise self._problem


@pytest.mark.parametrize(
    ("place", "experts", "problem", "lost"),
    [
        (Placing(tensor=True), 0, TimeoutError("Timed out waiting for worker"), True),
        (Placing(tensor=True), 0, EOFError(), True),
        (Placing(tensor=True), 0, torch.OutOfMemoryError("CUDA out of memory"), True),
        (Placing(), 4, RuntimeError("CPU MoE worker timed out (abort flag set)"), True),
        (Placing(), 4, torch.OutOfMemoryError("CUDA out of memory"), False),
        (Placing(), 0, RuntimeError("CPU MoE worker timed out (abort flag set)"), False),
    ],
)
@pytest.mark.parametrize("prefill", [False, True])
def test_a_pass_that_leaves_processes_apart_ends_the_engine_and_another_does_not(
    place: Placing, experts: int, problem: Exception, lost: bool, prefill: bool
) -> None:
    model = guarded(_Failing(problem), place, experts)
    run = getattr(model, "prefill") if prefill else model.forward  # noqa: B009 - the generator takes it by name too
    with pytest.raises(type(problem) if not lost else DeviceLost) as raised:
        run(torch.tensor([[1]]), {})
    assert (classify(raised.value) is FaultKind.DEVICE) is lost
    if lost:
        assert raised.value.__cause__ is problem
        assert type(problem).__name__ in str(raised.value)


def test_a_guarded_model_is_the_model_in_everything_else() -> None:
    """The generator asks it whether it is divided."""
    assert getattr(guarded(_Failing(EOFError()), Placing(tensor=True), 0), "loaded_tp")  # noqa: B009 - as above
    model = _Failing(EOFError())
    assert guarded(model, Placing(), 0) is model


def test_what_is_not_spread_lies_on_the_first_card_that_is_used() -> None:
    cuda = Device(DeviceKind.CUDA, 1)
    assert Placing().first(cuda) == torch.device("cuda:0")
    assert Placing(use=(0.0, 11.0)).first(cuda) == torch.device("cuda:1")
    assert Placing().first(Device(DeviceKind.CPU, 1)) == torch.device("cpu")
