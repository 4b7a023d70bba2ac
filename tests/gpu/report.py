"""What `make test-gpu` writes: one JSON document, described in docs/GPU.md, and the values its parts are told and give back."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec

from daemon.core.settings import BackendKind

SCHEMA = 1
"""Raised when a field changes its meaning or goes."""


NOTHING = msgspec.Raw(b"null")
"""The numbers of a part that measured none."""


class Outcome(Enum):
    """How a part went."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


class Part(Enum):
    """The parts, in the order in which they run: what the others need comes first, what may upset a driver last."""

    MACHINE = "machine"
    MODELS = "models"
    CONTRACT = "contract"
    MARKED = "marked"
    CACHE_BITS = "cache_bits"
    HYBRID = "hybrid"
    SUSPEND = "suspend"
    MEMORY = "memory"
    TENSOR = "tensor"
    EXPERTS = "experts"
    THROUGHPUT = "throughput"
    CUDA_ERRORS = "cuda_errors"


class PartReport(msgspec.Struct, frozen=True):
    """One part."""

    name: Part
    outcome: Outcome
    seconds: float
    reason: str = ""
    """Why it failed or was skipped, for people."""
    numbers: msgspec.Raw = NOTHING
    """What was measured, also by a part that failed; its fields are named in docs/GPU.md."""


class Report(msgspec.Struct, frozen=True):
    """The document."""

    schema: int
    device: str
    seconds: float
    """All parts but `machine`, which compiles exllamav3's extension where that was not done yet."""
    ok: int
    failed: int
    skipped: int
    parts: list[PartReport]


class Said(msgspec.Struct, frozen=True):
    """What the process of a part writes when it ends by itself."""

    outcome: Outcome
    reason: str
    numbers: msgspec.Raw = NOTHING


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part works."""

    device: BackendKind
    """CUDA, or CPU for the twin."""
    folder: Path
    """Shared by the parts of a run: models, states."""
    model: Path | None = None
    """A model of the reader's own, for the figures of memory and throughput; None: the demo model."""

    @property
    def dense(self) -> Path:
        """A tiny Qwen3."""
        return self.folder / "dense"

    @property
    def hybrid(self) -> Path:
        """A tiny Qwen3.5: GatedDeltaNet layers plus full attention."""
        return self.folder / "hybrid"

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU to measure: otherwise parts are small, and those that need one are skipped."""
        return self.device is BackendKind.CUDA


class PartFailed(Exception):
    """What a part claims does not hold. `numbers` is what it had measured."""

    def __init__(self, reason: str, numbers: msgspec.Struct | None = None) -> None:
        super().__init__(reason)
        self.numbers = numbers


class PartSkipped(Exception):
    """A part cannot be tried on this machine; the message says why."""
