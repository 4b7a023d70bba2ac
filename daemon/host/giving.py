"""Gives accepted requests to engines: runs `core.admission.decide`, carries its effects out, knows which engine holds what.

The seam to the registry (`host/streams.py`), which is the only caller:

- requests: `arrive`, `again`, `suspend`, `returned`, `left`;
- engines: `engine_up`, `stepped`, `engine_down`, `understood`, `gave_up`. What a dead engine held rests from `engine_down` to
  `understood`: before it is known why the engine died, none of it may be given to another one;
- suspects: `set_apart` has a request run with nothing else in its engine, `acquit` lets it be mixed again. Those set apart run
  one after the other, in the order of the calls, before anything else is given to the engine kept for them;
- people: `share` takes over who may have what;
- figures: `running`, `queued`, `holds`, `pool`, `figures`, `guarantee_problem`.

An entry is held by an engine exactly while `entry.engine` is not None, and only this file sets it. Nothing here ends an entry or
writes to its reader: the registry sees to it that what is complete is never given.

A decision costs some hundred microseconds while many wait, so steps in which nothing happened that could change one are not told.
Tokens are counted off the transcripts before each decision, never one by one.
"""

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from daemon.core.admission import decide
from daemon.core.admission_events import (
    Acquitted,
    Arrived,
    AskQuote,
    Began,
    Effect,
    EngineDown,
    EngineUp,
    Event,
    Give,
    Isolated,
    Keep,
    Left,
    Quoted,
    Rank,
    Refuse,
    Returned,
    Served,
    Stepped,
    Suspend,
    SuspendAsked,
    Ticked,
    Understood,
    Waits,
)
from daemon.core.admission_prefixes import PrefixIndex
from daemon.core.admission_values import (
    Admission,
    Hint,
    Policy,
)
from daemon.core.admission_views import SharingFigures, figures, guarantee_problem
from daemon.core.errors import Overloaded
from daemon.core.pictures import without_content
from daemon.core.requests import Priority
from daemon.core.settings import Settings
from daemon.core.wire import Answer, Cancel, Limits, Pool, Quote, Started, Steer, Step, Tokens, Waiting
from daemon.core.wire import Keep as KeepCommand
from daemon.core.wire import Quoted as QuotedAnswer
from daemon.core.wire import Suspend as SuspendCommand
from daemon.host.entry import Entry
from daemon.host.link import CommandSink

_log = logging.getLogger("exl3d.giving")

FIRST_QUOTE = 1 << 40
"""Quotes are numbered from here on: below stand the questions of `host/questions.py`."""


@dataclass(slots=True)
class _Engine:
    """One engine that takes requests."""

    sink: CommandSink
    limits: Limits
    pool: Pool


class Giving:
    """See the module. Lives on the event loop's thread; nothing here waits. `pace` is the time between two tokens, in seconds,
    that engines keep for running answers while prompts are prefilled; None leaves it to them.
    """

    def __init__(self, policy: Policy, clock: Callable[[], float], pace: float | None = None) -> None:
        self._policy = policy
        self._clock = clock
        self._pace = pace
        self._admission = Admission()
        self._entries: dict[int, Entry] = {}
        self._engines: dict[int, _Engine] = {}
        self._counted: dict[int, int] = {}
        """Delivered tokens that admission knows of, by request."""
        self._computing: dict[int, int] = {}
        """Requests whose prompt is being computed, and the delivered tokens they had when they were given."""
        self._prefixes = PrefixIndex()
        self._quotes: dict[int, AskQuote] = {}
        self._quote_ids = itertools.count(FIRST_QUOTE)

    def reload(self, settings: Settings) -> None:
        """Take over what may change while the daemon runs. What people may have comes with `share`."""
        self._policy = replace(self._policy, max_queued=settings.server.max_queued)

    def share(self, policy: Policy) -> None:
        """Take over who may have what. Requests that were accepted stay so."""
        self._policy = policy
        self._decide(Ticked(self._clock()))

    # --- requests ---

    def arrive(self, entry: Entry) -> None:
        """A new request; it may be given at once. Raises Overloaded, and has forgotten it then."""
        request = entry.request
        self._entries[entry.link_id] = entry
        self._counted[entry.link_id] = 0
        arrived = Arrived(
            self._clock(),
            entry.link_id,
            request.owner,
            request.priority,
            max(1, request.prompt_tokens),
            request.max_tokens,
            self._hints(entry),
        )
        refused = self._decide(arrived)
        if refused is not None:
            self._forget(entry)
            raise Overloaded(refused.why, refused.retry_after, own_limit=refused.own_limit)

    def _hints(self, entry: Entry) -> tuple[Hint, ...]:
        """What caches may hold of its prompt, where that could change a decision: hashing a long prompt takes milliseconds."""
        if entry.trace is None or (len(self._engines) <= 1 and not self._admission.queued):
            return ()
        entry.trace.finish()
        return self._prefixes.find(entry.trace.digests)

    def again(self, entry: Entry) -> None:
        """Submit a running request anew, to the engine that holds it."""
        if entry.engine is not None:
            self._engines[entry.engine].sink.send(Cancel(entry.link_id))
            place = self._admission.requests[entry.link_id].place
            self._submit(entry, entry.engine, 0 if place is None else place.rank)

    def suspend(self, entry: Entry) -> None:
        """Have its engine set it aside; `returned` follows."""
        if entry.engine is not None:
            self._decide(SuspendAsked(self._clock(), entry.link_id))

    def returned(self, entry: Entry) -> None:
        """Its engine has set it aside: it waits its turn again."""
        if entry.engine is not None:
            self._let_go(entry)
            self._decide(Returned(self._clock(), entry.link_id))

    def left(self, entry: Entry, *, told: bool) -> None:
        """A request has ended, wherever it was. `told`: its engine knows already."""
        if entry.link_id not in self._entries:
            return
        if entry.engine is not None:
            if not told:
                self._engines[entry.engine].sink.send(Cancel(entry.link_id))
            if entry.trace is not None and entry.first is not None:
                entry.trace.finish()
                self._prefixes.remember(entry.engine, entry.link_id, entry.trace.digests)
        self._let_go(entry)
        self._decide(Left(self._clock(), entry.link_id))
        self._forget(entry)

    # --- engines ---

    def engine_up(self, engine: int, sink: CommandSink, limits: Limits) -> None:
        """It takes requests. Its predecessor in this place, if any, has been understood."""
        slots = max(1, min(limits.slots or limits.max_batch, limits.max_batch))
        self._engines[engine] = _Engine(sink, limits, Pool(limits.pages, 0, limits.slots, 0, 0))
        self._prefixes.engine_up(engine)
        if self._pace is not None:
            sink.send(Steer(itl_target=self._pace))
        self._decide(EngineUp(self._clock(), engine, slots, limits.pages, limits.page, limits.interval))

    def stepped(self, engine: int, step: Step) -> None:
        """What it did in a turn of its loop; the registry has taken the events in already."""
        known = self._engines.get(engine)
        if known is None:
            return
        for answer in step.answers:
            self._answered(engine, answer)
        before, known.pool = known.pool, step.pool
        began: list[Began] = []
        waits: list[Waits] = []
        for event in [event for event in step.events if not isinstance(event, Tokens)]:
            if isinstance(event, Started):
                if self._present(engine, event.id, event.attempt):
                    began.append(Began(event.id, event.cached, self._extends(engine, event)))
            elif isinstance(event, Waiting) and self._present(engine, event.id, event.attempt):
                waits.append(Waits(event.id, event.pages))
        pool = step.pool
        moved = (pool.referenced, pool.pending) != (before.referenced, before.pending)
        if began or waits or moved or self._computed():
            now = self._clock()
            self._decide(Stepped(now, engine, pool.referenced, pool.pending, tuple(began), tuple(waits)))

    def _computed(self) -> bool:
        """Whether the prompt of some request is computed since the last step, which makes room for its person's next one."""
        if not self._computing:
            return False
        done = [one for one, before in self._computing.items() if len(self._entries[one].transcript.delivered) > before]
        for one in done:
            del self._computing[one]
        return bool(done) and self._admission.queued > 0

    def _present(self, engine: int, request: int, attempt: int) -> bool:
        """Whether a report is about what the engine holds now."""
        entry = self._entries.get(request)
        return entry is not None and entry.engine == engine and entry.attempt == attempt

    def _extends(self, engine: int, event: Started) -> int | None:
        trace = self._entries[event.id].trace
        if trace is None or not event.cached:
            return None
        trace.finish()
        return next((hint.extends for hint in self._prefixes.find(trace.digests) if hint.engine == engine), None)

    def engine_down(self, engine: int, order: Sequence[Entry]) -> None:
        """It takes nothing more. `order` is what it held."""
        self._engines.pop(engine, None)
        for entry in order:
            self._let_go(entry)
        for number in [number for number, asked in self._quotes.items() if asked.engine == engine]:
            del self._quotes[number]
        self._decide(EngineDown(self._clock(), engine))

    def understood(self, engine: int) -> None:
        """It is known why it went, and suspects were set apart: what it held may be given again."""
        self._decide(Understood(self._clock(), engine))

    def gave_up(self, engine: int) -> None:
        """None will come in its place."""
        self._decide(Understood(self._clock(), engine, lost=True))

    # --- suspects ---

    def set_apart(self, entry: Entry) -> None:
        """Have a request that no engine holds run alone."""
        self._decide(Isolated(self._clock(), entry.link_id))

    def acquit(self, entry: Entry) -> None:
        """Let it be mixed with others again, and go on where it runs."""
        self._decide(Acquitted(self._clock(), entry.link_id))

    # --- figures ---

    @property
    def running(self) -> int:
        """Requests inside engines."""
        return self._admission.running

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self._admission.queued

    def holds(self, engine: int) -> list[Entry]:
        """What an engine holds, in the order in which it was given."""
        known = self._admission.engines.get(engine)
        return [] if known is None else [self._entries[one] for one in known.inside]

    def busy(self, engine: int) -> bool:
        """Whether it holds anything."""
        known = self._admission.engines.get(engine)
        return known is not None and bool(known.inside)

    def pool(self, engine: int) -> Pool | None:
        """An engine's room after its last step; None while there is none."""
        known = self._engines.get(engine)
        return None if known is None else known.pool

    def figures(self) -> SharingFigures:
        """Who has what, who waits for what, and what was done about it."""
        self._count()
        return figures(self._admission, self._policy, self._clock())

    def guarantee_problem(self, policy: Policy | None, engines: Sequence[Limits]) -> str | None:
        """Why what is promised, or would be by another policy, cannot be kept by these engines; None: it can."""
        return guarantee_problem(policy or self._policy, [(limits.pages, limits.page) for limits in engines])

    # --- inside ---

    def _decide(self, event: Event) -> Refuse | None:
        """Let admission decide and carry its effects out. Gives the refusal of a request that arrived."""
        self._count()
        self._admission, effects = decide(self._admission, event, self._policy)
        for effect in effects:
            if isinstance(effect, Refuse):
                return effect
            self._carry_out(effect)
        return None

    def _count(self) -> None:
        """Tell admission of the tokens generated since the last time."""
        tokens: dict[int, int] = {}
        for engine in self._admission.engines.values():
            for one in engine.inside:
                delivered = len(self._entries[one].transcript.delivered)
                if delivered > self._counted[one]:
                    tokens[one] = delivered - self._counted[one]
                    self._counted[one] = delivered
        if tokens:
            self._admission, _ = decide(self._admission, Served(self._clock(), tokens), self._policy)

    def _carry_out(self, effect: Effect) -> None:
        _log.debug("%s", effect)
        match effect:
            case Give(request, engine, rank):
                self._submit(self._entries[request], engine, rank)
            case Suspend(request, engine):
                self._engines[engine].sink.send(SuspendCommand(request))
            case AskQuote(request, engine):
                self._ask(self._entries[request], effect)
            case Rank(engine, ranks):
                self._engines[engine].sink.send(Steer(ranks=dict(ranks), itl_target=self._pace))
            case Keep(engine, ids):
                self._engines[engine].sink.send(KeepCommand(list(ids)))
            case Refuse():
                pass  # taken by whoever let the request arrive

    def _submit(self, entry: Entry, number: int, rank: int) -> None:
        entry.engine = number
        entry.attempt += 1
        self._computing[entry.link_id] = len(entry.transcript.delivered)
        submit = entry.transcript.submit(entry.link_id, entry.attempt, rank)
        fleeting = entry.request.priority is Priority.BACKGROUND
        self._engines[number].sink.send(replace(submit, fleeting=True) if fleeting else submit)

    def _ask(self, entry: Entry, asked: AskQuote) -> None:
        """What it would need for its prompt and the first reserve of its answer."""
        number = next(self._quote_ids)
        self._quotes[number] = asked
        submit = entry.transcript.submit(entry.link_id, entry.attempt)
        self._engines[asked.engine].sink.send(
            Quote(number, without_content(submit.spans), min(submit.max_left, self._policy.reserve))
        )

    def _answered(self, engine: int, answer: Answer) -> None:
        if isinstance(answer, QuotedAnswer):
            asked = self._quotes.pop(answer.id, None)
            if asked is not None:
                self._decide(Quoted(self._clock(), asked.id, engine, answer.new_pages, answer.cached))

    def _let_go(self, entry: Entry) -> None:
        entry.engine = None
        self._computing.pop(entry.link_id, None)

    def _forget(self, entry: Entry) -> None:
        del self._entries[entry.link_id]
        del self._counted[entry.link_id]
