"""What the figures were taken on, and whether exllamav3 can be imported there (which builds its extension once)."""

import platform
import time
from importlib import import_module, metadata

import msgspec
import torch

from tests.gpu.report import PartFailed, Place


class Card(msgspec.Struct, frozen=True):
    """One GPU."""

    name: str
    capability: str
    total_mib: int
    free_mib: int


class MachineNumbers(msgspec.Struct, frozen=True):
    """The machine."""

    exllamav3: str
    torch: str
    cuda: str | None
    """The CUDA that torch was built for."""
    kernel: str
    import_seconds: float
    """Of `import exllamav3`: minutes where the extension had to be built, seconds afterwards."""
    cards: list[Card]


def run(place: Place) -> MachineNumbers:
    """See the module."""
    began = time.monotonic()
    import_module("exllamav3")
    numbers = MachineNumbers(
        exllamav3=metadata.version("exllamav3"),
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        kernel=platform.release(),
        import_seconds=round(time.monotonic() - began, 1),
        cards=[_card(gpu) for gpu in range(torch.cuda.device_count())] if place.on_gpu else [],
    )
    if place.on_gpu and not numbers.cards:
        raise PartFailed("torch finds no GPU", numbers)
    return numbers


def _card(gpu: int) -> Card:
    free, total = torch.cuda.mem_get_info(gpu)
    major, minor = torch.cuda.get_device_capability(gpu)
    return Card(torch.cuda.get_device_name(gpu), f"{major}.{minor}", total >> 20, free >> 20)
