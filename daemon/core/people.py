"""People: whose keys are accepted, and what share and limits each person has. Pure: two sources are merged into one value.

1. config.yaml has `keys` and `people`; `exl3ctl user` keeps others in the state directory (`core/people_file.py`). 2. Keys add
up: every key of a name belongs to the same person. 3. Where a name has limits in both, those of config.yaml count, and a note
says so. 4. A limit that nobody named is that of `sharing`. 5. Without any key everybody is one person, `local`; whoever
holds the value decides whether that is permitted (`People.open`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from daemon.core.errors import ConfigError
from daemon.core.keys import KeyHash, parse_hash
from daemon.core.settings import KeySettings, PersonSettings, Role, SharingSettings

LOCAL = "local"
"""Everybody, where no keys are used."""


@dataclass(frozen=True, slots=True)
class Person:
    """What one person may do and is owed. Tokens and counts; None: no limit of their own."""

    name: str
    role: Role = Role.USER
    weight: float = 1.0
    guaranteed_context: int = 0
    max_context: int | None = None
    max_concurrent: int | None = None
    max_queued: int | None = None
    tokens_per_day: int | None = None


@dataclass(frozen=True, slots=True)
class AcceptedKey:
    """A key of a person, as its hash."""

    owner: str
    hash: KeyHash


@dataclass(frozen=True, slots=True)
class StoredPerson:
    """A person of the state directory: their limits, and the hashes of their keys."""

    limits: PersonSettings
    hashes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class People:
    """Everybody who may ask. Made by `merge`; replaced as a whole when something changes."""

    sharing: SharingSettings
    keys: tuple[AcceptedKey, ...]
    listed: Mapping[str, Person]
    """People with limits of their own, by name."""
    notes: tuple[str, ...] = ()
    """What whoever wrote the sources should know, one sentence each."""
    open: bool = True
    """Whether anybody may ask, as `local`: only while there is no key, and never again once there was one."""

    def of(self, owner: str) -> Person:
        """The person of a name, also where they stand nowhere."""
        known = self.listed.get(owner)
        return person_of_sharing(owner, self.sharing) if known is None else known

    @property
    def names(self) -> tuple[str, ...]:
        """Everybody who can ask: who has a key, in the order of their first one, or `local` where the door is open."""
        return (LOCAL,) if self.open else tuple(dict.fromkeys(key.owner for key in self.keys))

    @property
    def guarantees(self) -> Mapping[str, int]:
        """Guaranteed tokens by name, of everybody who can ask and has a guarantee."""
        found = {name: self.of(name).guaranteed_context for name in self.names}
        return {name: tokens for name, tokens in found.items() if tokens}


def person_of_sharing(name: str, sharing: SharingSettings) -> Person:
    """Somebody without limits of their own. A guarantee goes with a key: `local` is everybody at once and needs none."""
    return Person(
        name=name,
        guaranteed_context=0 if name == LOCAL else sharing.guaranteed_context,
        max_concurrent=sharing.max_concurrent,
        max_queued=sharing.max_queued,
        tokens_per_day=sharing.tokens_per_day,
    )


def person_of(limits: PersonSettings, sharing: SharingSettings) -> Person:
    """Somebody with limits of their own: where they name none, that of `sharing` counts."""
    named = {field: value for field, value in msgspec.structs.asdict(limits).items() if value is not None}
    return replace(person_of_sharing(limits.name, sharing), **named)


def merge(
    keys: Sequence[KeySettings], people: Sequence[PersonSettings], sharing: SharingSettings, stored: Sequence[StoredPerson] = ()
) -> People:
    """The people of config.yaml (`keys`, `people`, `sharing`) and of the state directory (`stored`).

    Raises ConfigError for a hash that is none and for a name that stands twice in `people`.
    """
    configured: dict[str, Person] = {}
    for one in people:
        if one.name in configured:
            raise ConfigError(f"{one.name} stands twice; one entry a name", "people")
        configured[one.name] = person_of(one, sharing)
    kept = {one.limits.name: person_of(one.limits, sharing) for one in stored}
    accepted = [AcceptedKey(key.name, parse_hash(key.hash)) for key in keys]
    accepted += [AcceptedKey(one.limits.name, parse_hash(text)) for one in stored for text in one.hashes]
    unique = tuple(dict.fromkeys(accepted))
    return People(
        sharing=sharing,
        keys=unique,
        listed=MappingProxyType({**kept, **configured}),
        notes=tuple(_notes(configured, kept, unique)),
        open=not unique,
    )


def _notes(configured: Mapping[str, Person], kept: Mapping[str, Person], keys: Sequence[AcceptedKey]) -> Iterator[str]:
    for name in sorted(kept.keys() & configured.keys()):
        yield f"{name} has limits in config.yaml and in the state directory: those of config.yaml count, and all keys are theirs"
    owners = {key.owner for key in keys}
    for name in configured:
        if name not in owners and not (name == LOCAL and not owners):
            yield f"{name} stands in `people` and has no key: `exl3ctl user add {name}` makes one"
