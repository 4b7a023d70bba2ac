"""Who asks. With keys in the configuration every request needs one; without keys everybody is the owner `local`.

Hashing a key is slow on purpose, so a verified key is remembered (its own hash, never the key) and hashing happens in one
thread of its own: somebody who tries keys slows down nobody but others who try keys.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from daemon.core.errors import Unauthorized
from daemon.core.keys import KeyHash, matches, may_match, parse_hash
from daemon.core.settings import KeySettings

LOCAL_OWNER = "local"
_MAX_REMEMBERED = 4096
_LONGEST_KEY = 512


class Authenticator:
    """Knows the keys. Raises ConfigError for a hash that is none."""

    def __init__(self, keys: Sequence[KeySettings], thread: ThreadPoolExecutor) -> None:
        """`thread` has one worker and does nothing else."""
        self._stored: tuple[tuple[str, KeyHash], ...] = tuple((key.name, parse_hash(key.hash)) for key in keys)
        self._thread = thread
        self._pepper = secrets.token_bytes(16)
        self._known: dict[bytes, str | None] = {}

    @property
    def open(self) -> bool:
        """Whether anybody may ask."""
        return not self._stored

    async def owner(self, request: web.Request) -> str:
        """Whose request this is. Raises Unauthorized."""
        if self.open:
            return LOCAL_OWNER
        key = presented_key(request)
        if key is None:
            raise Unauthorized
        digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), key=self._pepper, digest_size=32).digest()
        if digest not in self._known:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._find, key)
            self._remember(digest, found)
        name = self._known.get(digest)
        if name is None:
            raise Unauthorized("This API key is not known here.")
        return name

    def _find(self, key: str) -> str | None:
        if len(key) > _LONGEST_KEY:
            return None
        return next((name for name, stored in self._stored if may_match(key, stored) and matches(key, stored)), None)

    def _remember(self, digest: bytes, name: str | None) -> None:
        """Keep the newest answers, good keys before bad ones."""
        if len(self._known) >= _MAX_REMEMBERED:
            wrong = [known for known, owner in self._known.items() if owner is None]
            for known in wrong or list(self._known):
                del self._known[known]
        self._known[digest] = name


def presented_key(request: web.Request) -> str | None:
    """The key in `Authorization: Bearer` or `x-api-key`."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return request.headers.get("x-api-key") or None
