"""Silent misses of the prefix cache in `/metrics`."""

from dataclasses import replace

from daemon.api.exposition import Exposition
from daemon.api.meters import Meters
from daemon.core.ports import Status
from daemon.core.prefix_watch import PrefixFigures
from tests.api.fakes import STATUS, FakeWatching


class Watching(FakeWatching):
    """Knows of misses."""

    def status(self) -> Status:
        return replace(STATUS, prefix=PrefixFigures(1000, 600, evicted=3, template_changed=1))


async def test_lookups_hits_and_misses_by_cause_are_told() -> None:
    lines = (await Exposition(Meters(), Watching()).text()).decode().splitlines()
    assert "exl3d_prefix_cache_queries_total 1000.0" in lines
    assert "exl3d_prefix_cache_hits_total 600.0" in lines
    assert [line for line in lines if line.startswith("exl3d_prefix_silent_misses_total{")] == [
        'exl3d_prefix_silent_misses_total{cause="evicted"} 3.0',
        'exl3d_prefix_silent_misses_total{cause="no_checkpoint"} 0.0',
        'exl3d_prefix_silent_misses_total{cause="template_changed"} 1.0',
        'exl3d_prefix_silent_misses_total{cause="too_short"} 0.0',
    ]
