"""Facts about a machine that decide what to install. Standard library alone: this is read before anything is installed."""

from dataclasses import dataclass
from enum import Enum


class Wsl(Enum):
    """Whether this Linux runs inside Windows."""

    NO = "no"
    ONE = "1"
    TWO = "2"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA card that its driver answers for."""

    name: str
    capability: tuple[int, int] | None
    """Compute capability: (12, 0) is what NVIDIA's compiler calls sm_120."""
    memory_mib: int

    @property
    def capability_text(self) -> str:
        """As people write it: `12.0`."""
        return "?" if self.capability is None else f"{self.capability[0]}.{self.capability[1]}"


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found. Absent things are None or empty."""

    python: tuple[int, int, int]
    system: str
    """`sys.platform`."""
    architecture: str
    """As in wheel names: x86_64, aarch64."""
    wsl: Wsl
    apt: bool
    """Whether `apt-get` is there, so that advice can name Debian's packages."""
    gpus: tuple[Gpu, ...]
    nvidia_card: bool
    """An NVIDIA display device is on the PCI bus, whether or not a driver answers for it."""
    dxg: bool
    """/dev/dxg: WSL passes some GPU on."""
    driver: tuple[int, ...] | None
    """Version of the NVIDIA driver, as (576, 88). Inside WSL that of the Windows driver."""
    driver_problem: str
    """What nvidia-smi said when it did not work."""
    nvcc: str | None
    """Path of CUDA's compiler."""
    cuda: tuple[int, int] | None
    """Version of that compiler."""
    compiler: str | None
    """Path of a C++ compiler."""
    python_headers: bool
    venv: bool
    """Whether Python can make virtual environments with pip (Debian splits that off)."""

    @property
    def python_text(self) -> str:
        """As people write it: `3.12.4`."""
        return ".".join(map(str, self.python))

    @property
    def python_package(self) -> str:
        """Debian's name of this Python: `python3.12`."""
        return f"python{self.python[0]}.{self.python[1]}"
