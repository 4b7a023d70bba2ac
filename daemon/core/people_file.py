"""people.json of the state directory: what `exl3ctl user` writes and the daemon reads. Pure: bytes in, values out, and back.

The file holds salted hashes and no keys. Unknown fields are refused, so that a limit which this version does not know is never
ignored silently.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from daemon.core.errors import ConfigError
from daemon.core.keys import parse_hash
from daemon.core.people import StoredPerson
from daemon.core.settings import PersonSettings

FILE_NAME = "people.json"
"""In the state directory."""
VERSION = 1
MODE = 0o600
"""The file's permissions: hashes are nobody else's business."""


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One person."""

    person: PersonSettings
    keys: list[str]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    version: Annotated[int, Meta(ge=VERSION, le=VERSION)]
    people: list[_Entry]


def decode(data: bytes) -> tuple[StoredPerson, ...]:
    """The people of a file. Raises ConfigError, without the file's place, for anything that `encode` would not have written."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.MsgspecError as problem:
        raise ConfigError(f"is damaged or of another version: {problem}") from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(f"is damaged: {problem}") from problem
    names = [entry.person.name for entry in file.people]
    if len(set(names)) < len(names):
        raise ConfigError("names somebody twice")
    for entry in file.people:
        for text in entry.keys:
            parse_hash(text)
    return tuple(StoredPerson(entry.person, tuple(entry.keys)) for entry in file.people)


def encode(people: Sequence[StoredPerson]) -> bytes:
    """The file of these people, with one line a field, as somebody might want to read it."""
    file = _File(VERSION, [_Entry(one.limits, list(one.hashes)) for one in people])
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def with_person(people: Sequence[StoredPerson], changed: StoredPerson) -> tuple[StoredPerson, ...]:
    """These people with one more, or with one of them changed."""
    name = changed.limits.name
    if all(one.limits.name != name for one in people):
        return (*people, changed)
    return tuple(changed if one.limits.name == name else one for one in people)


def without_person(people: Sequence[StoredPerson], name: str) -> tuple[StoredPerson, ...]:
    """These people without one."""
    return tuple(one for one in people if one.limits.name != name)


def find(people: Sequence[StoredPerson], name: str) -> StoredPerson | None:
    """The person of a name."""
    return next((one for one in people if one.limits.name == name), None)
