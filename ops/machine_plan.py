"""What to install on a machine, decided from facts about it. Pure, and of the standard library alone: it runs before anything
is installed (`ops/install.py`) and again whenever somebody asks (`exl3ctl engine check`). Facts are gathered in `ops/machine.py`.

1. Things without which nothing runs: Linux, WSL 2 rather than 1, Python 3.11 or newer with `venv`.
2. No NVIDIA card: the CPU build of torch, exllamav3 as it comes (its operations are computed by exl3d).
3. A card: the driver says which CUDA may run, the card which CUDA must (RTX 50: 12.8). Both give the torch index.
   a. A prebuilt wheel of exllamav3's release that fits card, driver and Python, and the torch it was built for.
   b. Else a build from source at first import, for which nvcc of torch's CUDA generation is needed.
   Either way a C compiler and Python's headers, because Triton compiles its launchers when the engine starts.
"""

from dataclasses import dataclass
from enum import Enum

from ops.machine_needs import (
    Need,
    need_compiler,
    need_driver,
    need_headers,
    need_linux,
    need_nvcc,
    need_python,
    need_venv,
    need_wsl2,
)
from ops.machine_values import Machine, Wsl
from ops.release_wheels import EXLLAMAV3, ReleaseWheel, best_wheel

TORCH = "torch>=2.9,<2.14"
"""The range of pyproject.toml."""

PYTORCH_INDEX = "https://download.pytorch.org/whl/"

OLDEST_PYTHON = (3, 11)
NEWEST_PYTHON = (3, 14)
"""The newest Python for which torch and the release wheels exist at the time of writing."""

_BLACKWELL = (10, 0)
_AMPERE = (8, 0)
_CUDA_12_8 = (12, 8)


class Device(Enum):
    """Where the engine will compute."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class TorchSource:
    """One place to get torch from. They are tried in order until one has a build that fits."""

    requirement: str
    index: str | None
    """URL of a package index; None: whatever pip is configured for."""
    cpu_only: bool
    """Take it only if what is found there is a CPU build."""


class EngineBuild(Enum):
    """In which form exllamav3 comes."""

    AS_IT_IS = "as it is, without its compiled part"
    PREBUILT = "prebuilt"
    FROM_SOURCE = "compiled here"


@dataclass(frozen=True, slots=True)
class Plan:
    """What `make install` will do, and what stands in its way."""

    device: Device
    cuda: tuple[int, int] | None
    """CUDA version of torch; None on a CPU."""
    torch: tuple[TorchSource, ...]
    build: EngineBuild
    engine: str
    """What pip is asked for: a requirement, or the URL of a wheel."""
    needs: tuple[Need, ...]
    notes: tuple[str, ...]

    @property
    def possible(self) -> bool:
        """Whether nothing is missing."""
        return not self.needs


def plan(machine: Machine, wheels: tuple[str, ...] = (), *, force_cpu: bool = False) -> Plan:
    """Decide. `wheels` are the file names of exllamav3's release, where they could be asked for."""
    basics = _basics(machine)
    if force_cpu or not _has_nvidia(machine):
        return _cpu_plan(machine, basics, force_cpu=force_cpu)
    return _cuda_plan(machine, basics, wheels)


def _has_nvidia(machine: Machine) -> bool:
    """Whether there is a card to run on, be it without a working driver. WSL shows no PCI bus: there an nvidia-smi that fails
    beside a passed-on GPU means a broken driver.
    """
    return bool(machine.gpus) or machine.nvidia_card or (machine.dxg and bool(machine.driver_problem))


def _basics(machine: Machine) -> tuple[Need, ...]:
    needs: list[Need] = []
    if machine.system != "linux":
        needs.append(need_linux(machine))
    if machine.wsl is Wsl.ONE:
        needs.append(need_wsl2())
    if machine.python[:2] < OLDEST_PYTHON:
        needs.append(need_python(machine))
    elif not machine.venv:
        needs.append(need_venv(machine))
    return tuple(needs)


def _python_notes(machine: Machine) -> tuple[str, ...]:
    if machine.python[:2] > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        return (f"Python {machine.python_text} is newer than exl3d was made for ({newest}); torch may not exist for it yet.",)
    return ()


def _cpu_plan(machine: Machine, needs: tuple[Need, ...], *, force_cpu: bool) -> Plan:
    notes = list(_python_notes(machine))
    if force_cpu and machine.gpus:
        notes.append("A GPU is here, but the CPU was asked for.")
    elif machine.wsl is Wsl.TWO and machine.dxg:
        notes.append(
            "WSL offers a GPU (/dev/dxg), but no NVIDIA driver answers: with an NVIDIA card, install its Windows driver."
        )
    return Plan(
        device=Device.CPU,
        cuda=None,
        torch=(
            TorchSource(TORCH, None, cpu_only=True),
            TorchSource(TORCH, PYTORCH_INDEX + "cpu", cpu_only=True),
            TorchSource(TORCH, None, cpu_only=False),
        ),
        build=EngineBuild.AS_IT_IS,
        engine=f"exllamav3=={EXLLAMAV3}",
        needs=needs,
        notes=tuple(notes),
    )


def _cuda_plan(machine: Machine, basics: tuple[Need, ...], wheels: tuple[str, ...]) -> Plan:
    needs, notes = list(basics), list(_python_notes(machine))
    blackwell = any(gpu.capability is not None and gpu.capability >= _BLACKWELL for gpu in machine.gpus)
    notes += [
        f"{gpu.name}: exllamav3 is made for compute capability 8.0 (RTX 30) and newer; this card has {gpu.capability_text}."
        for gpu in machine.gpus
        if gpu.capability is not None and gpu.capability < _AMPERE
    ]
    oldest_driver = 570 if blackwell else 525
    if not machine.gpus or machine.driver is None or machine.driver[0] < oldest_driver:
        needs.append(need_driver(machine, oldest_driver, blackwell=blackwell))
    runs = _newest_cuda(machine.driver)
    least = _CUDA_12_8 if blackwell else (12, 0)
    wheel = best_wheel(wheels, machine.python, machine.architecture, least=least, most=runs)
    needs += [] if machine.compiler else [need_compiler(machine)]
    needs += [] if machine.python_headers else [need_headers(machine)]
    cuda = _torch_cuda(wheel.cuda) if wheel else _source_cuda(machine, least, runs)
    if wheel is None and (problem := _nvcc_problem(machine, cuda, least)):
        needs.append(need_nvcc(machine, cuda, problem))
    return Plan(
        device=Device.CUDA,
        cuda=cuda,
        torch=_cuda_torch(cuda, wheel),
        build=EngineBuild.PREBUILT if wheel else EngineBuild.FROM_SOURCE,
        engine=f"exllamav3 @ {wheel.url}" if wheel else f"exllamav3=={EXLLAMAV3}",
        needs=tuple(needs),
        notes=tuple(notes),
    )


def _newest_cuda(driver: tuple[int, ...] | None) -> tuple[int, int]:
    """The newest CUDA generation a driver runs. Within a generation every minor version runs (minor version compatibility)."""
    return (13, 99) if driver is not None and driver[0] >= 580 else (12, 99)  # noqa: PLR2004  # R580 brought CUDA 13


def _torch_cuda(cuda: tuple[int, int]) -> tuple[int, int]:
    """The torch index of the same CUDA generation: PyTorch publishes cu126, cu128 and cu130."""
    if cuda >= (13, 0):
        return (13, 0)
    return _CUDA_12_8 if cuda >= _CUDA_12_8 else (12, 6)


def _source_cuda(machine: Machine, least: tuple[int, int], runs: tuple[int, int]) -> tuple[int, int]:
    """The CUDA of torch for a build here: nvcc's generation where the driver runs it, since torch refuses to compile with
    another one; else the newest of generation 12, which the most drivers run.
    """
    if machine.cuda is not None and machine.cuda >= least and machine.cuda[0] <= runs[0]:
        return _torch_cuda(machine.cuda)
    old = machine.driver is not None and machine.driver[0] < 570 and least < _CUDA_12_8  # noqa: PLR2004  # R570 brought 12.8
    return (12, 6) if old else _CUDA_12_8


def _nvcc_problem(machine: Machine, cuda: tuple[int, int], least: tuple[int, int]) -> str | None:
    """Why the compiler that is here cannot build exllamav3; None where it can."""
    if machine.cuda is None:
        return "there is none"
    here = ".".join(map(str, machine.cuda))
    if machine.cuda < least:
        return f"nvcc {here} does not know this card"
    if machine.cuda[0] != cuda[0]:
        return f"nvcc {here} is of a CUDA generation that the driver does not run"
    return None


def _cuda_torch(cuda: tuple[int, int], wheel: ReleaseWheel | None) -> tuple[TorchSource, ...]:
    requirement = TORCH if wheel is None else f"torch=={wheel.torch[0]}.{wheel.torch[1]}.*"
    return (TorchSource(requirement, f"{PYTORCH_INDEX}cu{cuda[0]}{cuda[1]}", cpu_only=False),)
