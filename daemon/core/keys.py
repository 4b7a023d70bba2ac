"""The format of API keys and of their hashes in config.yaml. Pure: random bytes come in as arguments.

A key of our own making is `exl3d-TAG-SECRET`, where TAG is the beginning of the salt of its hash, so that a server with many
keys computes one hash for a request and not one for each person. Keys that people chose themselves work too. Hashes are
`scrypt$SALT$HASH`, both parts in hexadecimal.
"""

import hashlib
import hmac
from dataclasses import dataclass

from daemon.core.errors import ConfigError

SALT_BYTES = 16
SECRET_BYTES = 24
_TAG_BYTES = 4
_PREFIX = "exl3d"
_SCHEME = "scrypt"
_COST = 2**14
_BLOCK = 8
DIGEST_BYTES = 32
_MEMORY = 64 * 2**20


@dataclass(frozen=True, slots=True)
class KeyHash:
    """A parsed `scrypt$SALT$HASH`."""

    salt: bytes
    digest: bytes


def new_key(salt: bytes, secret: bytes) -> str:
    """A key from SALT_BYTES and SECRET_BYTES of randomness; `hash_key` with the same salt makes its hash."""
    return f"{_PREFIX}-{salt[:_TAG_BYTES].hex()}-{secret.hex()}"


def hash_key(key: str, salt: bytes) -> str:
    """The line for config.yaml. Takes tens of milliseconds on purpose."""
    return f"{_SCHEME}${salt.hex()}${_digest(key, salt).hex()}"


def parse_hash(text: str) -> KeyHash:
    """A hash from config.yaml. Raises ConfigError."""
    scheme, _, rest = text.partition("$")
    salt, _, digest = rest.partition("$")
    try:
        parsed = KeyHash(bytes.fromhex(salt), bytes.fromhex(digest))
    except ValueError as problem:
        raise ConfigError("a key's hash must be scrypt$SALT$HASH; `exl3ctl key new NAME` makes one", "keys") from problem
    if scheme != _SCHEME or not parsed.salt or len(parsed.digest) != DIGEST_BYTES:
        raise ConfigError("a key's hash must be scrypt$SALT$HASH; `exl3ctl key new NAME` makes one", "keys")
    return parsed


def may_match(key: str, stored: KeyHash) -> bool:
    """Whether it is worth computing the hash: false where the key's own tag says that it belongs to another salt."""
    match key.split("-"):
        case [prefix, tag, _] if prefix == _PREFIX and len(tag) == 2 * _TAG_BYTES:
            return tag == stored.salt[:_TAG_BYTES].hex()
        case _:  # of another make
            return True


def matches(key: str, stored: KeyHash) -> bool:
    """Whether `key` is the one that was hashed; compared in constant time. Takes tens of milliseconds."""
    return hmac.compare_digest(_digest(key, stored.salt), stored.digest)


def _digest(key: str, salt: bytes) -> bytes:
    secret = key.encode("utf-8", "surrogateescape")
    return hashlib.scrypt(secret, salt=salt, n=_COST, r=_BLOCK, p=1, maxmem=_MEMORY, dklen=DIGEST_BYTES)
