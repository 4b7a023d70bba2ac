"""Reading the configuration again: all or nothing, and systemd hears of it."""

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.core.errors import ConfigError
from daemon.core.settings import LogSettings, ServerSettings, Settings
from daemon.host.logs import Logging
from daemon.host.notify import Systemd
from daemon.host.reloading import Reloader
from daemon.host.settings_file import Configuration


class _Heard:
    """A notifier that remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def notify(self, state: str) -> None:
        self.said.append(state.partition("\n")[0])


class _Part:
    """A part that takes everything, but for settings it was told to refuse."""

    def __init__(self, refused: int | None = None) -> None:
        self.holds = Settings()
        self.refused = refused

    def reload(self, settings: Settings) -> None:
        if settings.server.max_queued == self.refused:
            raise ConfigError("there is no room for that")
        self.holds = settings


def _reloader(read: Callable[[], Settings]) -> tuple[Reloader, _Heard]:
    heard = _Heard()
    systemd = Systemd(heard)
    systemd.ready()
    return Reloader(Settings(), lambda: Configuration(read(), Path("/nowhere"), None), systemd), heard


def _queued(most: int, port: int = 8321) -> Settings:
    return Settings(port=port, server=ServerSettings(max_queued=most))


async def test_good_file_reaches_every_part_but_what_needs_a_restart() -> None:
    reloader, heard = _reloader(lambda: _queued(7, port=1))
    parts = [_Part(), _Part()]
    reloader.take(parts)
    reloaded = await reloader.reload()
    assert reloaded.problem == ""
    assert (reloaded.applied, reloaded.waiting) == (("server.max_queued",), ("port",))
    assert "needs a restart: port" in reloaded.words
    assert [part.holds for part in parts] == [_queued(7)] * 2
    assert reloader.settings == _queued(7)
    assert heard.said == ["READY=1", "RELOADING=1", "READY=1"]
    reloader.close()


async def test_bad_file_changes_nothing_and_says_why() -> None:
    def bad() -> Settings:
        raise ConfigError("there is no setting `prot`", "config.yaml, line 3")

    reloader, heard = _reloader(bad)
    part = _Part()
    reloader.take([part])
    reloaded = await reloader.reload()
    assert reloaded.problem == "config.yaml, line 3: there is no setting `prot`"
    assert "the old one stays" in reloaded.words
    assert reloader.settings == part.holds == Settings()
    assert heard.said == ["READY=1", "RELOADING=1", "READY=1"]
    reloader.close()


async def test_part_that_refuses_takes_the_others_back() -> None:
    reloader, _ = _reloader(lambda: _queued(7))
    first, last = _Part(), _Part(refused=7)
    reloader.take([first, last])
    reloaded = await reloader.reload()
    assert reloaded.problem == "there is no room for that"
    assert first.holds == last.holds == reloader.settings == Settings()
    reloader.close()


async def test_later_reload_wins_where_two_overlap() -> None:
    """The first reads slowly; what the second read must hold in the end."""
    slow = threading.Event()
    sizes = iter((3, 4))

    def read() -> Settings:
        size = next(sizes)
        if size == 3:
            slow.wait(30)
        return _queued(size)

    reloader, _ = _reloader(read)
    first = asyncio.create_task(reloader.reload())
    second = asyncio.create_task(reloader.reload())
    await asyncio.sleep(0)
    slow.set()
    await asyncio.gather(first, second)
    assert reloader.settings == _queued(4)
    reloader.close()


async def test_daemon_that_is_not_ready_yet_tells_systemd_nothing() -> None:
    heard = _Heard()
    reloader = Reloader(Settings(), lambda: Configuration(Settings(), Path("/nowhere"), None), Systemd(heard))
    await reloader.reload()
    assert heard.said == []
    reloader.close()


def test_log_level_is_taken_over() -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        Logging(journal=False).reload(Settings(log=LogSettings(level="error")))
        assert root.level == logging.ERROR
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.mark.parametrize(("settings", "words"), [(Settings(), "nothing"), (_queued(7), "server.max_queued")])
async def test_answer_says_what_changed(settings: Settings, words: str) -> None:
    reloader, _ = _reloader(lambda: settings)
    assert words in (await reloader.reload()).words
    reloader.close()
