"""Faults on demand for engine processes of the recovery bench. Python imports this file at the start of each of its processes.

The bench puts this folder on PYTHONPATH of the daemon that it starts, so that engines can be made to fail from outside and
nothing in the product knows of it. Only a process whose command line names `daemon.engine` is touched, and only when one of
these signals comes (numbers from SIGRTMIN, known to `ops/bench/faults.py`):

    +1  the next pass of the model computes and then raises an exception that says nothing about the device
    +2  the same with the words of a sticky CUDA error
    +3  the process exits at once, between two instructions of Python

The second and the third come later than their signal: after the pass that is running, which takes seconds on a CPU. The file
that EXL3D_BENCH_MOMENTS names gets the moment at which the process really failed, a line each: its process id, and seconds
since the epoch.
"""  # noqa: INP001 - found by its name on PYTHONPATH, never imported as part of a package

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

_PASSES = ("forward", "prefill")


def _note() -> None:
    with Path(os.environ["EXL3D_BENCH_MOMENTS"]).open("a", encoding="ascii") as moments:
        moments.write(f"{os.getpid()} {time.time()}\n")


def _fail_after_a_pass(problem: Callable[[], Exception]) -> Callable[[int, FrameType | None], None]:
    """A signal handler that spoils one pass, after its work: caches and recurrent state have moved on, the result is lost."""

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        model: type = sys.modules["exllamav3"].Model
        originals: dict[str, Callable[..., object]] = {name: getattr(model, name) for name in _PASSES}

        def spoilt(name: str) -> Callable[..., object]:
            def once(*arguments: object, **options: object) -> object:
                for each, original in originals.items():
                    setattr(model, each, original)
                originals[name](*arguments, **options)
                _note()
                raise problem()

            return once

        for name in _PASSES:
            setattr(model, name, spoilt(name))

    return handle


def _exit(number: int, frame: FrameType | None) -> None:
    del number, frame
    _note()
    os._exit(1)


if "daemon.engine" in sys.orig_argv:
    signal.signal(signal.SIGRTMIN + 1, _fail_after_a_pass(lambda: ValueError("the recovery bench made this pass fail")))
    signal.signal(
        signal.SIGRTMIN + 2,
        _fail_after_a_pass(
            lambda: RuntimeError("CUDA error: an illegal memory access was encountered (made by the recovery bench)")
        ),
    )
    signal.signal(signal.SIGRTMIN + 3, _exit)
