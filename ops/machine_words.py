"""A finding about a machine in words, the same for `make install` and `exl3ctl engine check`. Standard library alone."""

from collections.abc import Iterator

from ops.machine_plan import EngineBuild, Plan
from ops.machine_values import Machine, Wsl
from ops.release_wheels import EXLLAMAV3


def finding(machine: Machine, plan: Plan) -> Iterator[tuple[str, str]]:
    """What is here and what follows from it, as pairs of a heading and a text."""
    yield "System", _system(machine)
    yield "Python", machine.python_text
    yield "GPU", _gpus(machine)
    if machine.driver is not None:
        yield "Driver", ".".join(map(str, machine.driver))
    if machine.nvcc is not None:
        yield "CUDA toolkit", f"{'.'.join(map(str, machine.cuda or ('?',)))} ({machine.nvcc})"
    yield "Compiler", machine.compiler or "none"
    yield "torch", "CPU build" if plan.cuda is None else f"CUDA {plan.cuda[0]}.{plan.cuda[1]} build"
    yield "exllamav3", f"{EXLLAMAV3}, {_build(plan)}"


def needs(plan: Plan) -> Iterator[str]:
    """What is missing and how to get it, line by line."""
    for need in plan.needs:
        yield f"Missing: {need.what}"
        yield f"  because {need.why}."
        for step in need.how:
            yield f"  - {step}"


def _system(machine: Machine) -> str:
    words = {Wsl.NO: "", Wsl.ONE: ", WSL 1", Wsl.TWO: ", WSL 2"}
    return f"{machine.system} {machine.architecture}{words[machine.wsl]}"


def _gpus(machine: Machine) -> str:
    if machine.gpus:
        return "; ".join(f"{gpu.name}, {gpu.memory_mib} MiB, compute capability {gpu.capability_text}" for gpu in machine.gpus)
    return "an NVIDIA card without a working driver" if machine.nvidia_card else "no NVIDIA card; the engine runs on the CPU"


def _build(plan: Plan) -> str:
    match plan.build:
        case EngineBuild.PREBUILT:
            return f"prebuilt: {plan.engine.rpartition('/')[2]}"
        case EngineBuild.AS_IT_IS:
            return "without its compiled part: its operations run in torch on the CPU"
        case EngineBuild.FROM_SOURCE:
            return "compiled on this machine (about ten minutes, once)"
