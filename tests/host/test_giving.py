"""Giving: what admission decides reaches engines as commands, and what engines say reaches admission."""

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from daemon.core.admission_values import Policy, Reason, Share
from daemon.core.errors import Overloaded
from daemon.core.requests import Priority, ValidRequest
from daemon.core.settings import ServerSettings
from daemon.core.wire import (
    Cancel,
    Command,
    Event,
    Finished,
    FinishReason,
    Keep,
    Phase,
    Pool,
    Quote,
    Quoted,
    Steer,
    Step,
    Submit,
    Suspended,
    TokenSpan,
    Waiting,
)
from daemon.host.entry import Entry
from daemon.host.streams import StreamRegistry
from tests.host.desk import CARD, Engine, hello, started, tokens
from tests.host.tiny import SPECIAL, tiny_vocabulary


def ask(owner: str = "ada", prompt: int = 10, answer: int = 100, *, first: int = 1, background: bool = False) -> ValidRequest:
    """A request whose prompt counts up from `first`."""
    ids = [(first + place) % 250 for place in range(prompt)]
    priority = Priority.BACKGROUND if background else Priority.LIVE
    return ValidRequest("r", owner, (TokenSpan(ids),), answer, priority=priority)


class Hall:
    """A registry and its engines, with the pages they report."""

    def __init__(self, people: Mapping[str, Share] | None = None, *, pace: float | None = None, **policy: object) -> None:
        self.now = 100.0
        shares = MappingProxyType(dict(people or {}))
        self.streams = StreamRegistry(
            card=CARD,
            vocabulary=tiny_vocabulary(),
            special=SPECIAL,
            settings=ServerSettings(),
            on_end=lambda _: None,
            clock=lambda: self.now,
            engines=2,
            sharing=Policy(people=shares, **policy),  # pyright: ignore[reportArgumentType]  # fields by name
            pace=pace,
        )
        self.engines: dict[int, Engine] = {}
        self.pages: dict[int, int] = {}

    def up(self, number: int = 0, slots: int = 4, pages: int = 100) -> Engine:
        """An engine takes requests."""
        self.engines[number], self.pages[number] = Engine(), pages
        self.streams.engine_up(number, self.engines[number], hello(slots, pages))
        return self.engines[number]

    def step(
        self, *events: Event, engine: int = 0, referenced: int = 0, pending: int = 0, answers: tuple[Quoted, ...] = ()
    ) -> None:
        """A turn of an engine."""
        pool = Pool(self.pages[engine], referenced, 4, 0, pending)
        self.streams.step(engine, Step(1, self.now, Phase.DECODE, pool, events=list(events), answers=list(answers)))

    def run(self, submit: Submit, *, engine: int = 0, referenced: int = 0, cached: int = 0) -> None:
        """A request holds its pages and says its first token."""
        self.step(started(submit, cached), tokens(submit, [65]), engine=engine, referenced=referenced)


def of(engine: Engine, kind: type[Command]) -> list[Command]:
    """Commands of one kind."""
    return [command for command in engine.commands if isinstance(command, kind)]


def finish(hall: Hall, submit: Submit, engine: int = 0, referenced: int = 0) -> None:
    """The engine says that a request is done."""
    hall.step(Finished(submit.id, submit.attempt, FinishReason.LENGTH), engine=engine, referenced=referenced)


async def test_engine_learns_the_pace_before_its_first_request() -> None:
    hall = Hall(pace=0.25)
    waiting = hall.up(0)
    hall.streams.open(ask())
    assert isinstance(waiting.commands[0], Steer)
    assert waiting.commands[0].itl_target == pytest.approx(0.25)
    assert isinstance(waiting.commands[1], Submit)


async def test_background_is_fleeting_and_ranks_behind_live() -> None:
    hall = Hall()
    engine = hall.up()
    hall.streams.open(ask(prompt=900))
    hall.streams.open(ask("bob", background=True))
    live, background = engine.submits
    assert (live.fleeting, background.fleeting) == (False, True)
    assert live.rank < background.rank


async def test_rank_is_corrected_when_the_cache_held_the_prompt_and_the_pace_stays() -> None:
    hall = Hall(pace=0.25)
    engine = hall.up()
    hall.streams.open(ask(prompt=8000))
    hall.run(engine.submits[0], cached=7936)
    steer = of(engine, Steer)[-1]
    assert isinstance(steer, Steer)
    assert steer.ranks[1] < engine.submits[0].rank
    assert steer.itl_target == pytest.approx(0.25)


async def test_newcomer_gets_the_slot_of_a_stream_set_aside_and_that_stream_goes_on_later() -> None:
    hall = Hall()
    engine = hall.up(slots=2)
    for first in (1, 2):
        hall.streams.open(ask("agent", first=first))
    one, two = engine.submits
    hall.run(one)
    hall.run(two)
    hall.streams.open(ask("ada"))
    assert engine.suspends == [2]
    hall.step(Suspended(two.id, two.attempt, 0))
    assert [submit.id for submit in engine.submits] == [1, 2, 3]
    finish(hall, engine.submits[2])
    again = engine.submits[-1]
    assert (again.id, again.attempt, again.max_left) == (2, 2, 99)
    figures = hall.streams.sharing()
    assert (figures.suspensions, figures.resumes) == (1, 1)
    assert figures.people["agent"].running == 2


async def test_request_that_waits_inside_for_pages_makes_the_youngest_give_way() -> None:
    hall = Hall(reserve=256)
    engine = hall.up(slots=4, pages=12)
    for first, owner in ((1, "ada"), (2, "bob")):
        hall.streams.open(ask(owner, 1000, 2000, first=first))
        hall.run(engine.submits[-1], referenced=5 * first)
    hall.step(Waiting(1, 1, pages=8), referenced=5, pending=1)
    assert engine.suspends == [2]


async def test_quote_lets_a_request_in_that_shares_its_pages() -> None:
    hall = Hall()
    engine = hall.up(pages=10)
    for _ in range(2):
        hall.streams.open(ask(prompt=1500, answer=100))
        if len(engine.submits) == 1:
            hall.run(engine.submits[0], referenced=7)
    [quote] = of(engine, Quote)
    assert isinstance(quote, Quote)
    assert (len(engine.submits), quote.max_left) == (1, 100)
    hall.step(referenced=7, answers=(Quoted(quote.id, 1, 1280),))
    assert [submit.id for submit in engine.submits] == [1, 2]


async def test_answer_to_a_quote_of_a_request_that_has_left_changes_nothing() -> None:
    hall = Hall()
    engine = hall.up(pages=10)
    hall.streams.open(ask(prompt=1500, answer=100))
    hall.run(engine.submits[0], referenced=7)
    hall.streams.open(ask(prompt=1500, answer=100)).cancel()
    [quote] = of(engine, Quote)
    assert isinstance(quote, Quote)
    hall.step(referenced=7, answers=(Quoted(quote.id, 1, 1280),))
    assert len(engine.submits) == 1


async def test_engine_is_told_to_keep_a_guaranteed_conversation_and_forgets_the_turn_it_went_on_with() -> None:
    hall = Hall({"ada": Share(guaranteed=4000)})
    engine = hall.up()
    hall.streams.open(ask(prompt=1000, answer=2))
    first = engine.submits[0]
    hall.run(first, referenced=5)
    finish(hall, first)
    assert _kept(engine) == [1]
    hall.streams.open(ask(prompt=1500, answer=2))
    hall.run(engine.submits[1], referenced=7, cached=768)
    assert _kept(engine) == [2]


def _kept(engine: Engine) -> list[int]:
    last = of(engine, Keep)[-1]
    assert isinstance(last, Keep)
    return last.ids


async def test_next_turn_goes_to_the_engine_that_holds_the_conversation() -> None:
    hall = Hall()
    hall.up(0)
    other = hall.up(1)
    busy = hall.streams.open(ask("bob", prompt=600, first=100))
    assert busy.engine == 0
    first = hall.streams.open(ask(prompt=1000, answer=2))
    assert first.engine == 1
    hall.run(other.submits[0], engine=1)
    finish(hall, other.submits[0], engine=1)
    busy.cancel()
    assert hall.streams.open(ask(prompt=1500)).engine == 1


async def test_own_limit_is_told_as_such() -> None:
    hall = Hall({"ada": Share(max_queued=0)})
    hall.up(slots=1)
    hall.streams.open(ask())
    with pytest.raises(Overloaded) as refused:
        hall.streams.open(ask())
    assert refused.value.own_limit
    assert refused.value.retry_after >= 1
    assert hall.streams.queued == 0


async def test_new_shares_count_from_the_next_decision_on() -> None:
    hall = Hall({"ada": Share(max_concurrent=1)})
    engine = hall.up()
    entries: list[Entry] = [hall.streams.open(ask(first=first)) for first in (1, 2)]
    assert [submit.id for submit in engine.submits] == [1]
    assert hall.streams.sharing().queued[Reason.OWN_LIMIT] == 1
    hall.streams.share(Policy(people={"ada": Share(max_concurrent=2)}))
    assert [submit.id for submit in engine.submits] == [1, 2]
    assert all(entry.engine == 0 for entry in entries)


async def test_promise_larger_than_the_pool_is_told_with_the_arithmetic() -> None:
    hall = Hall({"ada": Share(guaranteed=20_000), "bob": Share(guaranteed=6_000)})
    assert hall.streams.guarantee_problem() is None
    hall.up(pages=100)
    assert hall.streams.guarantee_problem() is None, "the engine that still loads was not reckoned with"
    hall.streams.give_up(1, "its card is gone")
    words = hall.streams.guarantee_problem()
    assert words is not None
    assert all(part in words for part in ("20,000 (ada)", "6,000 (bob)", "26,000", "25,600"))
    assert hall.streams.guarantee_problem(Policy(people={"ada": Share(guaranteed=20_000)})) is None


async def test_cancelled_request_makes_room_before_the_engine_says_so() -> None:
    """The command to cancel goes before the next submission."""
    hall = Hall()
    engine = hall.up(pages=8)
    entry = hall.streams.open(ask(prompt=1500))
    hall.run(engine.submits[0], referenced=7)
    hall.streams.open(ask("bob", prompt=1500))
    entry.cancel()
    kinds = [type(command) for command in engine.commands if isinstance(command, Submit | Cancel)]
    assert kinds == [Submit, Cancel, Submit]
