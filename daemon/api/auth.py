"""Who asks. With keys every request needs one; while there are none, everybody is the owner `local`.

Hashing a key is slow on purpose, so a verified key is remembered (its own hash, never the key) and hashing happens in one
thread of its own: somebody who tries keys slows down nobody but others who try keys. What is remembered holds only as long as the
key is accepted, so a revoked key is refused with the next request.

A refusal takes the same time whatever was wrong: every key costs all the hashes that its form calls for, one at least, and the
answer leaves at the next multiple of REFUSAL_SECONDS after the request came, also where no key was given at all.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from daemon.core.errors import Unauthorized
from daemon.core.keys import DIGEST_BYTES, SALT_BYTES, KeyHash, matches, may_match
from daemon.core.people import LOCAL, AcceptedKey
from daemon.core.ports import Acquaintance

REFUSAL_SECONDS = 0.1
"""A refusal leaves at a multiple of this."""
_MAX_REMEMBERED = 4096
_LONGEST_KEY = 512


class Authenticator:
    """Knows whose keys are accepted."""

    def __init__(self, acquaintance: Acquaintance, thread: ThreadPoolExecutor, refusal_seconds: float = REFUSAL_SECONDS) -> None:
        """`thread` has one worker and does nothing else."""
        self._acquaintance = acquaintance
        self._thread = thread
        self._refusal_seconds = refusal_seconds
        self._pepper = secrets.token_bytes(16)
        self._decoy = KeyHash(secrets.token_bytes(SALT_BYTES), bytes(DIGEST_BYTES))
        self._accepted: tuple[AcceptedKey, ...] = ()
        self._known: dict[bytes, AcceptedKey | None] = {}

    async def owner(self, request: web.Request) -> str:
        """Whose request this is. Raises Unauthorized."""
        if self._acquaintance.current().open:
            return LOCAL
        loop = asyncio.get_running_loop()
        began = loop.time()
        key = presented_key(request)
        found = None if key is None else await self._find(key)
        if found is not None:
            return found.owner
        pace = self._refusal_seconds
        await asyncio.sleep(pace - (loop.time() - began) % pace)
        raise Unauthorized if key is None else Unauthorized("This API key is not known here.")

    async def _find(self, key: str) -> AcceptedKey | None:
        digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), key=self._pepper, digest_size=32).digest()
        while True:
            accepted = self._now_accepted()
            if digest in self._known:
                return self._known[digest]
            found = await asyncio.get_running_loop().run_in_executor(self._thread, _search, key, accepted, self._decoy)
            if accepted is self._now_accepted():
                self._remember(digest, found)

    def _now_accepted(self) -> tuple[AcceptedKey, ...]:
        """The keys of this moment. What was remembered about keys that are none of them any more is forgotten."""
        accepted = self._acquaintance.current().keys
        if accepted is not self._accepted:
            self._accepted = accepted
            still = frozenset(accepted)
            self._known = {digest: found for digest, found in self._known.items() if found in still}
        return accepted

    def _remember(self, digest: bytes, found: AcceptedKey | None) -> None:
        """Keep the newest answers, good keys before bad ones."""
        if len(self._known) >= _MAX_REMEMBERED:
            wrong = [known for known, key in self._known.items() if key is None]
            for known in wrong or list(self._known):
                del self._known[known]
        self._known[digest] = found


def _search(key: str, accepted: Sequence[AcceptedKey], decoy: KeyHash) -> AcceptedKey | None:
    """The accepted key that this is. Hashes for every candidate, and for the decoy where there is none."""
    if len(key) > _LONGEST_KEY:
        return None
    candidates = [one for one in accepted if may_match(key, one.hash)]
    if not candidates:
        matches(key, decoy)
    found = [one for one in candidates if matches(key, one.hash)]
    return found[0] if found else None


def presented_key(request: web.Request) -> str | None:
    """The key in `Authorization: Bearer` or `x-api-key`."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return request.headers.get("x-api-key") or None
