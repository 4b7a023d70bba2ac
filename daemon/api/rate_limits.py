"""Each person's account: tokens of today, requests underway, and the headers in which clients read both.

OpenAI's clients look for `x-ratelimit-…`, Anthropic's for `anthropic-ratelimit-…`. "Requests" are answers being made or
waiting now; "tokens" are those of the day, and left out where a person has no quota.
"""

import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from daemon.api.errors import Dialect
from daemon.api.in_force import InForce
from daemon.core.people import Person
from daemon.core.ports import Acquaintance, TokenLedger
from daemon.core.quota import Standing, day_of, refusal, seconds_left

_SMOOTHING = 0.2
"""Weight of the newest answer in the mean duration of a person's answers."""
_FIRST_GUESS = 1.0
"""Seconds an answer takes, before there was one."""


@dataclass(slots=True)
class _Account:
    """What is known of a person at this moment."""

    held: int = 0
    underway: int = 0
    mean_seconds: float = _FIRST_GUESS


@dataclass(slots=True)
class Bill:
    """What one request has used so far: set `tokens` before it is closed."""

    tokens: int = 0


class Accounts:
    """See the module. `now` is wall-clock time, for days; `clock` measures."""

    def __init__(
        self,
        acquaintance: Acquaintance,
        ledger: TokenLedger,
        in_force: InForce,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._acquaintance = acquaintance
        self._ledger = ledger
        self._in_force = in_force
        self._now = now
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    def standing(self, owner: str) -> Standing:
        """Where a person stands today."""
        now = self._now()
        account = self._accounts.get(owner)
        return Standing(
            limit=self.person(owner).tokens_per_day,
            spent=self._ledger.spent(owner, day_of(now)),
            held=0 if account is None else account.held,
            resets_in=seconds_left(now),
        )

    def person(self, owner: str) -> Person:
        """A person's limits, as they are now."""
        return self._acquaintance.current().of(owner)

    def check(self, owner: str, prompt: int = 0) -> None:
        """Raise QuotaExceeded where a prompt of that many tokens is too much for today."""
        found = refusal(self.standing(owner), prompt)
        if found is not None:
            raise found

    @contextmanager
    def underway(self, owner: str, streams: int, prompt: int) -> Generator[Bill]:
        """Keep a request's prompt in mind while it runs, and count its bill at the end, however that comes."""
        account = self._accounts.setdefault(owner, _Account())
        began, bill = self._clock(), Bill()
        account.held += prompt
        account.underway += streams
        try:
            yield bill
        finally:
            account.held -= prompt
            account.underway -= streams
            if bill.tokens:
                self._ledger.add(owner, day_of(self._now()), bill.tokens)
                account.mean_seconds += _SMOOTHING * (self._clock() - began - account.mean_seconds)

    def headers(self, owner: str, dialect: Dialect, told: float | None = None) -> Mapping[str, str]:
        """The rate limit headers of an answer to a person. `told`: seconds after which the answer says to come back."""
        account = self._accounts.get(owner) or _Account()
        limit = self._most_requests(self.person(owner))
        left = max(0, limit - account.underway)
        wait = 0.0 if left else told or account.mean_seconds / max(1, account.underway)
        standing = self.standing(owner)
        match dialect:
            case Dialect.OPENAI:
                return _openai(limit, left, wait, standing)
            case Dialect.ANTHROPIC:
                return _anthropic(limit, left, wait, standing, self._now())

    def _most_requests(self, person: Person) -> int:
        """How many a person may have at once, running and waiting; without a limit on running ones, as many as may wait."""
        waiting = self._in_force.settings.server.max_queued if person.max_queued is None else person.max_queued
        return (person.max_concurrent or 0) + waiting


def _openai(limit: int, left: int, wait: float, standing: Standing) -> dict[str, str]:
    found = {
        "x-ratelimit-limit-requests": str(limit),
        "x-ratelimit-remaining-requests": str(left),
        "x-ratelimit-reset-requests": duration(wait),
    }
    if standing.limit is not None:
        found |= {
            "x-ratelimit-limit-tokens": str(standing.limit),
            "x-ratelimit-remaining-tokens": str(standing.left),
            "x-ratelimit-reset-tokens": duration(standing.resets_in),
        }
    return found


def _anthropic(limit: int, left: int, wait: float, standing: Standing, now: float) -> dict[str, str]:
    found = {
        "anthropic-ratelimit-requests-limit": str(limit),
        "anthropic-ratelimit-requests-remaining": str(left),
        "anthropic-ratelimit-requests-reset": _instant(now + wait),
    }
    if standing.limit is not None:
        found |= {
            "anthropic-ratelimit-tokens-limit": str(standing.limit),
            "anthropic-ratelimit-tokens-remaining": str(standing.left),
            "anthropic-ratelimit-tokens-reset": _instant(now + standing.resets_in),
        }
    return found


EXPOSED = (
    "Retry-After, retry-after-ms, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests,"
    " x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, anthropic-ratelimit-requests-limit,"
    " anthropic-ratelimit-requests-remaining, anthropic-ratelimit-requests-reset, anthropic-ratelimit-tokens-limit,"
    " anthropic-ratelimit-tokens-remaining, anthropic-ratelimit-tokens-reset"
)
"""Their names, for browsers that call from elsewhere."""


def duration(seconds: float) -> str:
    """A duration as OpenAI writes it: `17ms`, `1s`, `6m0s`, `13h2m5s`."""
    if 0 < seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    hours, rest = divmod(math.ceil(seconds), 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{left}s"
    return f"{minutes}m{left}s" if minutes else f"{left}s"


def _instant(seconds: float) -> str:
    """A moment in RFC 3339, to the next second: whoever waits that long has waited long enough. A sum of times that means a
    full second may be a rounding error above it.
    """
    return datetime.fromtimestamp(math.ceil(round(seconds, 3)), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
