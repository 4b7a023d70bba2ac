"""The registry of accepted requests: queue, submission, delivery, resumption. Implements `ports.Serving`.

The registry keeps of each request its prompt and every id delivered, so an engine is replaceable: when one dies, each request
it held is submitted to the next as prompt + delivered, and the reader sees a pause. Reports count only from the present
attempt and at the expected position. Each stream ends in exactly one Ended or Broken, put into its outbox by `_end` alone.
Everything runs on the event loop's thread; nothing here waits.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from daemon.core import admission
from daemon.core.errors import GenerationFailed, NotReady, Overloaded, RequestError, RequestTimeout, ShuttingDown
from daemon.core.events import REPETITION, Broken, Ended, Ending, Opened, Paused, ThoughtClosing, Usage
from daemon.core.ports import ModelCard
from daemon.core.requests import ValidRequest
from daemon.core.settings import ServerSettings
from daemon.core.wire import (
    Cancel,
    Failed,
    FailureClass,
    Finished,
    FinishReason,
    Hello,
    Pool,
    Prefilling,
    Started,
    Step,
    Suspend,
    Suspended,
    Tokens,
    TokenSpan,
    Waiting,
)
from daemon.host.detokenizer import Vocabulary
from daemon.host.entry import Entry
from daemon.host.link import CommandSink
from daemon.host.logs import RequestSummary
from daemon.host.outbox import Outbox
from daemon.host.prefixes import Prefixes
from daemon.host.transcript import Transcript
from daemon.host.workforce import Fall

_log = logging.getLogger("exl3d.streams")

LOADING_RETRY = 5.0
FAILED_RETRY = 60.0
"""Seconds a client is told to wait before it tries again."""


class _Door(Enum):
    """Whether requests are accepted. A restart in between does not close it: requests wait for the next engine."""

    LOADING = "loading"
    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters since the daemon started."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


class StreamRegistry:
    """See the module. `special` are the model's special ids; `on_end` hears of every request that ended."""

    def __init__(
        self,
        *,
        card: ModelCard,
        vocabulary: Vocabulary,
        special: frozenset[int],
        settings: ServerSettings,
        on_end: Callable[[RequestSummary], None],
        clock: Callable[[], float],
    ) -> None:
        self._card = card
        self._known = card
        self._vocabulary = vocabulary
        self._special = special
        self._settings = settings
        self._on_end = on_end
        self._clock = clock
        self._policy = admission.Policy(max_queued=settings.max_queued)
        self._admission = admission.Admission()
        self._entries: dict[int, Entry] = {}
        self._ids = itertools.count(1)
        self._sink: CommandSink | None = None
        self._door = _Door.LOADING
        self._why_failed = ""
        self._idle_callbacks: list[Callable[[], None]] = []
        self._mean_total = 0.0
        self.pool: Pool | None = None
        """The engine's room after its last step."""
        self.last_token: float | None = None
        """When a token last came."""
        self.totals = Totals()
        self.prefixes = Prefixes()
        """Whether the prefix cache does what it should."""

    # --- ports.Serving ---

    def card(self) -> ModelCard:
        """What is served now."""
        return self._card

    def open(self, request: ValidRequest) -> Entry:
        """Accept a request; see ports.Serving."""
        refusal = self._refusal()
        if refusal is not None:
            raise refusal
        now = self._clock()
        link_id = next(self._ids)
        transcript = Transcript(request, self._vocabulary, self._special)
        entry = Entry(self, link_id, request, transcript, Outbox(asyncio.get_running_loop()), now)
        if all(isinstance(span, TokenSpan) for span in request.spans):
            entry.start = request.prompt_tokens
        self._entries[link_id] = entry
        if not self._admit(admission.Arrived(link_id, request.priority)):
            del self._entries[link_id]
            raise Overloaded(
                f"{self._admission.queued} requests are waiting already (server.max_queued).",
                self._retry_after(),
                own_limit=False,
            )
        if request.deadline is not None and not entry.ended:
            wait = max(0.0, request.deadline - now)
            entry.deadline = asyncio.get_running_loop().call_later(wait, self._pass_deadline, entry)
        self.totals = replace(self.totals, requests=self.totals.requests + 1)
        if not entry.ended:
            entry.trace = self.prefixes.follow(request)
        return entry

    def _refusal(self) -> RequestError | None:
        match self._door:
            case _Door.OPEN:
                return None
            case _Door.LOADING:
                return NotReady("The model is still being loaded.", LOADING_RETRY)
            case _Door.FAILED:
                return NotReady(self._why_failed, FAILED_RETRY)
            case _Door.CLOSED:
                return ShuttingDown()

    def cancel(self, entry: Entry) -> None:
        """Drop a request and whatever its reader has not taken."""
        if not entry.ended:
            entry.outbox.drop()
            self._break(entry, RequestTimeout("The client went away."), outcome="cancelled")

    def suspend(self, entry: Entry) -> None:
        """Have a request set aside at its next page boundary. It waits its turn again and goes on where it was; its reader sees
        nothing but a pause in the text.
        """
        if entry.given and not entry.ended and self._sink is not None:
            self._sink.send(Suspend(entry.link_id))

    # --- figures ---

    @property
    def running(self) -> int:
        """Requests inside the engine."""
        return len(self._admission.given)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self._admission.queued

    def outstanding(self, engine: int) -> bool:
        """Whether this engine owes anything."""
        del engine
        return bool(self._admission.given)

    @property
    def empty(self) -> bool:
        """Whether no accepted request is left."""
        return not self._entries

    @property
    def accepting(self) -> bool:
        """Whether `open` takes requests."""
        return self._door is _Door.OPEN

    # --- the supervisor's calls ---

    def engine_up(self, engine: int, sink: CommandSink, hello: Hello) -> None:
        """Requests go to this engine; those that lost theirs go first."""
        self._sink = sink
        limits = hello.limits
        known = self._known
        room = limits.page * limits.pages
        self._card = replace(known, context=min(known.context, room) if room else known.context, vision=limits.vision)
        self.pool = Pool(limits.pages, 0, limits.slots, 0, 0)
        self.prefixes.engine_up(limits)
        if self._door is not _Door.CLOSED:
            self._door = _Door.OPEN
        self._admit(admission.EngineUp(max(1, min(limits.slots or limits.max_batch, limits.max_batch))))

    def engine_down(self, engine: int, why: str) -> None:
        """Everything accepted waits for the next engine, the shortest first."""
        self._sink = None
        self.pool = None
        held = sorted(
            (self._entries[link_id] for link_id in self._admission.given),
            key=lambda entry: entry.request.prompt_tokens + len(entry.transcript.delivered),
        )
        self._admit(admission.EngineDown(tuple(entry.link_id for entry in held)))
        now = self._clock()
        for entry in held:
            entry.given = False
        for entry in list(self._entries.values()):
            if self._complete_already(entry):
                continue
            entry.outbox.add(Paused(why))
            if entry.paused is None:
                entry.paused = now
        if self._entries:
            asyncio.get_running_loop().call_later(self._settings.resume_timeout, self._expire)

    def engine_fell(self, engine: int, fall: Fall) -> None:
        """It died while it served."""
        _log.info("engine %d fell with %d requests: %s", engine, len(fall.in_flight), fall.why)

    def engine_coming(self, engine: int) -> None:
        """An engine is being started. After a failure that means hope; otherwise nothing changes."""
        if self._door is _Door.FAILED:
            self._door = _Door.LOADING

    def give_up(self, engine: int, why: str) -> None:
        """No engine will come: end everything and refuse with these words from now on."""
        self._why_failed = why
        if self._door is not _Door.CLOSED:
            self._door = _Door.FAILED
        self.end_all(lambda: NotReady(why, FAILED_RETRY))

    def close(self) -> None:
        """Accept nothing any more; what was accepted goes on."""
        self._door = _Door.CLOSED

    def end_all(self, error: Callable[[], RequestError]) -> None:
        """End every accepted request with an error of its own."""
        for entry in list(self._entries.values()):
            self._break(entry, error())

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Call once no accepted request is left: at once if there is none, else whenever the last one ends."""
        self._idle_callbacks.append(callback)
        if not self._entries:
            callback()

    # --- reports ---

    def step(self, engine: int, step: Step) -> None:
        """Take in one turn of the engine loop."""
        now = self._clock()
        for event in step.events:
            entry = self._entries.get(event.id)
            if entry is None or event.attempt != entry.attempt or not entry.given:
                continue
            match event:
                case Tokens():
                    self._tokens(entry, event, now)
                case Started():
                    self._started(entry, event, now)
                case Finished():
                    self._finished(entry, event)
                case Failed():
                    self._break(entry, GenerationFailed(event.kind, event.detail), told=True)
                case Suspended():
                    entry.given = False
                    self._admit(admission.Returned(entry.link_id))
                case Prefilling() | Waiting():
                    pass
        pool = step.pool
        if (pool.pending > 0) != self._admission.pressed:
            self._admit(admission.Pressure(pool.pending))
        self.pool = pool

    def _tokens(self, entry: Entry, event: Tokens, now: float) -> None:
        transcript = entry.transcript
        ids = event.ids
        if entry.start is None:
            entry.start = event.start - len(transcript.delivered)
        gap = event.start - entry.start - len(transcript.delivered)
        if gap or not ids:
            if gap > 0:
                _log.error("engine skipped %d tokens of %s", gap, entry.request.name)
                self._break(entry, GenerationFailed(FailureClass.INTERNAL, f"{gap} tokens were lost on the way"))
            return
        self.last_token = entry.last = now
        if entry.first is None:
            entry.first = now
        entry.paused = None
        text = transcript.take(ids)
        outbox = entry.outbox
        outbox.add_tokens(text.text, ids, event.logprobs)
        if text.stop is not None:
            self._end(entry, Ended(Ending.STOP, entry.usage(), text.stop))
        elif transcript.looping:
            self._break_circle(entry)
        elif outbox.unread > self._settings.stall_buffer:
            self._break(entry, RequestTimeout("The client did not read its answer (server.stall_buffer)."), outcome="stalled")

    def _break_circle(self, entry: Entry) -> None:
        """What is said runs in circles: a thought is closed, once, by submitting the request again without a budget; an answer
        is ended.
        """
        if entry.transcript.give_up_thought():
            if self._sink is not None:
                self._sink.send(Cancel(entry.link_id))
            self._submit(entry)
            return
        closings = (ThoughtClosing.REPETITION,) if entry.transcript.gave_up else ()
        self._end(entry, Ended(Ending.STOP, entry.usage(), detail=REPETITION, closings=closings))

    def _started(self, entry: Entry, event: Started, now: float) -> None:
        entry.paused = None
        if entry.opened is not None:
            return
        entry.opened = now if event.t is None else max(entry.accepted, min(now, event.t))
        entry.cached = event.cached
        self.prefixes.judge(entry.request, entry.trace, event)
        self.totals = replace(self.totals, cached_tokens=self.totals.cached_tokens + event.cached)
        entry.outbox.add(Opened(event.cached, entry.opened - entry.accepted, entry.opened))

    def _finished(self, entry: Entry, event: Finished) -> None:
        match event.reason:
            case FinishReason.STOP:
                ended = self._stopped(entry)
            case FinishReason.LENGTH:
                ended = Ended(Ending.LENGTH, entry.usage())
            case FinishReason.CONSTRAINT:
                ended = Ended(Ending.STOP, entry.usage())
        self._end(entry, replace(ended, closings=_closings(entry, event)), told=True)

    @staticmethod
    def _stopped(entry: Entry) -> Ended:
        delivered = entry.transcript.delivered
        last = delivered[-1] if delivered and delivered[-1] in entry.request.stop_ids else None
        return Ended(Ending.STOP, entry.usage(), last)

    # --- giving ---

    def _admit(self, event: admission.Event) -> bool:
        """Let admission decide and carry its effects out. False: the request that arrived was refused."""
        self._admission, effects = admission.decide(self._admission, event, self._policy)
        for effect in effects:
            match effect:
                case admission.Give(link_id):
                    self._submit(self._entries[link_id])
                case admission.Refuse():
                    return False
        return True

    def _submit(self, entry: Entry) -> None:
        if self._complete_already(entry) or self._sink is None:
            return
        entry.given = True
        entry.attempt += 1
        self._sink.send(entry.transcript.submit(entry.link_id, entry.attempt))

    def _complete_already(self, entry: Entry) -> bool:
        """Whether the engine died between the last token and the word that it was the last; ends the entry then."""
        request, delivered = entry.request, entry.transcript.delivered
        if delivered and delivered[-1] in request.stop_ids and len(delivered) > request.min_tokens:
            self._end(entry, self._stopped(entry), told=True)
        elif len(delivered) >= request.max_tokens:
            self._end(entry, Ended(Ending.LENGTH, entry.usage()), told=True)
        return entry.ended

    # --- ending ---

    def _break(self, entry: Entry, error: RequestError, *, told: bool = False, outcome: str | None = None) -> None:
        self._end(entry, Broken(error, entry.usage()), told=told, outcome=outcome or type(error).__name__)

    def _end(self, entry: Entry, event: Ended | Broken, *, told: bool = False, outcome: str | None = None) -> None:
        """The one place where a stream ends. `told`: the engine knows already."""
        if entry.ended:
            return
        entry.ended = True
        del self._entries[entry.link_id]
        if entry.deadline is not None:
            entry.deadline.cancel()
        if entry.given and not told and self._sink is not None:
            self._sink.send(Cancel(entry.link_id))
        entry.given = False
        if isinstance(event, Ended):
            outcome = event.ending.value
            rest = "" if isinstance(event.stop, str) else entry.transcript.finish()
            if rest:
                entry.outbox.add_tokens(rest, (), ())
        entry.outbox.add(event)
        entry.outbox.close()
        self._count(entry, event.usage, outcome or "")
        if entry.first is not None:
            self.prefixes.remember(entry.request, entry.trace, entry.transcript.delivered)
        self._admit(admission.Left(entry.link_id))
        if not self._entries:
            for callback in self._idle_callbacks:
                callback()

    def _count(self, entry: Entry, usage: Usage, outcome: str) -> None:
        now = self._clock()
        total = now - entry.accepted
        self._mean_total = total if self._mean_total == 0 else 0.9 * self._mean_total + 0.1 * total
        self.totals = replace(
            self.totals,
            prompt_tokens=self.totals.prompt_tokens + (usage.prompt if entry.opened is not None else 0),
            generated_tokens=self.totals.generated_tokens + usage.completion,
        )
        spread = 0.0 if entry.first is None or entry.last is None else entry.last - entry.first
        self._on_end(
            RequestSummary(
                owner=entry.request.owner,
                name=entry.request.name,
                outcome=outcome,
                prompt=usage.prompt,
                cached=usage.cached,
                completion=usage.completion,
                queued=None if entry.opened is None else entry.opened - entry.accepted,
                first_token=None if entry.first is None else entry.first - entry.accepted,
                rate=(usage.completion - 1) / spread if spread > 0 else None,
                total=total,
                attempts=entry.attempt,
                request_id=entry.request.request_id,
            )
        )

    def _pass_deadline(self, entry: Entry) -> None:
        self._break(entry, RequestTimeout("The deadline of this request passed before the answer was complete."))

    def _expire(self) -> None:
        """End what has waited too long for an engine."""
        limit = self._settings.resume_timeout
        now = self._clock()
        for entry in list(self._entries.values()):
            if entry.paused is not None and now - entry.paused >= limit - 0.01:
                words = f"The engine died and no other could go on within {limit:.0f} s (server.resume_timeout)."
                self._break(entry, RequestTimeout(words))

    def _retry_after(self) -> float:
        """Seconds until the queue has probably moved on: the mean time of a request, shared by the slots."""
        slots = max(1, self._admission.slots)
        return min(60.0, max(1.0, self._mean_total * self._admission.queued / slots))


def _closings(entry: Entry, event: Finished) -> tuple[ThoughtClosing, ...]:
    """Why the engine closed thoughts; at a budget, perhaps because this file had taken it away."""
    at_budget = ThoughtClosing.REPETITION if entry.transcript.gave_up else ThoughtClosing.BUDGET
    at_stop = event.closed_thoughts - event.spent_budgets
    return (ThoughtClosing.STOP,) * at_stop + (at_budget,) * event.spent_budgets
