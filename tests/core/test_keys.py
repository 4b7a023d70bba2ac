"""API keys and their hashes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.core.errors import ConfigError
from daemon.core.keys import SALT_BYTES, SECRET_BYTES, hash_key, matches, may_match, new_key, parse_hash

SALT = bytes(range(SALT_BYTES))
OTHER = bytes(range(1, SALT_BYTES + 1))


def test_key_matches_its_own_hash_only() -> None:
    key = new_key(SALT, bytes(SECRET_BYTES))
    stored = parse_hash(hash_key(key, SALT))
    assert matches(key, stored)
    assert not matches(key + "0", stored)
    assert not matches(key, parse_hash(hash_key(key + "0", SALT)))


def test_tag_of_a_key_spares_the_hashing_of_others() -> None:
    key = new_key(SALT, bytes(SECRET_BYTES))
    assert may_match(key, parse_hash(hash_key(key, SALT)))
    assert not may_match(key, parse_hash(hash_key(key, OTHER)))


@settings(max_examples=6, deadline=None)
@given(st.text(max_size=40))
def test_any_text_can_be_a_key(key: str) -> None:
    stored = parse_hash(hash_key(key, SALT))
    assert matches(key, stored) or not may_match(key, stored)


@pytest.mark.parametrize(
    "text",
    ["", "scrypt", "scrypt$", "scrypt$00$", "scrypt$00$zz", "scrypt$$" + "00" * 32, "scrypt$00$00$00", "md5$00$" + "00" * 32],
)
def test_text_that_is_no_hash_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_hash(text)
