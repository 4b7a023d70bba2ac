"""Gives accepted requests to engines: runs `core.admission.decide`, carries its effects out, knows which engine holds what.

The seam to the registry (`host/streams.py`), which is the only caller:

- requests: `arrive`, `again`, `suspend`, `returned`, `left`;
- engines: `engine_up`, `stepped`, `engine_down`, `understood`, `gave_up`. What a dead engine held rests from `engine_down` to
  `understood`: before it is known why the engine died, none of it may be given to another one;
- suspects: `set_apart` has a request run with nothing else in its engine, `acquit` lets it be mixed again. Those set apart run
  one after the other, in the order of the calls, before anything else is given to the engine kept for them;
- figures: `running`, `queued`, `holds`, `pool`.

An entry is held by an engine exactly while `entry.engine` is not None, and only this file sets it. Nothing here ends an entry or
writes to its reader: the registry sees to it that what is complete is never given. `Started` and `Waiting` stand in the steps
that `stepped` is told; tokens served can be read off `entry.transcript.delivered` whenever they matter.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from daemon.core import admission
from daemon.core.errors import Overloaded
from daemon.core.settings import ServerSettings, Settings
from daemon.core.wire import Cancel, Limits, Pool, Step, Suspend
from daemon.host.entry import Entry
from daemon.host.link import CommandSink


@dataclass(slots=True)
class _Engine:
    """One engine that takes requests."""

    sink: CommandSink
    slots: int
    pool: Pool
    held: dict[int, Entry] = field(default_factory=dict[int, Entry])
    """In the order in which they were given."""


class Giving:
    """See the module. Lives on the event loop's thread; nothing here waits."""

    def __init__(self, settings: ServerSettings, clock: Callable[[], float]) -> None:
        self._policy = admission.Policy(max_queued=settings.max_queued)
        self._clock = clock
        self._admission = admission.Admission()
        self._entries: dict[int, Entry] = {}
        """Those that admission knows."""
        self._engines: dict[int, _Engine] = {}
        self._resting: dict[int, list[Entry]] = {}
        """What dead engines held, until their deaths are understood."""
        self._apart: list[Entry] = []
        """Suspects, in order."""
        self._kept: int | None = None
        """The engine that is kept for suspects."""
        self._expected: set[int] = set()
        """Engines that are down and will come back."""
        self._mean_total = 0.0

    def reload(self, settings: Settings) -> None:
        """Take over what may change while the daemon runs."""
        self._policy = admission.Policy(max_queued=settings.server.max_queued)

    # --- requests ---

    def arrive(self, entry: Entry) -> None:
        """A new request; it may be given at once. Raises Overloaded, and has forgotten it then."""
        self._entries[entry.link_id] = entry
        if not self._admit(admission.Arrived(entry.link_id, entry.request.priority)):
            del self._entries[entry.link_id]
            words = f"{self.queued} requests are waiting already (server.max_queued)."
            raise Overloaded(words, self._retry_after(), own_limit=False)

    def again(self, entry: Entry) -> None:
        """Submit a running request anew, to the engine that holds it."""
        if entry.engine is not None:
            engine = self._engines[entry.engine]
            engine.sink.send(Cancel(entry.link_id))
            self._submit(entry, entry.engine, engine)

    def suspend(self, entry: Entry) -> None:
        """Have its engine set it aside at its next page boundary; `returned` follows."""
        if entry.engine is not None:
            self._engines[entry.engine].sink.send(Suspend(entry.link_id))

    def returned(self, entry: Entry) -> None:
        """Its engine has set it aside: it waits its turn again."""
        self._let_go(entry)
        self._forget(entry)
        if entry not in self._apart:
            self._line_up([entry])
        self._arrange()

    def left(self, entry: Entry, *, told: bool) -> None:
        """A request has ended, wherever it was. `told`: its engine knows already."""
        if entry.engine is not None and not told:
            self._engines[entry.engine].sink.send(Cancel(entry.link_id))
        self._let_go(entry)
        if entry in self._apart:
            self._apart.remove(entry)
        for resting in self._resting.values():
            if entry in resting:
                resting.remove(entry)
        total = self._clock() - entry.accepted
        self._mean_total = total if self._mean_total == 0 else 0.9 * self._mean_total + 0.1 * total
        self._forget(entry)
        self._arrange()

    # --- engines ---

    def engine_up(self, engine: int, sink: CommandSink, limits: Limits) -> None:
        """It takes requests. Its predecessor in this place, if any, has been understood."""
        slots = max(1, min(limits.slots or limits.max_batch, limits.max_batch))
        self._expected.discard(engine)
        self._engines[engine] = _Engine(sink, slots, Pool(limits.pages, 0, limits.slots, 0, 0))
        self._arrange()

    def stepped(self, engine: int, step: Step) -> None:
        """What it did in a turn of its loop; the registry has taken the events in already."""
        known = self._engines.get(engine)
        if known is not None:
            known.pool = step.pool
            if self._pressed() != self._admission.pressed:
                self._arrange()

    def engine_down(self, engine: int, order: Sequence[Entry]) -> None:
        """It takes nothing more. `order` is what it held, as it should come back."""
        self._engines.pop(engine, None)
        self._expected.add(engine)
        for entry in order:
            entry.engine = None
            self._forget(entry)
        self._resting[engine] = [*self._resting.get(engine, ()), *(entry for entry in order if entry not in self._apart)]
        self._arrange()

    def understood(self, engine: int) -> None:
        """It is known why it went, and suspects were set apart: what it held may be given again."""
        self._line_up(self._resting.pop(engine, ()))
        self._arrange()

    def gave_up(self, engine: int) -> None:
        """None will come in its place."""
        self._expected.discard(engine)
        self.understood(engine)

    # --- suspects ---

    def set_apart(self, entry: Entry) -> None:
        """Have a request that no engine holds run alone."""
        for resting in self._resting.values():
            if entry in resting:
                resting.remove(entry)
        self._forget(entry)
        self._apart.append(entry)
        self._arrange()

    def acquit(self, entry: Entry) -> None:
        """Let it be mixed with others again, and go on where it runs."""
        self._apart.remove(entry)
        if entry.engine is None:
            self._line_up([entry])
        elif self._apart:
            self.suspend(entry)  # the next suspect shall not wait for the whole of its answer
        self._arrange()

    # --- figures ---

    @property
    def running(self) -> int:
        """Requests inside engines."""
        return sum(len(engine.held) for engine in self._engines.values())

    @property
    def queued(self) -> int:
        """Requests that wait."""
        resting = sum(len(entries) for entries in self._resting.values())
        return self._admission.queued + resting + sum(entry.engine is None for entry in self._apart)

    def holds(self, engine: int) -> list[Entry]:
        """What an engine holds, in the order in which it was given."""
        known = self._engines.get(engine)
        return [] if known is None else list(known.held.values())

    def busy(self, engine: int) -> bool:
        """Whether it holds anything."""
        known = self._engines.get(engine)
        return known is not None and bool(known.held)

    def pool(self, engine: int) -> Pool | None:
        """An engine's room after its last step; None while there is none."""
        known = self._engines.get(engine)
        return None if known is None else known.pool

    # --- inside ---

    def _admit(self, event: admission.Event) -> bool:
        """Let admission decide and carry its effects out. False: the request that arrived was refused."""
        self._admission, effects = admission.decide(self._admission, event, self._policy)
        for effect in effects:
            match effect:
                case admission.Give(link_id):
                    number, engine = self._roomiest()
                    self._submit(self._entries[link_id], number, engine)
                case admission.Refuse():
                    return False
        return True

    def _submit(self, entry: Entry, number: int, engine: _Engine) -> None:
        entry.engine = number
        entry.attempt += 1
        engine.held[entry.link_id] = entry
        engine.sink.send(entry.transcript.submit(entry.link_id, entry.attempt))

    def _let_go(self, entry: Entry) -> None:
        if entry.engine is not None:
            self._engines[entry.engine].held.pop(entry.link_id, None)
            entry.engine = None

    def _forget(self, entry: Entry) -> None:
        """Take a request out of admission's hands. `_arrange`, which must follow, gives its place away."""
        if self._entries.pop(entry.link_id, None) is not None:
            silent = replace(self._admission, slots=0)
            self._admission, _ = admission.decide(silent, admission.Left(entry.link_id), self._policy)

    def _line_up(self, entries: Iterable[Entry]) -> None:
        """Put requests among those that lost their engine."""
        for entry in entries:
            self._entries[entry.link_id] = entry
            self._admission = replace(self._admission, returned=(*self._admission.returned, entry.link_id))

    def _arrange(self) -> None:
        """Keep an engine for suspects where there are any, give the next one, and let admission fill what room the rest has."""
        self._keep_one()
        if self._kept is not None:
            engine = self._engines[self._kept]
            if not engine.held:
                self._submit(self._apart[0], self._kept, engine)
        self._admission = replace(self._admission, slots=self._room())
        self._admit(admission.Pressure(int(self._pressed())))

    def _keep_one(self) -> None:
        """An empty engine if there is one or one is expected; else the emptiest one, whose requests must make room."""
        if not self._apart or self._kept not in self._engines:
            self._kept = None
        if self._apart and self._kept is None:
            empty = [number for number, engine in self._engines.items() if not engine.held]
            if empty:
                self._kept = empty[0]
            elif self._engines and not self._expected:
                self._kept = min(self._engines, key=lambda number: len(self._engines[number].held))
                for entry in self._engines[self._kept].held.values():
                    self.suspend(entry)

    def _room(self) -> int:
        """Slots that admission may fill, with those that it has filled."""
        room = 0
        for number, engine in self._engines.items():
            known = sum(link_id in self._entries for link_id in engine.held)
            others = len(engine.held) - known
            room += known if number == self._kept else max(known, engine.slots - others)
        return room

    def _roomiest(self) -> tuple[int, _Engine]:
        free = ((number, engine) for number, engine in self._engines.items() if number != self._kept)
        return max(free, key=lambda pair: pair[1].slots - len(pair[1].held))

    def _pressed(self) -> bool:
        return any(engine.pool.pending > 0 for engine in self._engines.values())

    def _retry_after(self) -> float:
        """Seconds until the queue has probably moved on: the mean time of a request, shared by the slots."""
        slots = max(1, self._admission.slots)
        return min(60.0, max(1.0, self._mean_total * self._admission.queued / slots))
