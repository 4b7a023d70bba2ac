"""`/metrics`, written when somebody asks.

1. On the event loop, where nothing else moves, the counts and the status are put on a sheet. 2. In a thread, since files of
/proc are read, the figures of processes join them and all becomes text.
"""

import asyncio
import resource
from collections.abc import Iterable, Sequence
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from daemon.api import meters_status
from daemon.api.meters import Meters
from daemon.api.metric_names import Name
from daemon.api.metric_sheet import Sheet
from daemon.core.ports import Watching


class _Taken(Collector):
    """Families that are there already."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Those."""
        return self._families


class Exposition:
    """Writes the metrics of one daemon."""

    def __init__(self, meters: Meters, watching: Watching) -> None:
        self._meters = meters
        self._watching = watching
        self._front = ProcessCollector(namespace="exl3d", registry=None)

    async def text(self) -> bytes:
        """Everything, in Prometheus's text format."""
        sheet = Sheet()
        status = self._watching.status()
        meters_status.fill(sheet, status, self._meters.label)
        self._meters.fill(sheet)
        sheet.put(Name.TASKS, len(asyncio.all_tasks()))
        pids = {str(number): engine.pid for number, engine in enumerate(status.engines) if engine.pid is not None}
        return await asyncio.to_thread(self._write, sheet, pids)

    def _write(self, sheet: Sheet, pids: dict[str, int]) -> bytes:
        for engine, pid in pids.items():
            resident = _resident(pid)
            if resident is not None:
                sheet.put(Name.ENGINE_MEMORY, resident, engine)
        return generate_latest(_Taken([*sheet.families(), *self._front.collect()]))


def _resident(pid: int) -> int | None:
    """Bytes of memory that a process holds; None where it has just ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return None
    return pages * resource.getpagesize()
