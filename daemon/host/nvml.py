"""The driver's management library: a port, and the adapter for nvidia-ml-py. Any call may block for ever or fail."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pynvml

from daemon.core.gpu import GpuProcess, pci_address

_T = TypeVar("_T")
_MIB = 1 << 20
FUNCTION_NOT_FOUND = 13


@dataclass(eq=False)
class NvmlError(Exception):
    """A call that did not return success, with NVML's code."""

    call: str
    code: int
    words: str = ""

    def __str__(self) -> str:
        return f"{self.call}: {self.words or 'error'} ({self.code})"


@dataclass(frozen=True, slots=True)
class Identity:
    """What never changes about a GPU."""

    name: str
    uuid: str
    pci: str


class Nvml(Protocol):
    """NVML as far as it is used. GPUs are numbered from 0. Every method may raise NvmlError."""

    def start(self) -> None:
        """Load and initialise the library."""
        ...

    def stop(self) -> None:
        """Let go of it, so that a later `start` finds a reloaded driver."""
        ...

    def count(self) -> int:
        """GPUs that the driver sees."""
        ...

    def identity(self, gpu: int) -> Identity:
        """Which card it is."""
        ...

    def memory(self, gpu: int) -> tuple[int, int]:
        """Used and total memory in MiB, of everybody together."""
        ...

    def temperature(self, gpu: int) -> int:
        """Degrees Celsius."""
        ...

    def utilisation(self, gpu: int) -> float:
        """Share of the last moments in which it computed, 0 to 1."""
        ...

    def power(self, gpu: int) -> float:
        """Watts."""
        ...

    def processes(self, gpu: int) -> tuple[GpuProcess, ...]:
        """Processes that compute on it."""
        ...


class PyNvml:
    """`Nvml` over nvidia-ml-py."""

    def start(self) -> None:
        """See Nvml."""
        _call("nvmlInit", pynvml.nvmlInit)

    def stop(self) -> None:
        """See Nvml."""
        _call("nvmlShutdown", pynvml.nvmlShutdown)

    def count(self) -> int:
        """See Nvml."""
        return _call("nvmlDeviceGetCount", pynvml.nvmlDeviceGetCount)

    def identity(self, gpu: int) -> Identity:
        """See Nvml."""
        device = self._device(gpu)
        pci = _call("nvmlDeviceGetPciInfo", lambda: pynvml.nvmlDeviceGetPciInfo(device))
        return Identity(
            _call("nvmlDeviceGetName", lambda: pynvml.nvmlDeviceGetName(device)),
            _call("nvmlDeviceGetUUID", lambda: pynvml.nvmlDeviceGetUUID(device)),
            pci_address(pci.domain, pci.bus, pci.device),
        )

    def memory(self, gpu: int) -> tuple[int, int]:
        """See Nvml."""
        device = self._device(gpu)
        memory = _call("nvmlDeviceGetMemoryInfo", lambda: pynvml.nvmlDeviceGetMemoryInfo(device))
        return memory.used // _MIB, memory.total // _MIB

    def temperature(self, gpu: int) -> int:
        """See Nvml."""
        device = self._device(gpu)
        sensor = pynvml.NVML_TEMPERATURE_GPU
        return _call("nvmlDeviceGetTemperature", lambda: pynvml.nvmlDeviceGetTemperature(device, sensor))

    def utilisation(self, gpu: int) -> float:
        """See Nvml."""
        device = self._device(gpu)
        return _call("nvmlDeviceGetUtilizationRates", lambda: pynvml.nvmlDeviceGetUtilizationRates(device)).gpu / 100

    def power(self, gpu: int) -> float:
        """See Nvml."""
        device = self._device(gpu)
        return _call("nvmlDeviceGetPowerUsage", lambda: pynvml.nvmlDeviceGetPowerUsage(device)) / 1000

    def processes(self, gpu: int) -> tuple[GpuProcess, ...]:
        """See Nvml."""
        device = self._device(gpu)
        found = _call("nvmlDeviceGetComputeRunningProcesses", lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(device))
        return tuple(
            GpuProcess(process.pid, None if process.usedGpuMemory is None else process.usedGpuMemory // _MIB) for process in found
        )

    @staticmethod
    def _device(gpu: int) -> pynvml.c_nvmlDevice_t:
        return _call("nvmlDeviceGetHandleByIndex", lambda: pynvml.nvmlDeviceGetHandleByIndex(gpu))


def _call(name: str, function: Callable[[], _T]) -> _T:
    """Call the library; its errors become ours here and nowhere else."""
    try:
        return function()
    except pynvml.NVMLError as problem:
        raise NvmlError(name, problem.value, str(problem)) from problem
    except pynvml.NVMLLibraryMismatchError as problem:
        raise NvmlError(name, FUNCTION_NOT_FOUND, str(problem)) from problem
