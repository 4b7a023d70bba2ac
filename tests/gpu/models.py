"""Makes what the other parts load: two tiny random models, and the demo model where it is not there yet."""

import os
from pathlib import Path

import msgspec

from ops import demo_model
from ops.demo_values import Stage
from tests.engine.checkpoints import Architecture, write_checkpoint
from tests.gpu.report import Place


class ModelNumbers(msgspec.Struct, frozen=True):
    """What was made."""

    tiny: list[str]
    served: str
    """The directory that memory and throughput are measured with."""


def served(place: Place) -> Path:
    """The reader's own model, or the demo model, made ready."""
    if place.model is not None:
        return place.model
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    state = Path(os.environ.get("EXL3D_TEST_STATE") or cache / "exl3d" / "test-state")
    return demo_model.make_ready(state, _silent)


def _silent(_stage: Stage, _done: int, _total: int) -> None:
    """Nobody watches."""


def run(place: Place) -> ModelNumbers:
    """See the module."""
    write_checkpoint(Architecture.QWEN3, place.dense)
    write_checkpoint(Architecture.QWEN3_5, place.hybrid)
    return ModelNumbers([Architecture.QWEN3.value, Architecture.QWEN3_5.value], str(served(place)))
