"""Keys that systemd hands over: `LoadCredential=keys:FILE` in the unit puts them where only this service can read them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from daemon.core.errors import ConfigError
from daemon.core.settings import KeySettings

DIRECTORY = "CREDENTIALS_DIRECTORY"
NAME = "keys"


def read_keys(environment: Mapping[str, str]) -> list[KeySettings]:
    """Keys of the credential `keys`, none where there is no such credential: `NAME HASH` lines, `#` begins a comment line.
    A name may hold spaces, a hash does not. Raises ConfigError.
    """
    directory = environment.get(DIRECTORY)
    if not directory:
        return []
    path = Path(directory) / NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot be read: {problem}", str(path)) from problem
    return list(_keys(text, path))


def _keys(text: str, path: Path) -> Iterator[KeySettings]:
    for number, line in enumerate(text.splitlines(), start=1):
        written = line.strip()
        if not written or written.startswith("#"):
            continue
        where = f"{path}, line {number}"
        *name, hashed = written.split()
        if not name:
            raise ConfigError("wants `NAME HASH`, as `exl3ctl key new NAME --json` prints them", where)
        try:
            yield msgspec.convert({"name": " ".join(name), "hash": hashed}, KeySettings)
        except msgspec.ValidationError as problem:
            raise ConfigError(str(problem), where) from problem
