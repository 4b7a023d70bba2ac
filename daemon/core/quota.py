"""Tokens a day: how much a person has used, what is left, and when the count begins anew. Pure; wall-clock time is an argument.

What is counted: every token of a prompt that was given to an engine, whether it was found in the prefix cache or not, and every
generated token. A day is a day of UTC. A request is let in while its prompt fits into what is left; an answer that has begun is
finished, so that a quota can be exceeded by the answers that were running when it ran out, and never by a prompt.
"""

from dataclasses import dataclass

from daemon.core.errors import QuotaExceeded

DAY_SECONDS = 86_400
FILE_NAME = "tokens.db"
"""SQLite, in the state directory: written by the daemon, read by `exl3ctl user list`."""
KEEP_DAYS = 400
"""How long the count of a day is kept."""
CREATE = (
    "CREATE TABLE IF NOT EXISTS spent (owner TEXT NOT NULL, day INTEGER NOT NULL, tokens INTEGER NOT NULL,"
    " PRIMARY KEY (owner, day)) WITHOUT ROWID"
)
ADD = (
    "INSERT INTO spent (owner, day, tokens) VALUES (?, ?, ?)"
    " ON CONFLICT (owner, day) DO UPDATE SET tokens = tokens + excluded.tokens"
)
SINCE = "SELECT owner, day, tokens FROM spent WHERE day >= ?"
FORGET = "DELETE FROM spent WHERE day < ?"


def day_of(now: float) -> int:
    """The number of the day of `now`, seconds since the epoch."""
    return int(now // DAY_SECONDS)


def seconds_left(now: float) -> float:
    """Seconds until the next day begins."""
    return DAY_SECONDS - now % DAY_SECONDS


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a person stands today."""

    limit: int | None
    """Tokens a day; None: no quota."""
    spent: int
    held: int
    """Prompts of requests that are underway and not counted yet."""
    resets_in: float
    """Seconds until the count begins anew."""

    @property
    def left(self) -> int | None:
        """Tokens that may still be used; None: no quota."""
        return None if self.limit is None else max(0, self.limit - self.spent - self.held)


def refusal(standing: Standing, prompt: int) -> QuotaExceeded | None:
    """Why a request with a prompt of that many tokens cannot be let in; None where it can."""
    limit, left = standing.limit, standing.left
    if limit is None or left is None or left >= max(1, prompt):
        return None
    return QuotaExceeded(limit=limit, left=left, prompt=prompt, resets_in=standing.resets_in)
