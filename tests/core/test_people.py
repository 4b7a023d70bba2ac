"""People: two sources, one value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.errors import ConfigError
from daemon.core.keys import SALT_BYTES
from daemon.core.people import LOCAL, StoredPerson, merge
from daemon.core.people_file import decode, encode, find, with_person, without_person
from daemon.core.settings import KeySettings, PersonSettings, Role, SharingSettings

SHARING = SharingSettings(max_concurrent=4, max_queued=8, tokens_per_day=1000, guaranteed_context=2048)


def line(salt: int) -> str:
    """A hash that is one in shape."""
    return f"scrypt${bytes([salt] * SALT_BYTES).hex()}${'00' * 32}"


def key(name: str, salt: int) -> KeySettings:
    return KeySettings(name=name, hash=line(salt))


def test_nobody_with_a_key_leaves_the_door_open_for_local() -> None:
    people = merge([], [], SHARING)
    assert people.open
    assert people.names == (LOCAL,)
    assert people.of(LOCAL).max_concurrent == 4
    assert sum(people.guarantees.values()) == 0


def test_person_without_limits_has_those_of_sharing() -> None:
    people = merge([key("ann", 1)], [], SHARING)
    ann = people.of("ann")
    assert (ann.max_concurrent, ann.max_queued, ann.tokens_per_day, ann.guaranteed_context) == (4, 8, 1000, 2048)
    assert (ann.role, ann.weight, ann.max_context) == (Role.USER, 1.0, None)
    assert not people.open


def test_limit_that_a_listed_person_does_not_name_is_that_of_sharing() -> None:
    people = merge([key("ann", 1)], [PersonSettings(name="ann", weight=3, max_queued=0, guaranteed_context=0)], SHARING)
    ann = people.of("ann")
    assert (ann.weight, ann.max_queued, ann.guaranteed_context) == (3, 0, 0)
    assert (ann.max_concurrent, ann.tokens_per_day, ann.max_context) == (4, 1000, None)


def test_name_in_both_sources_has_the_limits_of_the_configuration_and_all_keys() -> None:
    kept = StoredPerson(PersonSettings(name="ann", weight=9, max_context=512), (line(2), line(3)))
    people = merge([key("ann", 1)], [PersonSettings(name="ann", weight=2)], SHARING, [kept])
    assert people.of("ann").weight == 2
    assert people.of("ann").max_context is None
    assert [one.owner for one in people.keys] == ["ann"] * 3
    assert "config.yaml count" in people.notes[0]


def test_limits_of_the_store_count_where_the_configuration_has_only_a_key() -> None:
    kept = StoredPerson(PersonSettings(name="ann", weight=9), ())
    people = merge([key("ann", 1)], [], SHARING, [kept])
    assert people.of("ann").weight == 9
    assert people.notes == ()


def test_person_without_a_key_is_told_of_and_promised_nothing() -> None:
    listed = [PersonSettings(name="ann", guaranteed_context=4096), PersonSettings(name="bob", guaranteed_context=512)]
    people = merge([key("bob", 1)], listed, SHARING)
    assert people.guarantees == {"bob": 512}
    assert sum(people.guarantees.values()) == 512
    assert "exl3ctl user add ann" in people.notes[0]


def test_limits_of_local_need_no_key_while_the_door_is_open() -> None:
    people = merge([], [PersonSettings(name=LOCAL, max_context=512, guaranteed_context=256)], SHARING)
    assert people.of(LOCAL).max_context == 512
    assert sum(people.guarantees.values()) == 256
    assert people.notes == ()


def test_same_key_in_both_sources_is_one_key() -> None:
    people = merge([key("ann", 1)], [], SHARING, [StoredPerson(PersonSettings(name="ann"), (line(1),))])
    assert len(people.keys) == 1


def test_name_that_stands_twice_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="ann stands twice"):
        merge([], [PersonSettings(name="ann"), PersonSettings(name="ann")], SHARING)


PEOPLE = st.lists(
    st.builds(
        StoredPerson,
        st.builds(
            PersonSettings,
            name=st.text(min_size=1, max_size=8),
            role=st.sampled_from(Role),
            weight=st.floats(0.1, 1000),
            guaranteed_context=st.none() | st.integers(0, 2**40),
            max_context=st.none() | st.integers(256, 2**40),
            tokens_per_day=st.none() | st.integers(1, 2**40),
        ),
        st.lists(st.integers(0, 255).map(line), max_size=3).map(tuple),
    ),
    max_size=4,
    unique_by=lambda one: one.limits.name,
)


@given(PEOPLE)
def test_file_of_people_reads_back_as_what_was_written(people: list[StoredPerson]) -> None:
    assert decode(encode(people)) == tuple(people)


@given(PEOPLE, st.text(min_size=1, max_size=8))
def test_person_put_in_is_found_and_taken_out_is_not(people: list[StoredPerson], name: str) -> None:
    changed = StoredPerson(PersonSettings(name=name, weight=7), ())
    more = with_person(people, changed)
    assert find(more, name) == changed
    assert len(more) == len(people) + (find(people, name) is None)
    assert without_person(more, name) == tuple(one for one in people if one.limits.name != name)


GOOD = encode([StoredPerson(PersonSettings(name="ann"), (line(1),))])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        GOOD[:-20],
        GOOD.replace(b'"version": 1', b'"version": 2'),
        GOOD.replace(b'"weight"', b'"weigth"'),
        GOOD.replace(b'"keys"', b'"passwords": [], "keys"'),
        GOOD.replace(b"scrypt$", b"md5$"),
        GOOD.replace(b'"weight": 1.0', b'"weight": -1'),
        GOOD.replace(b"ann", b"\xff"),
        bytes(range(128, 192)),
    ],
    ids=["empty", "null", "list", "torn", "version", "unknown-limit", "unknown-field", "no-hash", "weight", "not-utf8", "bytes"],
)
def test_damaged_file_is_a_config_error(data: bytes) -> None:
    with pytest.raises(ConfigError):
        decode(data)


def test_file_that_names_somebody_twice_is_a_config_error() -> None:
    twice = encode([StoredPerson(PersonSettings(name="ann"), ())] * 2)
    with pytest.raises(ConfigError, match="twice"):
        decode(twice)
