"""The book of people: config.yaml and people.json together, while both change."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from daemon.core.errors import ConfigError
from daemon.core.keys import SALT_BYTES
from daemon.core.people import LOCAL, People, StoredPerson
from daemon.core.people_file import FILE_NAME, encode
from daemon.core.settings import KeySettings, PersonSettings, Settings
from daemon.host import people_store
from daemon.host.people_store import PeopleBook


def line(salt: int) -> str:
    return f"scrypt${bytes([salt] * SALT_BYTES).hex()}${'00' * 32}"


def keep(directory: Path, *names: str, guaranteed: int = 0) -> None:
    """Replace people.json, as `exl3ctl user` does."""
    people = [
        StoredPerson(PersonSettings(name=name, guaranteed_context=guaranteed), (line(number),))
        for number, name in enumerate(names)
    ]
    fresh = directory / "fresh"
    fresh.write_bytes(encode(people))
    fresh.chmod(0o600)
    fresh.replace(directory / FILE_NAME)


def test_book_without_file_and_keys_is_open_on_this_machine_only(tmp_path: Path) -> None:
    assert PeopleBook(Settings(), tmp_path).current().names == (LOCAL,)
    with pytest.raises(ConfigError, match="exl3ctl user add"):
        PeopleBook(Settings(host="0.0.0.0"), tmp_path)  # noqa: S104  # it is refused
    keep(tmp_path, "ann")
    assert PeopleBook(Settings(host="0.0.0.0"), tmp_path).current().names == ("ann",)  # noqa: S104  # with a key it is not


def test_damaged_file_stops_the_start_with_its_path(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(ConfigError, match=FILE_NAME):
        PeopleBook(Settings(), tmp_path)


def test_reload_takes_over_settings_and_file_and_tells(tmp_path: Path) -> None:
    keep(tmp_path, "ann", "bob")
    book = PeopleBook(Settings(), tmp_path)
    told: list[People] = []
    book.on_change(told.append)
    keep(tmp_path, "ann")
    book.look()
    assert book.current().names == ("ann", "bob"), "looking changes nothing"
    book.reload(Settings(keys=[KeySettings(name="eve", hash=line(9))]))
    assert book.current().names == ("eve", "ann")
    assert told == [book.current()]


def test_reload_that_changes_nothing_tells_nobody_and_keeps_the_value(tmp_path: Path) -> None:
    keep(tmp_path, "ann")
    book = PeopleBook(Settings(), tmp_path)
    before = book.current()
    book.on_change(lambda _: pytest.fail("nothing changed"))
    keep(tmp_path, "ann")
    book.look()
    book.reload(Settings(port=1))
    assert book.current() is before


def test_door_that_was_closed_stays_closed_when_the_last_key_goes(tmp_path: Path) -> None:
    keep(tmp_path, "ann")
    book = PeopleBook(Settings(), tmp_path)
    (tmp_path / FILE_NAME).unlink()
    book.look()
    book.reload(Settings())
    assert not book.current().open
    assert book.current().names == ()


def test_first_key_closes_the_door(tmp_path: Path) -> None:
    book = PeopleBook(Settings(), tmp_path)
    keep(tmp_path, "ann")
    book.look()
    book.reload(Settings())
    assert not book.current().open


def test_check_that_objects_leaves_everything_as_it_was(tmp_path: Path) -> None:
    keep(tmp_path, "ann")
    book = PeopleBook(Settings(), tmp_path)
    before = book.current()
    book.add_check(lambda people: "that is more than there is" if sum(people.guarantees.values()) > 1000 else None)
    keep(tmp_path, "ann", guaranteed=2000)
    book.look()
    with pytest.raises(ConfigError, match="more than there is"):
        book.reload(Settings())
    assert book.current() is before
    keep(tmp_path, "ann", guaranteed=1000)
    book.look()
    book.reload(Settings())
    assert sum(book.current().guarantees.values()) == 1000


def test_bad_hash_in_new_settings_changes_nothing(tmp_path: Path) -> None:
    book = PeopleBook(Settings(), tmp_path)
    before = book.current()
    with pytest.raises(ConfigError, match="scrypt"):
        book.reload(Settings(keys=[KeySettings(name="ann", hash="plain")]))
    assert book.current() is before


@contextlib.asynccontextmanager
async def watched(book: PeopleBook, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[None]:
    """The book's own task, in a hurry."""
    monkeypatch.setattr(people_store, "LOOK_SECONDS", 0.005)
    task = asyncio.create_task(book.watch())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def wait_for(book: PeopleBook, *names: str) -> None:
    deadline = time.monotonic() + 60
    while book.current().names != names:
        assert time.monotonic() < deadline, book.current()
        await asyncio.sleep(0.005)


async def test_watch_follows_the_file_and_keeps_the_last_good_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    book = await asyncio.to_thread(PeopleBook, Settings(), tmp_path)
    async with watched(book, monkeypatch):
        await asyncio.to_thread(keep, tmp_path, "ann", "bob")
        await wait_for(book, "ann", "bob")
        await asyncio.to_thread((tmp_path / FILE_NAME).write_text, '{"version": 7}')
        deadline = time.monotonic() + 60
        while "people known before stay" not in caplog.text:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        assert book.current().names == ("ann", "bob")
        assert book.problem
        with pytest.raises(ConfigError, match=FILE_NAME):
            book.reload(Settings())
        await asyncio.to_thread(keep, tmp_path, "ann")
        await wait_for(book, "ann")
        assert not book.problem
    assert caplog.text.count("people known before stay") == 1


def test_file_that_others_may_read_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep(tmp_path, "ann")
    (tmp_path / FILE_NAME).chmod(0o644)
    PeopleBook(Settings(), tmp_path)
    assert "permissions should be 600" in caplog.text
