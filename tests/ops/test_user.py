"""`exl3ctl user`: the file it writes, what it prints and where, and what it refuses."""

import json
import os
import sqlite3
import stat
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from daemon.core.keys import matches, parse_hash
from daemon.core.people import StoredPerson
from daemon.core.people_file import FILE_NAME, decode, encode
from daemon.core.quota import ADD, CREATE, day_of
from daemon.core.quota import FILE_NAME as TOKENS_NAME
from daemon.core.settings import PersonSettings, Role
from ops import people_file
from ops.__main__ import main
from ops.errors import UserFailed
from ops.exit_codes import ExitCode
from ops.people_file import PeopleFile, find_people


@dataclass(frozen=True, slots=True)
class Done:
    """How a call ended."""

    code: int
    out: str
    err: str


class Tool:
    """`exl3ctl user` in an empty home, with a state directory of its own."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.state = home / "state"
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "STATE_DIRECTORY", "FORCE_COLOR", "GITHUB_ACTIONS"):
            monkeypatch.delenv(name, raising=False)
        root = Path(__file__).parents[2]
        for name, value in (("HOME", str(home)), ("NO_COLOR", "1"), ("COLUMNS", "80"), ("PYTHONPATH", str(root))):
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(home)

    def __call__(self, *arguments: str) -> Done:
        self._monkeypatch.setattr(sys, "argv", ["exl3ctl", "user", *arguments, "--state-dir", str(self.state)])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as raised:
            main()
        out, err = self._capsys.readouterr()
        return Done(int(raised.value.code or 0), out, err)

    def people(self) -> dict[str, StoredPerson]:
        """Who is in the file."""
        return {one.limits.name: one for one in decode((self.state / FILE_NAME).read_bytes())}


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(tmp_path, monkeypatch, capsys)


def test_added_person_has_a_key_that_is_printed_once_and_kept_as_its_hash(user: Tool) -> None:
    done = user("add", "ann", "--weight", "2", "--guaranteed-context", "16_384", "--max-queued", "0", "--role", "admin")
    assert done.code == ExitCode.OK
    key = done.out.strip()
    assert len(done.out.splitlines()) == 1
    ann = user.people()["ann"]
    assert ann.limits == PersonSettings(name="ann", role=Role.ADMIN, weight=2, guaranteed_context=16384, max_queued=0)
    assert matches(key, parse_hash(ann.hashes[0]))
    path = user.state / FILE_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key not in path.read_text()
    assert key not in done.err


def test_same_name_twice_is_refused_and_changes_nothing(user: Tool) -> None:
    user("add", "ann")
    before = (user.state / FILE_NAME).read_bytes()
    done = user("add", "ann", "--weight", "9")
    assert (done.code, done.out) == (ExitCode.FAILED, "")
    assert "user rotate" in done.err
    assert (user.state / FILE_NAME).read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add", "ann", "--weight", "0"), "--weight"),
        (("add", "ann", "--max-context", "many"), "--max-context"),
        (("add", "ann", "--weight", "default"), "--weight"),
        (("add", "ann", "--role", "king"), "--role"),
        (("add", ""), "NAME"),
        (("add", "a\nb"), "NAME"),
        (("limit", "ann"), "say what to change"),
    ],
)
def test_wrong_limit_is_named_and_writes_nothing(user: Tool, arguments: tuple[str, ...], words: str) -> None:
    done = user(*arguments)
    assert done.code == ExitCode.USAGE
    assert words in done.err
    assert not user.state.exists()


def test_limit_changes_what_is_named_only(user: Tool) -> None:
    user("add", "ann", "--weight", "2", "--tokens-per-day", "1000")
    hashes = user.people()["ann"].hashes
    assert user("limit", "ann", "--tokens-per-day", "default", "--max-concurrent", "3").code == ExitCode.OK
    ann = user.people()["ann"]
    assert (ann.limits.weight, ann.limits.tokens_per_day, ann.limits.max_concurrent) == (2, None, 3)
    assert ann.hashes == hashes


def test_rotated_key_takes_the_place_of_the_others_unless_they_are_kept(user: Tool) -> None:
    user("add", "ann", "--weight", "2")
    (first,) = user.people()["ann"].hashes
    second = user("rotate", "ann", "--keep-old").out.strip()
    assert len(user.people()["ann"].hashes) == 2
    third = json.loads(user("rotate", "ann", "--json").out)["key"]
    (kept,) = user.people()["ann"].hashes
    assert matches(third, parse_hash(kept))
    assert not matches(second, parse_hash(kept))
    assert kept != first
    assert user.people()["ann"].limits.weight == 2


def test_removal_asks_first_and_cannot_where_nobody_is(user: Tool) -> None:
    user("add", "ann")
    refused = user("remove", "ann")
    assert refused.code == ExitCode.FAILED
    assert "--yes" in refused.err
    done = user("remove", "ann", "--yes")
    assert done.code == ExitCode.OK
    assert "last key" in done.err
    assert user.people() == {}


def test_person_who_is_not_there_is_named_with_those_who_are(user: Tool) -> None:
    user("add", "ann")
    for arguments in (("limit", "zoe", "--weight", "2"), ("rotate", "zoe"), ("remove", "zoe", "--yes")):
        done = user(*arguments)
        assert done.code == ExitCode.FAILED
        assert "there is: ann" in done.err


def test_person_with_a_key_in_the_configuration_can_be_limited_here(user: Tool) -> None:
    Path("config.yaml").write_text(f"keys: [{{name: eve, hash: scrypt$00${'00' * 32}}}]\npeople: [{{name: bob, weight: 5}}]\n")
    assert user("limit", "eve", "--weight", "3").code == ExitCode.OK
    assert user.people()["eve"].hashes == ()
    assert "config.yaml has limits for bob" in user("add", "bob", "--weight", "9").err
    rows = {row["name"]: row for row in json.loads(user("list", "--json").out)}
    assert rows["eve"]["sources"] == ["config", "state"]
    assert rows["eve"]["limits"]["weight"] == 3
    assert rows["bob"]["limits"]["weight"] == 5, "the configuration counts"


def test_list_shows_everybody_with_their_tokens_of_today(user: Tool) -> None:
    assert "nobody yet" in user("list").err
    key = user("add", "ann", "--tokens-per-day", "1_500_000", "--max-concurrent", "2").out.strip()
    connection = sqlite3.connect(user.state / TOKENS_NAME)
    with connection:
        connection.execute(CREATE)
        today = day_of(time.time())
        connection.executemany(ADD, [("ann", today, 12_345), ("ann", today - 1, 10**6), ("local", today, 7)])
    connection.close()
    shown = user("list").out
    assert max(map(len, shown.splitlines())) <= 80
    for words in ("ann", key.split("-")[1], "12.3k of 1.5M", "2+any"):
        assert words in shown
    rows = {row["name"]: row["tokens_today"] for row in json.loads(user("list", "--json").out)}
    assert rows == {"ann": 12_345, "local": 7}


def test_damaged_file_is_said_and_never_overwritten(user: Tool) -> None:
    user.state.mkdir()
    path = user.state / FILE_NAME
    path.write_text("{")
    for arguments in (("add", "ann"), ("list",), ("remove", "ann", "--yes")):
        done = user(*arguments)
        assert done.code == ExitCode.FAILED
        assert str(path) in done.err
    assert path.read_text() == "{"


def test_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PeopleFile(tmp_path)
    with file.changing() as people:
        people.append(StoredPerson(PersonSettings(name="ann"), ()))
    before = file.path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(people_file.os, "fsync", full)
    with pytest.raises(UserFailed, match="No space left"), file.changing() as people:
        people.clear()
    assert file.path.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {FILE_NAME, ".people.lock"}


def test_two_who_change_it_at_once_both_succeed(tmp_path: Path) -> None:
    """Each reads what the other wrote, or waits."""
    started = threading.Barrier(4)

    def add(name: str) -> None:
        started.wait(10)
        for number in range(5):
            with PeopleFile(tmp_path).changing() as people:
                people.append(StoredPerson(PersonSettings(name=f"{name}{number}"), ()))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, "abcd"))
    assert len(PeopleFile(tmp_path).read()) == 20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write for somebody else")
def test_file_that_root_writes_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 12345, 54321)
    with PeopleFile(state).changing() as people:
        people.append(StoredPerson(PersonSettings(name="ann"), ()))
    found = (state / FILE_NAME).stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 54321, 0o600)


def test_state_directory_is_the_named_one_then_the_configurations_then_the_one_in_use(
    tmp_path: Path, user: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`user` gives an empty home."""
    service = tmp_path / "service"
    monkeypatch.setattr(people_file, "STATE", service)
    own = tmp_path / ".local" / "state" / "exl3d"
    assert find_people(None, user.state).state == user.state
    assert find_people(None, None).state == own
    service.mkdir()
    (service / FILE_NAME).write_bytes(encode([]))
    assert find_people(None, None).state == service
    monkeypatch.setattr(people_file, "CONFIG", tmp_path / "config.yaml")
    (service / FILE_NAME).unlink()
    (tmp_path / "config.yaml").write_text("port: 1\n")
    assert find_people(tmp_path / "config.yaml", None).state == service
    (tmp_path / "config.yaml").write_text(f"state_dir: {tmp_path / 'mine'}\n")
    assert find_people(tmp_path / "config.yaml", None).state == tmp_path / "mine"
