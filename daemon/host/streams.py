"""The registry of accepted requests: delivery, endings, resumption. Implements `ports.Serving`.

The registry keeps of each request its prompt and every id delivered, so an engine is replaceable: when one dies, each request
it held is submitted to the next as prompt + delivered, and the reader sees a pause. Reports count only from the engine that holds
the request, from the present attempt and at the expected position. Each stream ends in exactly one Ended or Broken, put into its
outbox by `_end` alone. Which request goes to which engine, and when, is `host/giving.py`'s affair. Everything runs on the event
loop's thread; nothing here waits.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import replace

from msgspec.structs import replace as changed

from daemon.core.admission_values import Policy as SharingPolicy
from daemon.core.admission_views import SharingFigures
from daemon.core.errors import GenerationFailed, NotReady, PoisonousRequest, RequestError, RequestTimeout
from daemon.core.events import Broken, Ended, Ending, Opened, Paused, Piece, Usage
from daemon.core.poison import Policy as PoisonPolicy
from daemon.core.ports import ModelCard
from daemon.core.requests import ValidRequest
from daemon.core.settings import ServerSettings, Settings
from daemon.core.stream_view import StreamView
from daemon.core.wire import (
    Failed,
    FailureClass,
    Finished,
    Hello,
    Limits,
    Pool,
    Prefilling,
    Started,
    Step,
    Suspended,
    Tokens,
    Waiting,
)
from daemon.host.accounts import Totals, summary
from daemon.host.closings import circling, complete, finished
from daemon.host.conviction_store import ConvictionStore
from daemon.host.detokenizer import Vocabulary
from daemon.host.door import FAILED_RETRY, Door
from daemon.host.entry import Entry
from daemon.host.giving import Giving
from daemon.host.link import CommandSink
from daemon.host.logs import RequestSummary
from daemon.host.outbox import Outbox, Rounds
from daemon.host.prefixes import Prefixes
from daemon.host.recovery import Recovery, RecoveryFigures
from daemon.host.stream_views import view_of
from daemon.host.suspicion import Sentences, Suspicion
from daemon.host.transcript import Transcript
from daemon.host.workforce import Fall

_log = logging.getLogger("exl3d.streams")


class StreamRegistry:
    """See the module. `special` are the model's special ids; `on_end` hears of every request that ended; so many `engines` are
    expected.
    """

    def __init__(
        self,
        *,
        card: ModelCard,
        vocabulary: Vocabulary,
        special: frozenset[int],
        settings: ServerSettings,
        on_end: Callable[[RequestSummary], None],
        clock: Callable[[], float],
        engines: int = 1,
        convictions: ConvictionStore | None = None,
        poison: PoisonPolicy | None = None,
        sharing: SharingPolicy | None = None,
        pace: float | None = None,
    ) -> None:
        self._card = card
        self._known = card
        self._vocabulary = vocabulary
        self._special = special
        self._settings = settings
        self._on_end = on_end
        self._clock = clock
        self._giving = Giving(sharing or SharingPolicy(max_queued=settings.max_queued), clock, pace)
        self._door = Door(engines)
        policy = poison or PoisonPolicy()
        self._suspicion = Suspicion(
            convictions or ConvictionStore(None, policy, clock),
            policy,
            Sentences(self._giving.set_apart, self._giving.acquit, self._convict),
        )
        self._lost: dict[int, list[Entry]] = {}
        """What engines held that went, in the order in which it was given; until it is known how they went."""
        self._recoveries: dict[int, Recovery] = {}
        """The last death in each engine's place."""
        self._limits: dict[int, Limits] = {}
        """What each engine can hold, by its last word."""
        self._entries: dict[int, Entry] = {}
        self._rounds = Rounds()
        self._ids = itertools.count(1)
        self._idle_callbacks: list[Callable[[], None]] = []
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
        refusal = self._door.refusal()
        if refusal is not None:
            raise refusal
        self._suspicion.admit(request)
        now = self._clock()
        transcript = Transcript(request, self._vocabulary, self._special)
        entry = Entry(self, next(self._ids), request, transcript, Outbox(self._rounds), now)
        self._entries[entry.link_id] = entry
        entry.trace = self.prefixes.follow(request)
        try:
            self._giving.arrive(entry)
        except RequestError:
            del self._entries[entry.link_id]
            raise
        if request.deadline is not None:
            wait = max(0.0, request.deadline - now)
            entry.deadline = asyncio.get_running_loop().call_later(wait, self._pass_deadline, entry)
        self.totals = changed(self.totals, requests=self.totals.requests + 1)
        return entry

    def cancel(self, entry: Entry) -> None:
        """Drop a request and whatever its reader has not taken."""
        if not entry.ended:
            entry.outbox.drop()
            self._break(entry, RequestTimeout("The client went away."), outcome="cancelled")

    def suspend(self, entry: Entry) -> None:
        """Have a request set aside at its next page boundary. It waits its turn again and goes on where it was; its reader sees
        nothing but a pause in the text.
        """
        if not entry.ended:
            self._giving.suspend(entry)

    # --- figures ---

    @property
    def running(self) -> int:
        """Requests inside engines."""
        return self._giving.running

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self._giving.queued

    def outstanding(self, engine: int) -> bool:
        """Whether this engine owes anything."""
        return self._giving.busy(engine)

    def pool(self, engine: int) -> Pool | None:
        """An engine's room after its last step; None while there is none."""
        return self._giving.pool(engine)

    def sharing(self) -> SharingFigures:
        """Who has what of the engines, who waits for what, and what was done about it."""
        return self._giving.figures()

    def guarantee_problem(self, policy: SharingPolicy | None = None) -> str | None:
        """Why what is promised to people, or would be by another policy, cannot be kept by the engines there are or will be: one
        that never said what it holds is taken for as large as the first that did.
        """
        known = list(self._limits.values())
        known += known[:1] * (self._door.expected - len(known))
        return self._giving.guarantee_problem(policy, known)

    def recovery(self, engine: int) -> RecoveryFigures:
        """What the last death in this engine's place cost so far; zeros where there was none."""
        recovery = self._recoveries.get(engine)
        return RecoveryFigures() if recovery is None else recovery.figures()

    def views(self) -> tuple[StreamView, ...]:
        """Every accepted request, the oldest first."""
        now = self._clock()
        return tuple(view_of(entry, now) for entry in self._entries.values())

    @property
    def suspects(self) -> tuple[int, ...]:
        """Requests that may have killed an engine and must run alone, by link id, in their order."""
        return self._suspicion.suspects

    @property
    def empty(self) -> bool:
        """Whether no accepted request is left."""
        return not self._entries

    @property
    def accepting(self) -> bool:
        """Whether `open` takes requests."""
        return self._door.refusal() is None

    @property
    def shut(self) -> str | None:
        """Why people's wish keeps new requests out, in words; None where it does not."""
        return self._door.shut

    # --- what people ask for ---

    def reload(self, settings: Settings) -> None:
        """Take over what may change while the daemon runs; see core.reloading."""
        self._settings = settings.server
        self._giving.reload(settings)

    def share(self, policy: SharingPolicy) -> None:
        """Take over who may have what of the engines."""
        self._giving.share(policy)

    def pause_intake(self, why: str) -> None:
        """Refuse new requests with these words until `resume_intake`; what was accepted goes on."""
        self._door.pause(why)

    def resume_intake(self) -> None:
        """Accept requests again."""
        self._door.resume()

    def close(self) -> None:
        """Accept nothing any more; what was accepted goes on."""
        self._door.close()

    def end_all(self, error: Callable[[], RequestError]) -> None:
        """End every accepted request with an error of its own."""
        for entry in list(self._entries.values()):
            self._break(entry, error())

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Call once no accepted request is left: at once if there is none, else whenever the last one ends."""
        self._idle_callbacks.append(callback)
        if not self._entries:
            callback()

    # --- the supervisors' calls ---

    def engine_up(self, engine: int, sink: CommandSink, hello: Hello) -> None:
        """Requests go to this engine; those that lost theirs go first."""
        limits = self._limits[engine] = hello.limits
        self._card = _card(self._known, list(self._limits.values()))
        self.prefixes.engine_up(engine, limits)
        self._door.serves(engine)
        self._lost.pop(engine, None)
        self._giving.understood(engine)
        self._giving.engine_up(engine, sink, limits)

    def engine_down(self, engine: int, why: str) -> None:
        """What it held waits for another one, the shortest first."""
        self._door.lost(engine)
        given = self._giving.holds(engine)
        self._lost[engine] = given
        self._giving.engine_down(engine, sorted(given, key=_length))
        now = self._clock()
        held = [entry for entry in given if not self._complete_already(entry)]
        self._interrupt(engine, held, now)
        for entry in held if self._door.serving else list(self._entries.values()):
            entry.outbox.add(Paused(why))
            entry.paused = now if entry.paused is None else entry.paused
        self._expire()
        if self._entries:
            asyncio.get_running_loop().call_later(self._settings.resume_timeout, self._expire)

    def _interrupt(self, engine: int, held: list[Entry], now: float) -> None:
        """Follow what its death costs those that it held."""
        recovery = self._recoveries[engine] = Recovery(now, len(held))
        for entry in held:
            entry.recoveries = (*entry.recoveries, recovery)
        self.totals = changed(self.totals, interruptions=self.totals.interruptions + len(held))

    def engine_fell(self, engine: int, fall: Fall) -> None:
        """It died while it served."""
        _log.info("engine %d fell with %d requests: %s", engine, len(fall.in_flight), fall.why)
        self._suspicion.fell(fall, self._lost.pop(engine, []))
        self._giving.understood(engine)

    def engine_coming(self, engine: int) -> None:
        """An engine is being started. After a failure that means hope; otherwise nothing changes."""
        self._door.coming(engine)

    def give_up(self, engine: int, why: str) -> None:
        """None will come in its place. If there is no other: end everything and refuse with these words from now on."""
        self._door.failed(engine, why)
        if self._door.hopeless:
            self.end_all(lambda: NotReady(why, FAILED_RETRY))
        self._lost.pop(engine, None)
        self._limits.pop(engine, None)
        self._giving.gave_up(engine)

    # --- reports ---

    def step(self, engine: int, step: Step) -> None:
        """Take in one turn of an engine's loop."""
        now = self._clock()
        entries = self._entries
        for event in step.events:
            entry = entries.get(event.id)
            if entry is None or event.attempt != entry.attempt or entry.engine != engine:
                continue
            match event:
                case Tokens():
                    self._tokens(entry, event, now)
                case Started():
                    self._started(entry, event, now)
                case Finished():
                    self._count_drafts(event)
                    self._end(entry, finished(entry, event), told=True)
                case Failed():
                    self._break(entry, GenerationFailed(event.kind, event.detail), told=True)
                case Suspended():
                    self._suspended(entry)
                case Prefilling() | Waiting():
                    pass
        self._giving.stepped(engine, step)
        if not self._suspicion.idle:
            self._suspicion.look()

    def _tokens(self, entry: Entry, event: Tokens, now: float) -> None:
        transcript = entry.transcript
        ids = event.ids
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
        if entry.recoveries:
            self._resumed(entry, now)
        outbox = entry.outbox
        outbox.add(Piece(transcript.take(ids), tuple(ids), tuple(event.logprobs)))
        if transcript.stop is not None:
            self._end(entry, Ended(Ending.STOP, entry.usage(), transcript.stop))
        elif transcript.looping:
            self._break_circle(entry)
        elif outbox.unread > self._settings.stall_buffer:
            self._break(entry, RequestTimeout("The client did not read its answer (server.stall_buffer)."), outcome="stalled")

    def _break_circle(self, entry: Entry) -> None:
        """What is said runs in circles: a thought is closed, once, by submitting the request again without a budget; an answer
        is ended.
        """
        if not entry.transcript.give_up_thought():
            self._end(entry, circling(entry))
        elif not self._complete_already(entry, told=False):
            self._giving.again(entry)

    def _suspended(self, entry: Entry) -> None:
        if not self._complete_already(entry):
            self.totals = changed(self.totals, suspensions=self.totals.suspensions + 1)
            self._giving.returned(entry)

    def _resumed(self, entry: Entry, now: float) -> None:
        """The first token after one death or several."""
        for recovery in entry.recoveries:
            recovery.resumed(now)
        entry.recoveries = ()

    def _started(self, entry: Entry, event: Started, now: float) -> None:
        entry.paused = None
        if entry.attempt > 1:
            again = max(0, entry.start + len(entry.transcript.delivered) - event.cached)
            self.totals = changed(self.totals, reprefilled_tokens=self.totals.reprefilled_tokens + again)
            if entry.recoveries:
                entry.recoveries[-1].prefilled(again)
        if entry.opened is not None:
            return
        entry.opened = now if event.t is None else max(entry.accepted, min(now, event.t))
        entry.cached = event.cached
        if entry.engine is not None:
            self.prefixes.judge(entry.engine, entry.request, entry.trace, event)
        self.totals = changed(self.totals, cached_tokens=self.totals.cached_tokens + event.cached)
        entry.outbox.add(Opened(event.cached, entry.opened - entry.accepted, entry.opened))

    # --- ending ---

    def _convict(self, entry: Entry) -> None:
        self.totals = changed(self.totals, convictions=self.totals.convictions + 1)
        self._break(entry, PoisonousRequest())

    def _complete_already(self, entry: Entry, *, told: bool = True) -> bool:
        """Whether the last token came before its engine went, or was told of it; ends the entry then."""
        ended = complete(entry)
        if ended is not None:
            self._end(entry, ended, told=told)
        return entry.ended

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
        if isinstance(event, Ended):
            outcome = event.ending.value
            rest = "" if isinstance(event.stop, str) else entry.transcript.finish()
            if rest:
                entry.outbox.add(Piece(rest, ()))
        entry.outbox.add(event)
        entry.outbox.close()
        self._count(entry, event.usage, outcome or "")
        if entry.first is not None and entry.engine is not None:
            self.prefixes.remember(entry.engine, entry.request, entry.trace, entry.transcript.delivered)
        for recovery in entry.recoveries:
            recovery.left()
        self._suspicion.left(entry)
        self._giving.left(entry, told=told)
        if not self._entries:
            for callback in self._idle_callbacks:
                callback()

    def _count(self, entry: Entry, usage: Usage, outcome: str) -> None:
        self.totals = changed(
            self.totals,
            prompt_tokens=self.totals.prompt_tokens + (usage.prompt if entry.opened is not None else 0),
            generated_tokens=self.totals.generated_tokens + usage.completion,
        )
        self._on_end(summary(entry, usage, outcome, self._clock()))

    def _count_drafts(self, event: Finished) -> None:
        if event.accepted or event.rejected:
            self.totals = changed(
                self.totals,
                accepted_drafts=self.totals.accepted_drafts + event.accepted,
                rejected_drafts=self.totals.rejected_drafts + event.rejected,
            )

    def _pass_deadline(self, entry: Entry) -> None:
        self._break(entry, RequestTimeout("The deadline of this request passed before the answer was complete."))

    def _expire(self) -> None:
        """End what has waited too long since it lost its engine. Where another one serves, it waits for nothing but its turn."""
        if self._door.serving:
            return
        limit = self._settings.resume_timeout
        now = self._clock()
        for entry in list(self._entries.values()):
            if entry.paused is not None and now - entry.paused >= limit - 0.01:
                words = f"The engine died and no other could go on within {limit:.0f} s (server.resume_timeout)."
                self._break(entry, RequestTimeout(words))


def _length(entry: Entry) -> int:
    """Tokens to be computed again, if no cache holds them."""
    return entry.request.prompt_tokens + len(entry.transcript.delivered)


def _card(known: ModelCard, limits: list[Limits]) -> ModelCard:
    """What every engine can serve."""
    rooms = [each.page * each.pages for each in limits if each.pages]
    pictures = known.pictures if all(each.vision for each in limits) else None
    return replace(known, context=min(known.context, *rooms, known.context), pictures=pictures)
