"""What each GPU holds after loading, so that the plan can be compared with it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from daemon.core.wire import DeviceMemory

_LAYER = re.compile(r"(?:^|\.)layers\.\d+$")
"""The key of a whole decoder layer."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One GPU's memory in bytes, as `DeviceMemory` names it."""

    name: str
    uuid: str
    total: int
    free: int
    reserved: int
    peak: int


class Placed(Protocol):
    """One of the model's modules."""

    key: str
    device: torch.device | int | None


class Cuda(Protocol):
    """The GPUs of this process."""

    def gauges(self) -> list[Gauge]:
        """All of them, in CUDA's order."""
        ...


class TorchCuda:
    """`Cuda` over torch."""

    def gauges(self) -> list[Gauge]:
        """See Cuda."""
        return [self._gauge(gpu) for gpu in range(torch.cuda.device_count())]

    @staticmethod
    def _gauge(gpu: int) -> Gauge:
        free, total = torch.cuda.mem_get_info(gpu)
        return Gauge(
            name=torch.cuda.get_device_name(gpu),
            uuid=_uuid(torch.cuda.get_device_properties(gpu)),  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  # torch has no types for it
            total=total,
            free=free,
            reserved=torch.cuda.memory_reserved(gpu),
            peak=torch.cuda.max_memory_reserved(gpu),
        )


def _uuid(properties: object) -> str:
    """As nvidia-smi writes it. Torch tells it since 2.5 only."""
    uuid: object = getattr(properties, "uuid", None)
    return "" if uuid is None else f"GPU-{uuid}"


def device_of_layers(modules: Iterable[Placed]) -> list[int | None]:
    """The GPU of each decoder layer, in order; None where a layer lies on several (tensor-parallel workers hold it)."""
    devices = [module.device for module in modules if _LAYER.search(module.key)]
    return [device.index if isinstance(device, torch.device) else device for device in devices]


def held_memory(cuda: Cuda, layers: Sequence[int | None]) -> list[DeviceMemory]:
    """What each GPU holds; `layers` says on which GPU each decoder layer lies."""
    return [
        DeviceMemory(
            name=gauge.name,
            uuid=gauge.uuid,
            total=gauge.total,
            free=gauge.free,
            reserved=gauge.reserved,
            peak=gauge.peak,
            layers=sum(device == gpu for device in layers),
        )
        for gpu, gauge in enumerate(cuda.gauges())
    ]
