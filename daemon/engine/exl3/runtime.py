"""Makes the process ready for `import exllamav3`: which device, how many threads, which operations. Imports torch only."""

import os
from dataclasses import dataclass
from enum import Enum

import torch

from daemon.core.settings import BackendKind, EngineSettings
from daemon.core.wire import FatalClass
from daemon.engine.backend import EngineFailed
from daemon.engine.cpu.install import install


class DeviceKind(Enum):
    """Where the arithmetic happens."""

    CUDA = "cuda"
    CPU = "cpu"
    NULL = "null"


@dataclass(frozen=True, slots=True)
class Device:
    """What `prepare` decided."""

    kind: DeviceKind
    threads: int

    @property
    def torch_device(self) -> torch.device:
        """Where a model that is not split over GPUs lies."""
        return torch.device("cuda:0" if self.kind is DeviceKind.CUDA else "cpu")


def prepare(settings: EngineSettings) -> Device:
    """Choose the device, set torch's threads and put the CPU operations in place where they are needed.

    Raises EngineFailed where the configuration asks for a device that is not there.
    """
    kind = _choose(settings.backend)
    threads = settings.threads or max(1, (os.cpu_count() or 2) // 2)
    if kind is not DeviceKind.CUDA:
        torch.set_num_threads(threads)
        install()
    return Device(kind, threads)


def _choose(backend: BackendKind) -> DeviceKind:
    match backend:
        case BackendKind.NULL:
            return DeviceKind.NULL
        case BackendKind.CPU:
            return DeviceKind.CPU
        case BackendKind.CUDA:
            if not torch.cuda.is_available():
                raise EngineFailed(
                    FatalClass.CONFIG,
                    "engine.backend is cuda, but torch finds no NVIDIA GPU. Check `nvidia-smi` and that torch was built for CUDA"
                    " (`exl3ctl engine check` says what is missing), or set engine.backend to auto or cpu.",
                )
            return DeviceKind.CUDA
        case BackendKind.AUTO:
            return DeviceKind.CUDA if torch.cuda.is_available() else DeviceKind.CPU
