"""What an engine takes of the machine's own memory: experts that are kept off the GPUs, the token table, prefixes and states.

Sizes are bytes. The library refuses by itself to take the last 2 GiB, in the middle of loading; here it is said before.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from daemon.core.vram_model import ModelShape
from daemon.core.vram_values import Certainty, Demand, Layout
from daemon.core.vram_weights import Weights, offloaded

KEPT_FREE = 2048 << 20
"""exllamav3 leaves so much of the machine's memory free (EXL3_HOST_MEM_RESERVE_MB)."""
_RING_SLOTS, _RING_ROWS, _STREAMED = 4, 64, 2 * (32 << 20)
"""The ring in pinned memory through which experts on the CPU are asked: slots, rows a slot, and room for streamed weights."""
_LINE = re.compile(r"^(?P<name>MemTotal|MemAvailable):\s+(?P<kib>\d+) kB$", re.MULTILINE)


class HostItem(Enum):
    """What host memory is spent on."""

    EXPERTS = "experts"
    RING = "ring for the experts"
    TABLE = "token table"
    PREFIXES = "prefixes"
    CHECKPOINTS = "recurrent checkpoints"


@dataclass(frozen=True, slots=True)
class HostRow:
    """A line of the machine's account, in bytes, for all engines together."""

    item: HostItem
    size: int
    certainty: Certainty


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The machine's memory, in bytes."""

    total: int
    available: int
    """What can be had now."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """What is taken, against what there is; `total` None where nobody said how much the machine has."""

    rows: tuple[HostRow, ...]
    total: int | None = None

    @property
    def needed(self) -> int:
        """Bytes that loading takes. Checkpoints come later, and only as far as there is room."""
        return sum(row.size for row in self.rows if row.item is not HostItem.CHECKPOINTS)

    @property
    def short(self) -> int:
        """Bytes that are missing; 0 where it fits or where nothing is known."""
        return 0 if self.total is None else max(0, self.needed - (self.total - KEPT_FREE))


def parse_meminfo(text: str) -> HostMemory | None:
    """What /proc/meminfo says; None where it says nothing."""
    found = {match["name"]: int(match["kib"]) << 10 for match in _LINE.finditer(text)}
    if "MemTotal" not in found:
        return None
    return HostMemory(found["MemTotal"], found.get("MemAvailable", found["MemTotal"]))


@dataclass(frozen=True, slots=True)
class Kept:
    """Host memory that a person gives, of all engines together: prefixes (pinned at once) and recurrent checkpoints (at most)."""

    prefixes: int = 0
    checkpoints: int = 0


def host_plan(
    model: ModelShape, weights: Weights, demand: Demand, layout: Layout, cards: int, kept: Kept, total: int | None = None
) -> HostPlan:
    """The machine's account for engines on `cards` cards. Replicas hold everything once each, cards of the layout tensor the
    token table.
    """
    rows = tuple(row for row in _rows(model, weights, demand, layout, cards, kept) if row.size)
    return HostPlan(rows, total)


def _rows(model: ModelShape, weights: Weights, demand: Demand, layout: Layout, cards: int, kept: Kept) -> Iterator[HostRow]:
    engines = cards if layout is Layout.REPLICAS else 1
    moved = offloaded(weights, demand.experts_on_cpu)
    yield HostRow(HostItem.EXPERTS, engines * sum(weights.layers[n].experts_in_ram for n in moved), Certainty.EXACT)
    slot = _RING_ROWS * model.hidden * (2 + 4)
    yield HostRow(HostItem.RING, engines * (_RING_SLOTS * slot + _STREAMED) if moved else 0, Certainty.ESTIMATED)
    tables = engines if layout is not Layout.TENSOR else cards
    certainty = Certainty.EXACT if layout is not Layout.TENSOR else Certainty.ESTIMATED
    yield HostRow(HostItem.TABLE, 0 if weights.embedding_quantised else tables * weights.embedding, certainty)
    yield HostRow(HostItem.PREFIXES, kept.prefixes, Certainty.EXACT)
    yield HostRow(HostItem.CHECKPOINTS, kept.checkpoints if model.recurrent else 0, Certainty.EXACT)
