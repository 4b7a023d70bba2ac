"""What an exception out of exllamav3 or torch means for the process. Faults of one request are contained; two kinds are not."""

import re
from enum import Enum

import torch

_DEVICE = re.compile(
    r"CUDA error|CUDA driver error|device-side assert|illegal memory access|unspecified launch failure"
    r"|CUBLAS_STATUS_(?!ALLOC_FAILED)|CUDNN_STATUS_|cudaError(?!MemoryAllocation)",
)
_MEMORY = re.compile(r"out of memory|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|not enough memory", re.IGNORECASE)


class FaultKind(Enum):
    """How far a fault reaches."""

    MEMORY = "memory"
    """A device or the machine is out of memory: fewer requests at a time may help."""
    DEVICE = "device"
    """The device context is lost for this process."""
    OTHER = "other"


class DeviceLost(Exception):
    """A sticky device error, on its way out of the library."""


def classify(problem: BaseException) -> FaultKind:
    """The reach of an exception. Only the text of exceptions from torch's and CUDA's own classes is looked at."""
    if isinstance(problem, DeviceLost):
        return FaultKind.DEVICE
    if isinstance(problem, torch.OutOfMemoryError | MemoryError):
        return FaultKind.MEMORY
    accelerator = isinstance(problem, torch.AcceleratorError)
    if accelerator or isinstance(problem, RuntimeError):
        text = str(problem)
        if _MEMORY.search(text):
            return FaultKind.MEMORY
        if accelerator or _DEVICE.search(text):
            return FaultKind.DEVICE
    return FaultKind.OTHER


def contained(problem: BaseException) -> bool:
    """Whether a fault in one request's part of the work can end that request alone."""
    return classify(problem) is FaultKind.OTHER


def describe(problem: BaseException) -> str:
    """One line for people: the class and the first line of its text."""
    first = str(problem).strip().partition("\n")[0]
    return f"{type(problem).__name__}: {first}" if first else type(problem).__name__
