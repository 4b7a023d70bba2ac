"""Tries the GPUs from a fresh process: `python -m daemon.engine.probe`. Prints one line of JSON and ends without tear-down.

On every GPU this process may see: a context, a little memory, a kernel, and the result read back. It talks to the driver
itself: torch would take seconds and memory to say the same. It may block for ever; whoever starts it sets the deadline.
"""

import argparse
import ctypes
import json
import os
import sys
from dataclasses import dataclass

from daemon.engine.process import end_with_parent

_LIBRARY = "libcuda.so.1"
_BYTES = 1 << 20
_THREADS = 256
_OUT_OF_MEMORY, _NO_DEVICE = 2, 100
_NO_COMPILER = frozenset({209, 218, 221, 222, 301})
"""A driver that cannot translate our kernel for a card (too old, too new): no fault. Its own fill kernel is used."""
_PTX = b"""
.version 6.3
.target sm_75
.address_size 64
.visible .entry number(.param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [out];
    cvta.to.global.u64 %rd1, %rd0;
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd2, %r0, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r0;
    ret;
}
"""
"""Each thread writes its number."""
_FILL = 0x5EED5EED


@dataclass(eq=False)
class _Failed(Exception):
    """A call of the driver that did not return success."""

    call: str
    code: int


class _Driver:
    """CUDA's driver API, as far as a probe goes."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function. Raises _Failed."""
        code = int(self._library[name](*arguments))
        if code:
            raise _Failed(name, code)

    def devices(self) -> int:
        """Start the driver and count."""
        self.call("cuInit", ctypes.c_uint(0))
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def try_device(self, number: int) -> bool:
        """Whether a GPU computes rightly. What was taken goes with the process."""
        device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
        self.call("cuCtxCreate_v2", ctypes.byref(context), ctypes.c_uint(0), device)
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(_BYTES))
        expected = list(range(_THREADS)) if self._launch(memory) else self._fill(memory)
        self.call("cuCtxSynchronize")
        found = (ctypes.c_uint32 * _THREADS)()
        self.call("cuMemcpyDtoH_v2", found, memory, ctypes.c_size_t(ctypes.sizeof(found)))
        return list(found) == expected

    def _launch(self, memory: ctypes.c_uint64) -> bool:
        """Run our own kernel; False where this driver cannot translate it."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        try:
            self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(_PTX))
        except _Failed as problem:
            if problem.code in _NO_COMPILER:
                return False
            raise
        self.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"number"))
        parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(memory), ctypes.c_void_p))
        grid = (ctypes.c_uint(1), ctypes.c_uint(1), ctypes.c_uint(1))
        block = (ctypes.c_uint(_THREADS), ctypes.c_uint(1), ctypes.c_uint(1))
        self.call("cuLaunchKernel", function, *grid, *block, ctypes.c_uint(0), None, parameters, None)
        return True

    def _fill(self, memory: ctypes.c_uint64) -> list[int]:
        """Let the driver's own kernel fill the memory."""
        self.call("cuMemsetD32_v2", memory, ctypes.c_uint(_FILL), ctypes.c_size_t(_THREADS))
        return [_FILL] * _THREADS


def probe(library: str = _LIBRARY) -> dict[str, str | int | None]:
    """`outcome` is a `core.faults.ProbeOutcome` value; `code` CUDA's error number; `call` the function that failed."""
    try:
        driver = _Driver(library)
    except OSError:
        return {"outcome": "no_device", "code": _NO_DEVICE, "call": "dlopen"}
    try:
        devices = driver.devices()
        if devices == 0:
            return {"outcome": "no_device", "code": _NO_DEVICE, "call": "cuDeviceGetCount"}
        for number in range(devices):
            if not driver.try_device(number):
                return {"outcome": "failed", "code": None, "call": f"the result on GPU {number}"}
    except _Failed as problem:
        outcome = {_OUT_OF_MEMORY: "no_memory", _NO_DEVICE: "no_device"}.get(problem.code, "failed")
        return {"outcome": outcome, "code": problem.code, "call": problem.call}
    return {"outcome": "works", "code": None, "call": ""}


def main() -> None:
    """Try, print, and leave at once: a driver's tear-down may hang."""
    arguments = argparse.ArgumentParser(prog="python -m daemon.engine.probe", description=__doc__)
    arguments.add_argument("--library", default=_LIBRARY, help="CUDA's driver library")
    given = arguments.parse_args()
    end_with_parent()
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    sys.stdout.write(json.dumps(probe(given.library)) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
