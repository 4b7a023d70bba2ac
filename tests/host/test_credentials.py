"""Keys from systemd's credentials join those of the configuration."""

from pathlib import Path

import pytest

from daemon.core.errors import ConfigError
from daemon.core.keys import SALT_BYTES, SECRET_BYTES, hash_key, new_key
from daemon.core.settings import KeySettings
from daemon.host.credentials import read_keys
from daemon.host.people_store import PeopleBook
from daemon.host.settings_file import read_configuration

HASH = hash_key(new_key(b"s" * SALT_BYTES, b"k" * SECRET_BYTES), b"s" * SALT_BYTES)


def _given(directory: Path, text: str) -> dict[str, str]:
    (directory / "keys").write_text(text, encoding="utf-8")
    return {"CREDENTIALS_DIRECTORY": str(directory)}


def test_lines_are_names_and_hashes(tmp_path: Path) -> None:
    environment = _given(tmp_path, f"# family\n\nann {HASH}\n  Bob of the loft   {HASH}\r\n")
    assert read_keys(environment) == [KeySettings(name="ann", hash=HASH), KeySettings(name="Bob of the loft", hash=HASH)]


def test_without_the_credential_there_are_no_keys(tmp_path: Path) -> None:
    assert read_keys({}) == []
    assert read_keys({"CREDENTIALS_DIRECTORY": str(tmp_path)}) == []


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (f"ann {HASH}\nbob\n", "line 2", "NAME HASH"),
        (f"{'x' * 65} {HASH}\n", "line 1", "64"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, text: str, place: str, words: str) -> None:
    with pytest.raises(ConfigError) as problem:
        read_keys(_given(tmp_path, text))
    assert place in problem.value.where
    assert words in problem.value.message


def test_credential_opens_an_address_that_others_reach(tmp_path: Path) -> None:
    """The keys count like those of config.yaml, and come after them."""
    config = tmp_path / "config.yaml"
    config.write_text(f"host: 0.0.0.0\nkeys:\n- name: ann\n  hash: {HASH}\n")
    keys = read_configuration(config, (), _given(tmp_path, f"bob {HASH}\n")).settings.keys
    assert [key.name for key in keys] == ["ann", "bob"]
    config.write_text("host: 0.0.0.0\n")
    with pytest.raises(ConfigError, match="wants API keys"):
        PeopleBook(read_configuration(config, (), {}).settings, tmp_path)
    settings = read_configuration(config, (), _given(tmp_path, f"bob {HASH}\n")).settings
    assert PeopleBook(settings, tmp_path).current().names == ("bob",)
