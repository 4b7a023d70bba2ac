"""Breaks this process's CUDA context in one way and says what torch says about it: `python -m tests.gpu.break_cuda 700`.

Run it in a process made for it: nothing CUDA works there afterwards. One line of JSON, `Broken`, then it leaves at once, as
the tear-down of a broken context may hang.

700: a kernel of ours writes to address 0. 710: torch's own kernel asserts that an index is in range. 719: a kernel traps.
"""

import argparse
import ctypes
import os
import sys
from collections.abc import Callable, Sequence

import msgspec
import torch

from daemon.engine.exl3.faults import classify

_PTX = """
.version 6.3
.target sm_75
.address_size 64
.visible .entry broken()
{{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    mov.u32 %r0, 7;
    mov.u64 %rd0, 0;
    {instruction}
    ret;
}}
"""
_INSTRUCTIONS = {700: "st.global.u32 [%rd0], %r0;", 719: "trap;"}
_ASSERT = 710
WAYS = (700, _ASSERT, 719)


class Words(msgspec.Struct, frozen=True):
    """An exception as torch raised it."""

    kind: str
    """The type's name."""
    text: str
    code: int | None
    """Where the exception carries CUDA's number."""
    fault: str
    """What the engine takes it for: `daemon.engine.exl3.faults.FaultKind`."""


class Broken(msgspec.Struct, frozen=True):
    """What came of it."""

    wanted: int
    first: Words | None
    """At the first call after the kernel; None: nothing was raised."""
    later: list[Words | None]
    """At calls after that which have nothing to do with it: all raise where the error is sticky."""


def _words(problem: Exception) -> Words:
    code: object = getattr(problem, "error_code", None)  # torch.AcceleratorError's, since torch 2.9
    return Words(type(problem).__name__, str(problem), code if isinstance(code, int) else None, classify(problem).value)


def _raised(call: Callable[[], object]) -> Words | None:
    try:
        call()
    except Exception as problem:  # noqa: BLE001  # what is raised is what is asked
        return _words(problem)
    return None


def _launch(number: int) -> None:
    """A kernel of ours in torch's context, through the driver's own interface."""
    driver = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    image = _PTX.format(instruction=_INSTRUCTIONS[number]).encode()
    one = ctypes.c_uint(1)
    for code in (
        driver.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(image)),
        driver.cuModuleGetFunction(ctypes.byref(function), module, ctypes.c_char_p(b"broken")),
        driver.cuLaunchKernel(function, one, one, one, one, one, one, ctypes.c_uint(0), None, None, None),
    ):
        if code:
            raise OSError(code, f"the driver would not start the kernel: CUDA error {code}")


def broken(number: int) -> Broken:
    """Break the context. Raises OSError where the kernel could not be started at all."""
    values = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    if number == _ASSERT:
        first = _raised(lambda: values[torch.tensor([9], device="cuda")].sum().item())
    else:
        _launch(number)
        first = _raised(torch.cuda.synchronize)
    later = [
        _raised(torch.cuda.synchronize),
        _raised(lambda: torch.ones(8, device="cuda").sum().item()),
        _raised(values.cpu),
    ]
    return Broken(number, first, later)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.break_cuda", description=__doc__)
    parser.add_argument("number", type=int, choices=WAYS)
    given = parser.parse_args(arguments)
    sys.stdout.write(msgspec.json.encode(broken(given.number)).decode() + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
