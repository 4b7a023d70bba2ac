"""Where a model comes to lie: from the settings to what exllamav3's loader is told, and what it cannot do in words.

Three ways over GPUs, all the library's own: layers one card after the other, a part of every layer on each card (tensor
parallel: a process a card, started by the library and of our process group), and the experts of the first layers that have some
in host memory, where a process of the library computes them.
"""

from dataclasses import dataclass

import torch
from exllamav3 import Config, Model

from daemon.core.errors import ConfigError
from daemon.core.layout import layout_of, reserves
from daemon.core.settings import EngineSettings, TensorBackend
from daemon.core.vram_values import Layout
from daemon.core.wire import FatalClass
from daemon.engine.backend import EngineFailed
from daemon.engine.exl3.runtime import Device, DeviceKind

_MIB_A_GIB = 1024
_LEAST_CARDS = 2
_TEXT = "text"
"""The library's name for the language model itself, beside drafters and vision towers."""


@dataclass(frozen=True, slots=True)
class Placing:
    """What `Model.load` is told. `use` and `reserve` are GiB a card, in CUDA's order; one of them is None."""

    use: tuple[float, ...] | None = None
    reserve: tuple[float, ...] | None = None
    tensor: bool = False
    exchange: TensorBackend = TensorBackend.NATIVE

    @property
    def use_per_device(self) -> list[float] | None:
        """A fresh list: the library changes what it is given."""
        return None if self.use is None else list(self.use)

    def first(self, device: Device) -> torch.device:
        """Where lies what is loaded beside the model and not spread: the first card that is used, where there are cards."""
        used = next((card for card, size in enumerate(self.use or ()) if size), 0)
        return torch.device("cuda", used) if device.kind is DeviceKind.CUDA else device.torch_device

    @property
    def reserve_per_device(self) -> list[float] | None:
        """As `use_per_device`."""
        return None if self.reserve is None else list(self.reserve)


def placing(settings: EngineSettings, kind: DeviceKind, cards: int) -> Placing:
    """How a model is spread over the `cards` GPUs that CUDA sees; nothing to say on a CPU. Raises EngineFailed where the settings
    ask for what is not there.
    """
    try:
        layout = layout_of(settings)
        if kind is not DeviceKind.CUDA:
            _refuse_without_gpu(settings, layout)
            return Placing()
        tensor = layout is Layout.TENSOR
        if tensor and cards < _LEAST_CARDS:
            raise _wrong(f"engine.layout is tensor, which needs two GPUs or more, and CUDA sees {cards}")
        split = settings.gpu_split
        if split is not None and len(split) > cards:
            raise _wrong(f"engine.gpu_split names {len(split)} GPUs, and CUDA sees {cards}")
        free = None if split else tuple(mib / _MIB_A_GIB for mib in reserves(settings, cards))
    except ConfigError as problem:
        raise _wrong(problem.message) from problem
    return Placing(tuple(split) if split else None, free, tensor, settings.tensor_backend)


def _refuse_without_gpu(settings: EngineSettings, layout: Layout) -> None:
    if layout is Layout.TENSOR:
        raise _wrong("engine.layout is tensor, which divides layers among GPUs, and this engine has none")
    if settings.moe_cpu_layers:
        raise _wrong(
            f"engine.moe_cpu_layers is {settings.moe_cpu_layers}, which takes experts off a GPU, and this engine has none"
        )


def check_model(model: Model, config: Config, place: Placing) -> None:
    """Refuse what exllamav3 cannot do with this model, before minutes of loading. Raises EngineFailed."""
    if place.tensor and not model.caps.get("supports_tp"):
        raise _wrong(
            f"engine.layout is tensor, and exllamav3 cannot divide the layers of {config.architecture} among GPUs: use split"
        )


def offload_experts(config: Config, settings: EngineSettings) -> None:
    """Tell the library how many layers' experts stay in host memory. Before weights are loaded; its environment variable for the
    same has no say, because the plan would not know.
    """
    config.infer_params.moe_cpu_offload = settings.moe_cpu_layers


def check_offloaded(config: Config, settings: EngineSettings) -> None:
    """Whether as many layers gave up their experts as were told to: the library leaves out what it cannot move, and goes on.

    Raises EngineFailed.
    """
    moved = config.infer_params.moe_cpu_offload_assigned.get(_TEXT, 0)
    if moved != settings.moe_cpu_layers:
        raise _wrong(
            f"engine.moe_cpu_layers is {settings.moe_cpu_layers}, and exllamav3 moved the experts of {moved} layers: it moves"
            " those that are quantised with the codebook mul1 alone (the log names the layers)"
        )


def _wrong(detail: str) -> EngineFailed:
    return EngineFailed(FatalClass.CONFIG, detail)
