"""Any order of events over two engines: they die, accuse, lag and repeat themselves; readers leave. Nothing said ever changes."""

import asyncio
from collections.abc import Coroutine

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from daemon.core.errors import NotReady, PoisonousRequest
from daemon.core.events import Broken, Ended, Piece, StreamEvent
from daemon.core.poison import Policy
from daemon.core.wire import Submit, Suspended, Tokens
from daemon.host.entry import Entry
from daemon.host.workforce import Fall
from tests.host.desk import Desk, Engine, drain, ends, length, request, started

ENGINES = 2
SLOTS = 2


def text_of(events: list[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Piece))


class _AnyLife(RuleBasedStateMachine):
    """The model says the alphabet over and over: token `index` of every answer is always the same."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.desk = Desk(slots=SLOTS, engines=ENGINES, poison=Policy(proof=6))
        self.engines: dict[int, Engine] = {}
        self.dead: set[int] = set()
        """Engines that died without anybody knowing why yet."""
        self.entries: list[Entry] = []
        self.heard: dict[int, list[StreamEvent]] = {}
        self.prompts = 0
        for engine in range(ENGINES):
            self.engines[engine] = self.desk.engine_up(engine)

    def teardown(self) -> None:
        """In the end engines come back, and everybody who is still there gets a whole answer."""
        try:
            self.run(self._settle())
        finally:
            self.loop.close()
            asyncio.set_event_loop(None)

    def run(self, work: Coroutine[object, object, None]) -> None:
        self.loop.run_until_complete(work)

    async def _settle(self) -> None:
        for engine in range(ENGINES):
            if engine not in self.engines:
                self._come(engine)
        for _ in range(400):
            for engine in range(ENGINES):
                self._generate(engine, 3, repeat=False)
                self._set_aside_who_must(engine)
        assert self.desk.streams.empty
        for entry in self.entries:
            self.heard[entry.link_id] += await drain(entry)
            [end] = ends(self.heard[entry.link_id])
            if isinstance(end, Ended):
                assert len(text_of(self.heard[entry.link_id])) == entry.request.max_tokens
        self.what_was_heard_is_what_the_model_said()

    @staticmethod
    def model(index: int) -> int:
        return 97 + index % 26

    def held(self, engine: int) -> list[tuple[Submit, Entry]]:
        """What an engine holds: submissions that are neither over nor superseded."""
        found: list[tuple[Submit, Entry]] = []
        for submit in self.engines[engine].submits:
            entry = self.entries[submit.id - 1]
            if not entry.ended and submit.attempt == entry.attempt and entry.engine == engine:
                found.append((submit, entry))
        return found

    @precondition(lambda self: len(self.entries) < 7)
    @rule(max_tokens=st.integers(1, 20))
    def arrive(self, max_tokens: int) -> None:
        async def go() -> None:
            self.prompts += 1
            entry = self.desk.streams.open(request("a" * self.prompts, max_tokens))
            assert entry.link_id == len(self.entries) + 1
            self.entries.append(entry)
            self.heard[entry.link_id] = []

        self.run(go())

    def _generate(self, engine: int, count: int, *, repeat: bool) -> None:
        for submit, entry in self.held(engine):
            done = len(entry.transcript.delivered)
            fresh = [self.model(done + index) for index in range(min(count, entry.request.max_tokens - done))]
            report = Tokens(submit.id, submit.attempt, entry.request.prompt_tokens + done, fresh)
            again = [report] if repeat else []
            self.desk.step(started(submit), report, *again, engine=engine)
            if done + len(fresh) == entry.request.max_tokens and not entry.ended:
                self.desk.finish(submit, engine=engine)

    @rule(engine=st.integers(0, ENGINES - 1), count=st.integers(1, 5), repeat=st.booleans())
    def engine_generates(self, engine: int, count: int, repeat: bool) -> None:
        async def go() -> None:
            if engine in self.engines:
                self._generate(engine, count, repeat=repeat)

        self.run(go())

    def _set_aside_who_must(self, engine: int) -> None:
        wanted = set(self.engines[engine].suspends)
        for submit, entry in self.held(engine):
            if entry.link_id in wanted:
                self.desk.step(Suspended(submit.id, submit.attempt, length(submit)), engine=engine)

    @rule(engine=st.integers(0, ENGINES - 1))
    def engine_sets_aside_what_it_was_asked_to(self, engine: int) -> None:
        async def go() -> None:
            if engine in self.engines:
                self._set_aside_who_must(engine)

        self.run(go())

    @rule(engine=st.integers(0, ENGINES - 1))
    def engine_dies(self, engine: int) -> None:
        async def go() -> None:
            if engine in self.engines:
                del self.engines[engine]
                self.dead.add(engine)
                self.desk.streams.engine_down(engine, "it died")

        self.run(go())

    @rule(engine=st.integers(0, ENGINES - 1), accuses=st.booleans(), data=st.data())
    def death_is_understood(self, engine: int, accuses: bool, data: st.DataObject) -> None:
        ids = list(range(1, len(self.entries) + 1))
        in_flight = tuple(data.draw(st.permutations(ids)))
        prefilling = data.draw(st.none() | st.sampled_from(ids)) if ids else None

        async def go() -> None:
            if engine in self.dead:
                self.dead.remove(engine)
                self.desk.streams.engine_fell(engine, Fall("it died", accuses, prefilling, in_flight))

        self.run(go())

    def _come(self, engine: int) -> None:
        self.dead.discard(engine)
        self.desk.streams.engine_coming(engine)
        self.engines[engine] = self.desk.engine_up(engine)

    @rule(engine=st.integers(0, ENGINES - 1))
    def engine_comes(self, engine: int) -> None:
        async def go() -> None:
            if engine not in self.engines:
                self._come(engine)

        self.run(go())

    @precondition(lambda self: bool(self.entries))
    @rule(data=st.data(), leaves=st.booleans())
    def reader_reads_or_leaves(self, data: st.DataObject, leaves: bool) -> None:
        entry = data.draw(st.sampled_from(self.entries))

        async def go() -> None:
            if leaves:
                entry.cancel()
            if entry.outbox.unread:
                self.heard[entry.link_id].append(await anext(entry.events()))

        self.run(go())

    @invariant()
    def what_was_heard_is_what_the_model_said(self) -> None:
        for events in self.heard.values():
            text = text_of(events)
            assert text == "".join(chr(self.model(index)) for index in range(len(text)))
            assert len(ends(events)) <= 1
            assert not ends(events) or events[-1] in ends(events)
            assert not [end for end in ends(events) if isinstance(end, Broken) and isinstance(end.error, NotReady)]

    @invariant()
    def ended_streams_were_told_so_once(self) -> None:
        assert len(self.desk.summaries) == sum(entry.ended for entry in self.entries)
        convicted = [summary for summary in self.desk.summaries if summary.outcome == PoisonousRequest.__name__]
        assert len(convicted) == self.desk.streams.totals.convictions

    @invariant()
    def requests_are_held_once_and_engines_are_not_overfull(self) -> None:
        streams = self.desk.streams
        assert streams.running + streams.queued == sum(not entry.ended for entry in self.entries)
        for engine in self.engines:
            assert len(self.held(engine)) <= SLOTS
            assert streams.outstanding(engine) == bool(self.held(engine))
        assert streams.running == sum(len(self.held(engine)) for engine in self.engines)

    @invariant()
    def suspects_run_with_nobody_beside_them(self) -> None:
        suspects = set(self.desk.streams.suspects)
        for engine in self.engines:
            inside = {entry.link_id for _, entry in self.held(engine)}
            assert not inside & suspects or len(inside) == 1


TestAnyLife = _AnyLife.TestCase
TestAnyLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
