"""Accepted requests as whoever operates the daemon sees them. Reads entries and changes nothing."""

from daemon.core.requests import Priority
from daemon.core.stream_view import StreamState, StreamView
from daemon.host.entry import Entry


def view_of(entry: Entry, now: float) -> StreamView:
    """One entry at the moment `now` of the registry's clock."""
    generated = len(entry.transcript.delivered)
    spread = 0.0 if entry.first is None or entry.last is None else entry.last - entry.first
    return StreamView(
        name=entry.request.name,
        owner=entry.request.owner,
        background=entry.request.priority is Priority.BACKGROUND,
        state=_state(entry),
        engine=entry.engine,
        prompt=entry.request.prompt_tokens,
        cached=entry.cached,
        generated=generated,
        limit=entry.request.max_tokens,
        age=now - entry.accepted,
        waited=None if entry.opened is None else entry.opened - entry.accepted,
        rate=(generated - 1) / spread if spread > 0 else None,
    )


def _state(entry: Entry) -> StreamState:
    if entry.engine is not None:
        return StreamState.PREFILL if entry.first is None else StreamState.ANSWERING
    if entry.paused is not None and entry.attempt:
        return StreamState.INTERRUPTED
    return StreamState.SUSPENDED if entry.attempt else StreamState.WAITING
