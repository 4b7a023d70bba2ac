"""A world for admission: engines that count pages as exllamav3's generator does, people who ask, and a clock of their own.

The engines are a model, not a fake at a port: what is tested is a pure function, and these are its surroundings. Pages are
claimed for a prompt and a reserve, given up and claimed anew when the reserve is used up; a request that finds too few waits.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from daemon.core.admission import decide
from daemon.core.admission_events import (
    Arrived,
    AskQuote,
    Began,
    Effect,
    EngineDown,
    EngineUp,
    Event,
    Give,
    Keep,
    Left,
    Quoted,
    Rank,
    Refuse,
    Returned,
    Served,
    Stepped,
    Suspend,
    Understood,
    Waits,
)
from daemon.core.admission_values import (
    Admission,
    Hint,
    Policy,
)
from daemon.core.requests import Priority

PAGE = 256


@dataclass(slots=True)
class Job:
    """A request inside an engine."""

    id: int
    size: int
    limit: int
    rank: int
    arrival: int
    prompt_left: int
    cached: int = 0
    held: int = 0
    """Pages."""
    extent: int = 0
    started: bool = False
    generating: bool = False
    suspending: bool = False
    passed_over: bool = False
    told: bool = False

    @property
    def order(self) -> tuple[bool, int, int]:
        return (not self.generating, self.rank, self.arrival)


@dataclass(slots=True)
class Turn:
    """What an engine did in a step."""

    seconds: float = 0.0
    began: list[Began] = field(default_factory=list[Began])
    waits: list[Waits] = field(default_factory=list[Waits])
    tokens: dict[int, int] = field(default_factory=dict[int, int])
    suspended: list[int] = field(default_factory=list[int])
    finished: list[int] = field(default_factory=list[int])
    pool: tuple[int, int] = (0, 0)


class Machine:
    """A model of one engine. Times are those of a 9B model on a consumer GPU, unless given."""

    def __init__(
        self,
        slots: int,
        pages: int,
        interval: int = 0,
        reserve: int = 2048,
        chunk: int = 2048,
        decode: Callable[[int], float] = lambda rows: 0.025 + 0.0004 * rows,
        prefill: float = 1 / 2500,
        stride: int = 1,
    ) -> None:
        self.stride = stride
        """Tokens a step generates for each request: more make tests short."""
        self.slots = slots
        self.pages = pages
        self.interval = interval
        self.reserve = reserve
        self.chunk = chunk
        self.decode = decode
        self.prefill = prefill
        self.active: list[Job] = []
        self.pending: list[Job] = []
        self.kept: tuple[int, ...] = ()
        self.peak = 0
        self._arrivals = 0

    @property
    def referenced(self) -> int:
        return sum(job.held for job in self.active)

    def jobs(self) -> list[Job]:
        return [*self.active, *self.pending]

    def submit(self, request: int, size: int, limit: int, rank: int, cached: int) -> None:
        assert all(job.id != request for job in self.jobs())
        self._arrivals += 1
        cached = min(cached, size - 1)
        self.pending.append(Job(request, size, limit, rank, self._arrivals, size - cached, cached))

    def cancel(self, request: int) -> None:
        self.active = [job for job in self.active if job.id != request]
        self.pending = [job for job in self.pending if job.id != request]

    def suspend(self, request: int) -> None:
        for job in self.jobs():
            if job.id == request:
                job.suspending = True

    def _extent(self, job: Job) -> int:
        if job.limit - job.size <= self.reserve:
            return job.limit + 1
        boundary = self.interval or PAGE
        return min(-(-(job.size - 1 + self.reserve) // boundary) * boundary, self.pages * PAGE)

    def need(self, job: Job) -> int:
        return min(self.pages, -(-self._extent(job) // PAGE))

    def step(self) -> Turn:
        turn = Turn()
        self._set_aside(turn)
        self._start(turn)
        self._prefill(turn)
        self._decode(turn)
        self._set_aside(turn)
        self.peak = max(self.peak, len(self.active))
        assert self.referenced <= self.pages
        turn.pool = (self.referenced, len(self.pending))
        return turn

    def _set_aside(self, turn: Turn) -> None:
        for job in self.jobs():
            if job.suspending:
                self.cancel(job.id)
                turn.suspended.append(job.id)

    def _start(self, turn: Turn) -> None:
        for job in sorted(self.pending, key=lambda one: one.order):
            if len(self.active) < self.slots and self.need(job) <= self.pages - self.referenced:
                self.pending.remove(job)
                self.active.append(job)
                job.held, job.extent = self.need(job), self._extent(job)
                job.passed_over = job.told = False
                if not job.started:
                    job.started = True
                    turn.began.append(Began(job.id, job.cached))
            elif job.passed_over and not job.told:
                job.told = True
                turn.waits.append(Waits(job.id, self.need(job)))
            job.passed_over = job in self.pending

    def _prefill(self, turn: Turn) -> None:
        budget = self.chunk
        for job in sorted(self.active, key=lambda one: one.order):
            part = min(budget, job.prompt_left)
            job.prompt_left -= part
            budget -= part
            turn.seconds += part * self.prefill

    def _decode(self, turn: Turn) -> None:
        rows = [job for job in self.active if job.prompt_left == 0]
        if rows:
            turn.seconds += self.decode(len(rows))
        for job in rows:
            made = min(self.stride, job.limit - job.size, job.extent - job.size)
            job.size += made
            job.generating = True
            turn.tokens[job.id] = made
            if job.size >= job.limit:
                self.active.remove(job)
                turn.finished.append(job.id)
            elif job.size >= job.extent:
                self.active.remove(job)
                job.held = 0
                self.pending.append(job)


@dataclass(frozen=True, slots=True)
class Ask:
    """Somebody asks. `answer` is how long the answer will be, and the most it may be."""

    t: float
    owner: str
    prompt: int
    answer: int
    priority: Priority = Priority.LIVE
    cached: int = 0


@dataclass(slots=True)
class Story:
    """What became of a request."""

    ask: Ask
    given: int = 0
    first: float | None = None
    end: float | None = None
    suspended: int = 0

    @property
    def ttft(self) -> float:
        assert self.first is not None
        return self.first - self.ask.t


class World:
    """Admission, engines, and what happened."""

    def __init__(self, policy: Policy, machines: Sequence[Machine]) -> None:
        self.policy = policy
        self.machines: dict[int, Machine] = dict(enumerate(machines))
        self.state = Admission()
        self.now = 0.0
        self.stories: dict[int, Story] = {}
        self.open: set[int] = set()
        self.refused: dict[int, Refuse] = {}
        self.effects: list[Effect] = []
        self.served: Counter[str] = Counter()
        """Service done, by owner."""
        self.sizes: dict[int, int] = {}
        self._quotes: list[AskQuote] = []
        for number in self.machines:
            self.engine_up(number)

    # --- events ---

    def feed(self, event: Event) -> tuple[Effect, ...]:
        self.state, effects = decide(self.state, event, self.policy)
        for effect in effects:
            self._carry_out(effect)
        self.effects += effects
        return effects

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Give(request, engine, rank):
                story = self.stories[request]
                story.given += 1
                limit = story.ask.prompt + story.ask.answer
                cached = story.ask.cached if story.given == 1 else self.sizes[request] // PAGE * PAGE
                self.machines[engine].submit(request, self.sizes[request], limit, rank, cached)
            case Suspend(request, engine):
                self.stories[request].suspended += 1
                self.machines[engine].suspend(request)
            case Refuse(request):
                self.refused[request] = effect
                self.open.discard(request)
            case AskQuote():
                self._quotes.append(effect)
            case Rank(engine, ranks):
                for job in self.machines[engine].jobs():
                    job.rank = ranks.get(job.id, job.rank)
            case Keep(engine, ids):
                self.machines[engine].kept = ids

    def engine_up(self, number: int) -> None:
        machine = self.machines[number]
        self.feed(EngineUp(self.now, number, machine.slots, machine.pages, PAGE, machine.interval))

    def engine_dies(self, number: int) -> None:
        old = self.machines[number]
        self.machines[number] = Machine(
            old.slots, old.pages, old.interval, old.reserve, old.chunk, old.decode, old.prefill, old.stride
        )
        self.feed(EngineDown(self.now, number))

    def understood(self, number: int) -> None:
        self.feed(Understood(self.now, number))

    def ask(self, ask: Ask) -> int:
        request = len(self.stories) + 1
        self.stories[request] = Story(ask)
        self.sizes[request] = ask.prompt
        self.open.add(request)
        hints = tuple(Hint(number, ask.cached) for number in self.machines if ask.cached)
        self.feed(Arrived(self.now, request, ask.owner, ask.priority, ask.prompt, ask.answer, hints))
        return request

    def leave(self, request: int) -> None:
        self.open.discard(request)
        for machine in self.machines.values():
            machine.cancel(request)
        self.feed(Left(self.now, request))

    def turn(self, number: int) -> float:
        """One step of an engine, told as the runner tells it. Gives the seconds it took."""
        machine = self.machines[number]
        self._answer(number)
        turn = machine.step()
        self.now += turn.seconds
        self._deliver(turn.tokens)
        for request in turn.suspended:
            self.feed(Returned(self.now, request))
        for request in turn.finished:
            self.stories[request].end = self.now
            self.open.discard(request)
            self.feed(Left(self.now, request))
        self.feed(Stepped(self.now, number, *turn.pool, tuple(turn.began), tuple(turn.waits)))
        return turn.seconds

    def _answer(self, number: int) -> None:
        for asked in [one for one in self._quotes if one.engine == number]:
            self._quotes.remove(asked)
            story, machine = self.stories[asked.id], self.machines[number]
            job = Job(asked.id, self.sizes[asked.id], story.ask.prompt + story.ask.answer, 0, 0, 0)
            self.feed(Quoted(self.now, asked.id, number, machine.need(job), story.ask.cached))

    def _deliver(self, tokens: dict[int, int]) -> None:
        prices = self.policy.prices
        for request, count in tokens.items():
            story = self.stories[request]
            if story.first is None:
                story.first = self.now
                uncached = story.ask.prompt - story.ask.cached
                self.served[story.ask.owner] += round(uncached * prices.prefill + story.ask.cached * prices.cached)
            self.sizes[request] += count
            self.served[story.ask.owner] += round(count * prices.decode)
        if tokens:
            self.feed(Served(self.now, tokens))

    # --- whole runs ---

    def run(self, asks: Iterable[Ask] = (), until: float = 1e6, steps: int = 200_000) -> None:
        """Let people ask and engines work until nothing is left or the time is over. One engine."""
        coming = sorted(asks, key=lambda ask: ask.t)
        for _ in range(steps):
            while coming and coming[0].t <= self.now:
                self.ask(coming.pop(0))
            if self.now >= until or (not self.open and not coming):
                return
            before = self.now
            spent = max(self.turn(number) for number in self.machines)
            self.now = before + spent
            if spent == 0.0:
                if any(machine.jobs() for machine in self.machines.values()):
                    continue
                if not coming:
                    msg = f"nothing moves, and {sorted(self.open)} are not done"
                    raise AssertionError(msg)
                self.now = max(self.now, coming[0].t)
        msg = "it never ends"
        raise AssertionError(msg)
