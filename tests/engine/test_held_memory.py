"""What an engine tells of its GPUs' memory. Only torch's own counters are missing here: they need a GPU (tests/gpu)."""

from dataclasses import dataclass

import torch
from exllamav3 import Config, Model

from daemon.core.wire import DeviceMemory
from daemon.engine.exl3.held_memory import Gauge, device_of_layers, held_memory
from tests.engine.checkpoints import Architecture
from tests.engine.conftest import ModelPath

GIB = 1 << 30


@dataclass
class Twin:
    """Two cards."""

    def gauges(self) -> list[Gauge]:
        return [Gauge(f"RTX {n}", f"GPU-{n}", 12 * GIB, (n + 1) * GIB, 8 * GIB, 9 * GIB) for n in range(2)]


def test_layers_are_counted_where_they_lie() -> None:
    first, second = held_memory(Twin(), [0, 0, 0, 1, 1, None])
    assert first == DeviceMemory("RTX 0", "GPU-0", 12 * GIB, GIB, 8 * GIB, 9 * GIB, 3)
    assert (second.uuid, second.free, second.layers) == ("GPU-1", 2 * GIB, 2)


def test_decoder_layers_of_a_real_model_are_found_by_their_keys(model_path: ModelPath) -> None:
    model = Model.from_config(Config.from_directory(str(model_path(Architecture.QWEN3_5))))
    layers = [module for module in model.modules if module.device is None]
    for number, module in enumerate(layers):
        module.device = torch.device("cuda", number // 3)
    found = device_of_layers(model.modules)
    assert len(found) == len(model.modules) - 3  # embedding, final norm and head are no layers
    assert found == [(number + 1) // 3 for number in range(len(found))]
