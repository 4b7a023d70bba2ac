"""One part of the GPU suite in a process of its own, so that a crash or a hang ends that part alone.

`python -m tests.gpu.part NAME --device cuda --folder DIR --out FILE`; writes a `report.Said`.
"""

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from daemon.core.settings import BackendKind, EngineSettings
from tests.gpu.report import NOTHING, Outcome, Part, PartFailed, PartSkipped, Place, Said


def _function(part: Part) -> Callable[[Place], msgspec.Struct]:  # noqa: C901  # one arm a part
    """What a part runs. Imported only now: some of it imports exllamav3, whose operations must be in place before."""
    match part:
        case Part.MACHINE:
            from tests.gpu.machine import run  # noqa: PLC0415  # as above
        case Part.MODELS:
            from tests.gpu.models import run  # noqa: PLC0415
        case Part.CONTRACT:
            from tests.gpu.contract import run  # noqa: PLC0415
        case Part.MARKED:
            from tests.gpu.contract import run_marked as run  # noqa: PLC0415
        case Part.CACHE_BITS:
            from tests.gpu.cache_bits import run  # noqa: PLC0415
        case Part.HYBRID:
            from tests.gpu.hybrid import run  # noqa: PLC0415
        case Part.SUSPEND:
            from tests.gpu.suspend import run  # noqa: PLC0415
        case Part.MEMORY:
            from tests.gpu.memory import run  # noqa: PLC0415
        case Part.TENSOR:
            from tests.gpu.layouts import run_tensor as run  # noqa: PLC0415
        case Part.EXPERTS:
            from tests.gpu.layouts import run_experts as run  # noqa: PLC0415
        case Part.THROUGHPUT:
            from tests.gpu.throughput import run  # noqa: PLC0415
        case Part.CUDA_ERRORS:
            from tests.gpu.cuda_errors import run  # noqa: PLC0415
    return run


_IN_PROCESS = frozenset({Part.MACHINE, Part.CACHE_BITS, Part.HYBRID, Part.SUSPEND})
"""Parts that use exllamav3 themselves; the others start processes that do."""


def said(part: Part, place: Place) -> Said:
    """Run a part; whatever it raises is its outcome."""
    try:
        if part in _IN_PROCESS:
            from daemon.engine.exl3 import runtime  # noqa: PLC0415  # imports torch, which the others do without

            runtime.prepare(EngineSettings(backend=place.device, threads=1))
        return Said(Outcome.OK, "", _raw(_function(part)(place)))
    except PartFailed as problem:
        return Said(Outcome.FAILED, str(problem), _raw(problem.numbers))
    except PartSkipped as problem:
        return Said(Outcome.SKIPPED, str(problem))
    except Exception as problem:  # noqa: BLE001  # the report is where it belongs; the log has the trace
        traceback.print_exc()
        return Said(Outcome.FAILED, f"{type(problem).__name__}: {problem}"[:2000])


def _raw(numbers: msgspec.Struct | None) -> msgspec.Raw:
    return NOTHING if numbers is None else msgspec.Raw(msgspec.json.encode(numbers))


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.part", description=__doc__)
    parser.add_argument("part", choices=[part.value for part in Part])
    parser.add_argument("--device", choices=[BackendKind.CUDA.value, BackendKind.CPU.value], required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    out: Path = given.out
    place = Place(BackendKind(given.device), given.folder, given.model)
    out.write_bytes(msgspec.json.encode(said(Part(given.part), place)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
