"""What is counted of requests: totals since the daemon started, and the summary of each that has ended. Values only."""

import msgspec

from daemon.core.events import Usage
from daemon.host.entry import Entry
from daemon.host.logs import RequestSummary


class Totals(msgspec.Struct, frozen=True):
    """Counters since the daemon started."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    interruptions: int = 0
    """Times a request lost its engine to a death."""
    suspensions: int = 0
    """Times a request was set aside for others."""
    reprefilled_tokens: int = 0
    """Tokens prefilled a second time after either."""
    convictions: int = 0
    """Requests refused for having killed an engine while alone."""
    accepted_drafts: int = 0
    """Draft tokens that the model accepted (speculation), of answers whose end an engine told."""
    rejected_drafts: int = 0


def summary(entry: Entry, usage: Usage, outcome: str, now: float) -> RequestSummary:
    """What is remembered of a request that ends now."""
    spread = 0.0 if entry.first is None or entry.last is None else entry.last - entry.first
    return RequestSummary(
        owner=entry.request.owner,
        name=entry.request.name,
        outcome=outcome,
        prompt=usage.prompt,
        cached=usage.cached,
        completion=usage.completion,
        queued=None if entry.opened is None else entry.opened - entry.accepted,
        first_token=None if entry.first is None else entry.first - entry.accepted,
        rate=(usage.completion - 1) / spread if spread > 0 else None,
        total=now - entry.accepted,
        attempts=entry.attempt,
        request_id=entry.request.request_id,
    )
