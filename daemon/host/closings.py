"""How an answer ended, told from what its engine said and what was delivered. Values only; the registry acts."""

from daemon.core.events import REPETITION, Ended, Ending, ThoughtClosing
from daemon.core.wire import Finished, FinishReason
from daemon.host.entry import Entry


def finished(entry: Entry, event: Finished) -> Ended:
    """The end of an answer that its engine declares finished."""
    match event.reason:
        case FinishReason.STOP:
            return _stopped(entry, _closings(entry, event))
        case FinishReason.LENGTH:
            return Ended(Ending.LENGTH, entry.usage(), closings=_closings(entry, event))
        case FinishReason.CONSTRAINT:
            return Ended(Ending.STOP, entry.usage(), closings=_closings(entry, event))


def complete(entry: Entry) -> Ended | None:
    """The end of an answer whose last token came, but not the word that it was the last. None: more is to come."""
    request, delivered = entry.request, entry.transcript.delivered
    if delivered and delivered[-1] in request.stop_ids and len(delivered) > request.min_tokens:
        return _stopped(entry, ())
    if len(delivered) >= request.max_tokens:
        return Ended(Ending.LENGTH, entry.usage())
    return None


def circling(entry: Entry) -> Ended:
    """The end of an answer that runs in circles."""
    closings = (ThoughtClosing.REPETITION,) if entry.transcript.gave_up else ()
    return Ended(Ending.STOP, entry.usage(), detail=REPETITION, closings=closings)


def _stopped(entry: Entry, closings: tuple[ThoughtClosing, ...]) -> Ended:
    delivered = entry.transcript.delivered
    last = delivered[-1] if delivered and delivered[-1] in entry.request.stop_ids else None
    return Ended(Ending.STOP, entry.usage(), last, closings=closings)


def _closings(entry: Entry, event: Finished) -> tuple[ThoughtClosing, ...]:
    """Why the engine closed thoughts; at a budget, perhaps because the registry had taken it away."""
    at_budget = ThoughtClosing.REPETITION if entry.transcript.gave_up else ThoughtClosing.BUDGET
    at_stop = event.closed_thoughts - event.spent_budgets
    return (ThoughtClosing.STOP,) * at_stop + (at_budget,) * event.spent_budgets
