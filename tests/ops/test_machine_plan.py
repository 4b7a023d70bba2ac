"""What `make install` decides on each kind of machine, and what it says where something is missing."""

from dataclasses import replace

import pytest

from ops.machine_plan import Device, EngineBuild, Plan, plan
from ops.machine_values import Gpu, Machine, Wsl

RTX_5070 = Gpu("NVIDIA GeForce RTX 5070", (12, 0), 12227)
RTX_3090 = Gpu("NVIDIA GeForce RTX 3090", (8, 6), 24576)
GTX_1080 = Gpu("NVIDIA GeForce GTX 1080", (6, 1), 8192)

BARE = Machine(
    python=(3, 12, 4),
    system="linux",
    architecture="x86_64",
    wsl=Wsl.NO,
    apt=True,
    gpus=(),
    nvidia_card=False,
    dxg=False,
    driver=None,
    driver_problem="",
    nvcc=None,
    cuda=None,
    compiler="/usr/bin/c++",
    python_headers=True,
    venv=True,
)
"""A machine without a GPU on which nothing is missing."""

NVCC_12_8 = {"nvcc": "/usr/local/cuda/bin/nvcc", "cuda": (12, 8)}
NVCC_13 = {"nvcc": "/usr/local/cuda/bin/nvcc", "cuda": (13, 0)}
NVCC_12_4 = {"nvcc": "/usr/bin/nvcc", "cuda": (12, 4)}

WHEELS = (
    "exllamav3-1.6.5+cu128.torch2.10.0-cp312-cp312-linux_x86_64.whl",
    "exllamav3-1.6.5+cu128.torch2.11.0-cp312-cp312-linux_x86_64.whl",
    "exllamav3-1.6.5+cu128.torch2.8.0-cp312-cp312-linux_x86_64.whl",
    "exllamav3-1.6.5+cu128.torch2.11.0-cp312-cp312-win_amd64.whl",
    "exllamav3-1.6.5+cu132.torch2.11.0-cp312-cp312-linux_x86_64.whl",
    "exllamav3-1.6.5-py3-none-any.whl",
    "exllamav3-1.6.5.tar.gz",
)


def with_gpu(gpu: Gpu, driver: int, **more: object) -> Machine:
    """A machine with one card and a working driver."""
    return replace(BARE, gpus=(gpu,), nvidia_card=True, driver=(driver, 88), **more)


def missing(decided: Plan) -> list[str]:
    return [need.what for need in decided.needs]


def index_of(decided: Plan) -> str:
    (source,) = decided.torch
    assert source.index is not None
    return source.index.rpartition("/")[2]


def test_machine_without_gpu_gets_the_cpu_build_from_wherever_one_is() -> None:
    """First what pip is configured for, if that is a CPU build; then PyTorch's CPU index; then anything."""
    decided = plan(BARE)
    assert decided.device is Device.CPU
    assert decided.possible
    assert [(source.index, source.cpu_only) for source in decided.torch] == [
        (None, True),
        ("https://download.pytorch.org/whl/cpu", True),
        (None, False),
    ]
    assert (decided.build, decided.engine) == (EngineBuild.AS_IT_IS, "exllamav3==1.6.5")


def test_machine_without_gpu_needs_no_compiler() -> None:
    assert plan(replace(BARE, compiler=None, python_headers=False)).possible


@pytest.mark.parametrize(
    ("machine", "torch_index", "build", "needs"),
    [
        (with_gpu(RTX_5070, 576, **NVCC_12_8), "cu128", EngineBuild.FROM_SOURCE, []),
        (with_gpu(RTX_5070, 576), "cu128", EngineBuild.FROM_SOURCE, ["CUDA toolkit 12.8 (nvcc)"]),
        (with_gpu(RTX_5070, 576, **NVCC_13), "cu128", EngineBuild.FROM_SOURCE, ["CUDA toolkit 12.8 (nvcc)"]),
        (with_gpu(RTX_5070, 576, **NVCC_12_4), "cu128", EngineBuild.FROM_SOURCE, ["CUDA toolkit 12.8 (nvcc)"]),
        (with_gpu(RTX_5070, 610, **NVCC_13), "cu130", EngineBuild.FROM_SOURCE, []),
        (with_gpu(RTX_5070, 610, **NVCC_12_8), "cu128", EngineBuild.FROM_SOURCE, []),
        (with_gpu(RTX_5070, 610), "cu128", EngineBuild.FROM_SOURCE, ["CUDA toolkit 12.8 (nvcc)"]),
        (with_gpu(RTX_3090, 550, **NVCC_12_4), "cu126", EngineBuild.FROM_SOURCE, []),
        (with_gpu(RTX_3090, 580, **NVCC_13), "cu130", EngineBuild.FROM_SOURCE, []),
    ],
    ids=[
        "5070, driver 576, nvcc 12.8",
        "5070, driver 576, no nvcc",
        "5070, driver 576, nvcc of a generation it does not run",
        "5070, driver 576, nvcc too old for the card",
        "5070, driver 610, nvcc 13.0",
        "5070, driver 610, nvcc 12.8",
        "5070, driver 610, no nvcc",
        "3090, driver 550, nvcc 12.4",
        "3090, driver 580, nvcc 13.0",
    ],
)
def test_card_without_a_prebuilt_wheel_is_built_for_with_a_fitting_nvcc(
    machine: Machine, torch_index: str, build: EngineBuild, needs: list[str]
) -> None:
    decided = plan(machine)
    assert (index_of(decided), decided.build, missing(decided)) == (torch_index, build, needs)


def test_prebuilt_wheel_needs_no_nvcc_and_brings_its_torch() -> None:
    """Driver 576 runs CUDA 12 only: the newest torch of that generation wins."""
    decided = plan(with_gpu(RTX_5070, 576), WHEELS)
    assert decided.possible
    assert decided.build is EngineBuild.PREBUILT
    assert decided.engine.endswith("/v1.6.5/exllamav3-1.6.5%2Bcu128.torch2.11.0-cp312-cp312-linux_x86_64.whl")
    assert (decided.torch[0].requirement, index_of(decided)) == ("torch==2.11.*", "cu128")


def test_newer_driver_takes_the_wheel_of_the_newer_cuda() -> None:
    decided = plan(with_gpu(RTX_5070, 610), WHEELS)
    assert "cu132" in decided.engine
    assert index_of(decided) == "cu130"


@pytest.mark.parametrize("change", [{"python": (3, 13, 0)}, {"architecture": "aarch64"}])
def test_wheel_for_another_python_or_processor_is_not_taken(change: dict[str, object]) -> None:
    machine = with_gpu(RTX_5070, 576, **NVCC_12_8, **change)
    assert plan(machine, WHEELS).build is EngineBuild.FROM_SOURCE


def test_driver_too_old_for_rtx_50_is_named_with_the_one_it_needs() -> None:
    (need,) = plan(with_gpu(RTX_5070, 565, **NVCC_12_8)).needs
    assert need.what == "NVIDIA driver 570 or newer"
    assert "565.88" in need.why
    assert any("nvidia-driver-570-open" in step for step in need.how)


def test_driver_565_is_enough_for_older_cards() -> None:
    assert plan(with_gpu(RTX_3090, 565, **NVCC_12_4)).possible
    assert missing(plan(with_gpu(RTX_3090, 470, **NVCC_12_4))) == ["NVIDIA driver 525 or newer"]


def test_wsl_is_told_to_get_drivers_from_windows_only() -> None:
    machine = with_gpu(RTX_5070, 560, wsl=Wsl.TWO, dxg=True)
    steps = [step for need in plan(machine).needs for step in need.how]
    assert any("on Windows" in step for step in steps)
    assert any("wsl --shutdown" in step for step in steps)
    assert any("never `cuda` or a driver" in step for step in steps)
    assert not any("nvidia-driver" in step for step in steps)


def test_wsl_with_a_silent_driver_is_no_cpu_machine() -> None:
    """After a driver change on Windows the guest's nvidia-smi fails until `wsl --shutdown`."""
    machine = replace(BARE, wsl=Wsl.TWO, dxg=True, driver_problem="GPU access blocked by the operating system")
    decided = plan(machine)
    assert decided.device is Device.CUDA
    assert "GPU access blocked" in decided.needs[0].why


def test_wsl_with_a_gpu_of_another_make_runs_on_the_cpu_with_a_note() -> None:
    decided = plan(replace(BARE, wsl=Wsl.TWO, dxg=True))
    assert (decided.device, decided.possible) == (Device.CPU, True)
    assert "/dev/dxg" in decided.notes[0]


def test_card_without_driver_is_told_to_get_one() -> None:
    decided = plan(replace(BARE, nvidia_card=True))
    assert decided.device is Device.CUDA
    assert decided.needs[0].what.startswith("NVIDIA driver")


def test_cpu_can_be_asked_for_where_the_gpu_cannot_be_used() -> None:
    decided = plan(with_gpu(RTX_5070, 400), force_cpu=True)
    assert (decided.device, decided.possible) == (Device.CPU, True)


def test_gpu_machine_without_compiler_and_headers_is_told_debian_package_names() -> None:
    """Triton compiles when the engine starts, so they are needed beside a prebuilt wheel too."""
    decided = plan(with_gpu(RTX_5070, 576, compiler=None, python_headers=False), WHEELS)
    steps = [step for need in decided.needs for step in need.how]
    assert steps == ["$ sudo apt-get install build-essential", "$ sudo apt-get install python3.12-dev"]


def test_machine_without_apt_gets_advice_without_package_names() -> None:
    decided = plan(with_gpu(RTX_5070, 576, compiler=None, apt=False), WHEELS)
    assert decided.needs[0].how == ("Install gcc and g++.",)


def test_python_3_10_is_refused_and_3_14_is_not() -> None:
    assert missing(plan(replace(BARE, python=(3, 10, 12)))) == ["Python 3.11 or newer"]
    assert plan(replace(BARE, python=(3, 14, 0))).possible
    newer = plan(replace(BARE, python=(3, 15, 0)))
    assert newer.possible
    assert "3.15.0" in newer.notes[0]


def test_missing_venv_names_the_package_of_this_python() -> None:
    (need,) = plan(replace(BARE, venv=False)).needs
    assert need.how == ("$ sudo apt-get install python3.12-venv",)


def test_wsl_1_and_other_systems_are_refused() -> None:
    assert missing(plan(replace(BARE, wsl=Wsl.ONE))) == ["WSL 2"]
    assert missing(plan(replace(BARE, system="darwin"))) == ["Linux"]


def test_old_card_is_warned_about_by_name() -> None:
    (note,) = plan(with_gpu(GTX_1080, 570, **NVCC_12_4)).notes
    assert "GTX 1080" in note
    assert "6.1" in note
