"""The order in which the tests run."""

from pathlib import Path

import pytest

_SLOW_ROOMS = ("systemd", "process", "gpu", "ops", "engine")
"""Folders whose tests wait for other processes or compute much, the slowest files first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow rooms first: where workers share the files out in this order, none ends alone with a file of minutes."""
    here = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        room = item.path.relative_to(here).parts[0]
        return _SLOW_ROOMS.index(room) if room in _SLOW_ROOMS else len(_SLOW_ROOMS)

    items.sort(key=rank)
