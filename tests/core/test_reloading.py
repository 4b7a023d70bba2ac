"""What a new configuration changes at once, against the whole schema."""

import re
from pathlib import Path

import msgspec
import pytest

from daemon.core.reloading import LIVE, RESTART, RESTART_SECTIONS, compare, setting_paths
from daemon.core.settings import KeySettings, LogSettings, ServerSettings, Settings

PATHS = tuple(setting_paths())


def test_every_setting_says_whether_a_reload_takes_it_over() -> None:
    """A new setting belongs into LIVE or RESTART of core/reloading.py, and into one of them only."""
    alone = {path for path in PATHS if path.partition(".")[0] not in RESTART_SECTIONS}
    assert alone == LIVE | RESTART
    assert not LIVE & RESTART


def _other(value: object) -> object:
    """Something else than a value: `compare` looks at equality alone."""
    return ("other than", value)


def _with_other(settings: msgspec.Struct, path: str) -> msgspec.Struct:
    name, _, rest = path.partition(".")
    old: object = getattr(settings, name)
    if rest:
        assert isinstance(old, msgspec.Struct)
        return msgspec.structs.replace(settings, **{name: _with_other(old, rest)})
    return msgspec.structs.replace(settings, **{name: _other(old)})


def _at(settings: object, path: str) -> object:
    for name in path.split("."):
        settings = getattr(settings, name)
    return settings


@pytest.mark.parametrize("path", PATHS)
def test_one_changed_setting_is_taken_over_or_waits(path: str) -> None:
    wanted = _with_other(Settings(), path)
    assert isinstance(wanted, Settings)
    change = compare(Settings(), wanted)
    if path in LIVE:
        assert (change.applied, change.waiting) == ((path,), ())
        assert change.settings == wanted
    else:
        assert (change.applied, change.waiting) == ((), (path,))
        assert change.settings == Settings()


def test_what_waits_still_waits_at_the_next_reload() -> None:
    """What holds is compared with the file, not the file with the file before."""
    first = compare(Settings(), Settings(port=1, server=ServerSettings(max_queued=7)))
    assert (first.applied, first.waiting) == (("server.max_queued",), ("port",))
    second = compare(first.settings, Settings(port=1, log=LogSettings(level="debug"), server=ServerSettings(max_queued=7)))
    assert (second.applied, second.waiting) == (("log.level",), ("port",))
    back = compare(second.settings, Settings())
    assert (back.applied, back.waiting) == (("server.max_queued", "log.level"), ())


def test_list_of_keys_is_one_setting() -> None:
    change = compare(Settings(), Settings(keys=[KeySettings(name="ann", hash="h")]))
    assert change.applied == ("keys",)
    assert _at(change.settings, "keys") == [KeySettings(name="ann", hash="h")]


def test_documentation_names_everything_that_a_reload_takes_over() -> None:
    text = (Path(__file__).parents[2] / "docs" / "SERVICE.md").read_text(encoding="utf-8")
    section = text.partition("## Reload")[2].partition("## Keys")[0].partition("taken over:")[2].partition("All others")[0]
    assert set(re.findall(r"`([a-z_.]+)`", section)) == LIVE
