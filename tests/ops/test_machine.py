"""Looking at machines: what their tools and files say becomes facts."""

from collections.abc import Mapping, Sequence

from ops.machine import Said, look
from ops.machine_values import Gpu, Wsl


class Elsewhere:
    """Another machine, as files and as what its tools print."""

    def __init__(self, files: Mapping[str, str], tools: Mapping[str, Said], path: Mapping[str, str] | None = None) -> None:
        self.files = files
        self.tools = tools
        self.path = path or {}

    def read(self, path: str) -> str | None:
        """A file that was given."""
        return self.files.get(path)

    def list(self, path: str) -> Sequence[str]:
        """Names that the given files imply."""
        return sorted({name[len(path) + 1 :].split("/")[0] for name in self.files if name.startswith(path + "/")})

    def exists(self, path: str) -> bool:
        """Whether a file or tool was given."""
        return path in self.files or path in self.tools

    def which(self, name: str) -> str | None:
        """As given."""
        return self.path.get(name)

    def run(self, command: Sequence[str]) -> Said:
        """What the tool was given to say."""
        return self.tools.get(command[0], Said(ok=False, text="not found"))


NVCC = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.8, V12.8.93\n"


def test_wsl_machine_is_seen_through_its_own_nvidia_smi() -> None:
    """WSL's nvidia-smi is off PATH under systemd; the driver version is the one of Windows."""
    smi = Said(ok=True, text="NVIDIA GeForce RTX 5070, 12.0, 12227, 576.88")
    machine = look(
        Elsewhere(
            {"/proc/sys/kernel/osrelease": "6.6.87.2-microsoft-standard-WSL2\n", "/dev/dxg": ""},
            {"/usr/lib/wsl/lib/nvidia-smi": smi, "/usr/local/cuda/bin/nvcc": Said(ok=True, text=NVCC)},
            {"apt-get": "/usr/bin/apt-get", "g++": "/usr/bin/g++"},
        ),
        {},
    )
    assert machine.gpus == (Gpu("NVIDIA GeForce RTX 5070", (12, 0), 12227),)
    assert (machine.wsl, machine.dxg, machine.driver, machine.cuda) == (Wsl.TWO, True, (576, 88), (12, 8))
    assert (machine.apt, machine.compiler) == (True, "/usr/bin/g++")


def test_two_cards_are_two_cards() -> None:
    smi = Said(ok=True, text="NVIDIA GeForce RTX 5070, 12.0, 12227, 580.95.05\nNVIDIA GeForce RTX 3060, 8.6, 12288, 580.95.05\n")
    machine = look(Elsewhere({}, {"/usr/bin/nvidia-smi": smi}), {})
    assert [gpu.capability for gpu in machine.gpus] == [(12, 0), (8, 6)]
    assert machine.driver == (580, 95, 5)


def test_failing_nvidia_smi_is_quoted_and_the_kernel_module_gives_the_version() -> None:
    words = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95"
    proc = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12\n"
    machine = look(
        Elsewhere({"/proc/driver/nvidia/version": proc}, {"/usr/bin/nvidia-smi": Said(ok=False, text=words)}),
        {},
    )
    assert machine.gpus == ()
    assert machine.driver_problem == "Failed to initialize NVML: Driver/library version mismatch"
    assert machine.driver == (570, 86, 15)


def test_card_without_any_driver_is_found_on_the_bus() -> None:
    bus = "/sys/bus/pci/devices/0000:01:00"
    files = {
        f"{bus}.0/vendor": "0x10de\n",
        f"{bus}.0/class": "0x030000\n",
        f"{bus}.1/vendor": "0x10de\n",
        f"{bus}.1/class": "0x040300\n",
    }
    assert look(Elsewhere(files, {}), {}).nvidia_card
    sound_only = {name: text for name, text in files.items() if ".1/" in name}
    assert not look(Elsewhere(sound_only, {}), {}).nvidia_card


def test_wsl_1_is_told_from_wsl_2() -> None:
    assert look(Elsewhere({"/proc/sys/kernel/osrelease": "4.4.0-19041-Microsoft\n"}, {}), {}).wsl is Wsl.ONE
    assert look(Elsewhere({"/proc/sys/kernel/osrelease": "6.1.0-18-amd64\n"}, {}), {}).wsl is Wsl.NO


def test_cuda_home_comes_before_path() -> None:
    """As in the build itself, which would otherwise use another compiler than the one that was checked."""
    tools = {"/opt/cuda/bin/nvcc": Said(ok=True, text=NVCC), "/usr/bin/nvcc": Said(ok=True, text=NVCC.replace("12.8", "12.0"))}
    around = Elsewhere({}, tools, {"nvcc": "/usr/bin/nvcc"})
    assert look(around, {"CUDA_HOME": "/opt/cuda"}).cuda == (12, 8)
    assert look(around, {}).cuda == (12, 0)


def test_fields_that_a_driver_does_not_know_do_not_hide_the_card() -> None:
    """Very old drivers print `[N/A]` for the compute capability."""
    smi = Said(ok=True, text="NVIDIA GeForce GTX 970, [N/A], [N/A], 470.256.02")
    (gpu,) = look(Elsewhere({}, {"/usr/bin/nvidia-smi": smi}), {}).gpus
    assert (gpu.capability, gpu.memory_mib, gpu.capability_text) == (None, 0, "?")
