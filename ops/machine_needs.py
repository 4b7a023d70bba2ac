"""What is missing on a machine and how to get it, in the words of Debian, Ubuntu and WSL. Standard library alone."""

from dataclasses import dataclass

from ops.machine_values import Machine, Wsl

CUDA_DOWNLOADS = "https://developer.nvidia.com/cuda-downloads"


@dataclass(frozen=True, slots=True)
class Need:
    """One missing thing."""

    what: str
    why: str
    how: tuple[str, ...]
    """Steps, one a line; a command begins with `$ `."""


def need_linux(machine: Machine) -> Need:
    """Another operating system."""
    return Need(
        what="Linux",
        why=f"exl3d runs on Linux, also inside WSL2 on Windows; this is {machine.system}",
        how=("On Windows, in PowerShell: $ wsl --install -d Ubuntu", "Then run `make install` inside Ubuntu."),
    )


def need_wsl2() -> Need:
    """The first WSL has no GPU and no real kernel."""
    return Need(
        what="WSL 2",
        why="this is WSL 1, which has no GPU and lacks system calls that exl3d uses",
        how=("In PowerShell: $ wsl --list --verbose", "In PowerShell: $ wsl --set-version NAME 2"),
    )


def need_python(machine: Machine) -> Need:
    """Python is too old."""
    return Need(
        what="Python 3.11 or newer",
        why=f"this is Python {machine.python_text}",
        how=(
            *_apt(
                machine, "python3.11 python3.11-venv python3.11-dev", otherwise="Install Python 3.11 or newer, with its headers."
            ),
            "Then: $ make install PYTHON=python3.11",
        ),
    )


def need_venv(machine: Machine) -> Need:
    """Debian and Ubuntu ship Python without the part that makes virtual environments."""
    return Need(
        what="Python's venv module with pip",
        why="exl3d is installed into .venv, and this Python cannot make one",
        how=_apt(machine, f"{machine.python_package}-venv", otherwise="Install the venv and ensurepip modules of this Python."),
    )


def need_compiler(machine: Machine) -> Need:
    """Without g++."""
    return Need(
        what="a C++ compiler",
        why="Triton and exllamav3 compile code for this machine's GPU",
        how=_apt(machine, "build-essential", otherwise="Install gcc and g++."),
    )


def need_headers(machine: Machine) -> Need:
    """Without Python.h."""
    return Need(
        what="Python's header files",
        why="the code that is compiled for the GPU is called from Python",
        how=_apt(machine, f"{machine.python_package}-dev", otherwise="Install the headers (Python.h) of this Python."),
    )


def need_driver(machine: Machine, oldest: int, *, blackwell: bool) -> Need:
    """No driver, a broken one, or one that is too old for CUDA 12 or for the card."""
    card = "RTX 50 cards need" if blackwell else "CUDA 12 needs"
    if machine.driver is not None and machine.gpus:
        why = f"{card} it, and this is {'.'.join(map(str, machine.driver))}"
    elif machine.driver_problem:
        why = f"an NVIDIA card is here, but nvidia-smi does not work: {machine.driver_problem}"
    else:
        why = "an NVIDIA card is here, but no driver answers for it"
    if machine.wsl is Wsl.TWO:
        how = (
            "Install the driver on Windows (https://www.nvidia.com/drivers); install none inside WSL.",
            "Then in PowerShell: $ wsl --shutdown",
        )
    elif machine.apt:
        how = (
            f"Ubuntu: $ sudo apt-get install nvidia-driver-{max(oldest, 570)}-open (or a newer one; see $ ubuntu-drivers list)",
            "Debian: follow https://wiki.debian.org/NvidiaGraphicsDrivers; RTX 50 cards need the open kernel modules.",
            "Then restart the computer.",
        )
    else:
        how = ("Install it from https://www.nvidia.com/drivers (RTX 50: with open kernel modules), then restart the computer.",)
    return Need(what=f"NVIDIA driver {oldest} or newer", why=why, how=how)


def need_nvcc(machine: Machine, cuda: tuple[int, int], problem: str) -> Need:
    """exllamav3 must be compiled here and cannot."""
    version = f"{cuda[0]}.{cuda[1]}"
    choice = "Linux, x86_64, WSL-Ubuntu" if machine.wsl is Wsl.TWO else "Linux, your distribution"
    how = [f"Add NVIDIA's package source: {CUDA_DOWNLOADS} ({choice}, deb (network)), the steps up to `apt-get update`."]
    if machine.apt:
        how.append(f"Then: $ sudo apt-get install cuda-toolkit-{cuda[0]}-{cuda[1]}")
    if machine.wsl is Wsl.TWO:
        how.append("Install only the toolkit, never `cuda` or a driver: inside WSL the driver comes from Windows.")
    how.append(f"Then: $ export CUDA_HOME=/usr/local/cuda-{version} and run `make install` again.")
    return Need(
        what=f"CUDA toolkit {version} (nvcc)",
        why=f"no prebuilt exllamav3 fits this machine, so it is compiled here, for which nvcc is needed: {problem}",
        how=tuple(how),
    )


def _apt(machine: Machine, packages: str, *, otherwise: str) -> tuple[str, ...]:
    return (f"$ sudo apt-get install {packages}",) if machine.apt else (otherwise,)
