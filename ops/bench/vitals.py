"""What a daemon holds at a moment: memory, threads and descriptors from /proc, streams and pages from its own /metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

_PAGE = 4096


@dataclass(frozen=True, slots=True)
class ProcessVitals:
    """One process."""

    rss_mib: float
    threads: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Vitals:
    """The daemon at a moment."""

    front: ProcessVitals
    engine: ProcessVitals | None
    """None where there was none, or it ended while we looked."""
    engine_pid: int | None
    gauges: Mapping[str, float]
    """Every sample of /metrics without its labels, those of one name added up."""


def process_vitals(process: int) -> ProcessVitals | None:
    """A process's figures; None if it is gone."""
    folder = Path(f"/proc/{process}")
    try:
        resident = int((folder / "statm").read_text(encoding="ascii").split()[1])
        threads = len(list((folder / "task").iterdir()))
        descriptors = len(list((folder / "fd").iterdir()))
    except OSError:
        return None
    return ProcessVitals(round(resident * _PAGE / 2**20, 2), threads, descriptors)


def gauges(text: str) -> dict[str, float]:
    """The samples of /metrics by name."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found
