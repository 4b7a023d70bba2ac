"""The way of a request into the generator: its grammar, its sampler, its job. Used for new requests and for those that go on
after a contained fault.
"""

from dataclasses import dataclass, field

import torch
from exllamav3 import Generator, Tokenizer

from daemon.core.wire import Constraint, DeviceMemory, FailureClass
from daemon.engine.exl3.constraint import Compiled, GrammarBroken, GrammarCompiler, GrammarFilter
from daemon.engine.exl3.faults import describe
from daemon.engine.exl3.job import Crew, ServedJob
from daemon.engine.exl3.sampler import build_sampler, seeded
from daemon.engine.exl3.ticket import Desk, Standing, Ticket


@dataclass(frozen=True, slots=True)
class Loaded:
    """What loading has built."""

    generator: Generator
    tokenizer: Tokenizer
    architecture: str
    backend: str
    vocabulary: int
    eos: list[int]
    on_gpu: bool
    memory: list[DeviceMemory] = field(default_factory=list[DeviceMemory])
    """What each GPU holds now."""


class Entrance:
    """Makes jobs of tickets. `reserve` is the answer tokens for which pages are reserved at a time."""

    def __init__(self, loaded: Loaded, desk: Desk, grammars: GrammarCompiler, reserve: int, crew: Crew) -> None:
        self._loaded = loaded
        self._desk = desk
        self._grammars = grammars
        self._reserve = reserve
        self._crew = crew
        self._compiling: list[Standing] = []
        self.jobs: dict[int, ServedJob] = {}
        """The jobs in the generator, by request."""

    @property
    def waiting(self) -> int:
        """Requests whose grammar is being compiled."""
        return len(self._compiling)

    def forget(self, ticket: Ticket) -> None:
        """Do not let a request in whose grammar is being compiled."""
        self._compiling = [waiting for waiting in self._compiling if waiting.ticket is not ticket]

    def enter(self, standing: Standing) -> None:
        """Bring a request into the generator, now or when its grammar is compiled."""
        constraint = standing.ticket.request.constraint
        if constraint is None:
            self._enqueue(standing, None)
            return
        matcher = self._grammars.find(constraint)
        if matcher is None:
            self._compiling.append(standing)
            self._grammars.start(constraint)
            return
        self._enter_constrained(standing, Compiled(constraint, matcher))

    def enter_compiled(self, compiled: Compiled) -> None:
        """Let everybody in, or refuse them, who waited for a grammar."""
        same, self._compiling = (
            [waiting for waiting in self._compiling if _same(waiting.ticket.request.constraint, compiled.constraint)],
            [waiting for waiting in self._compiling if not _same(waiting.ticket.request.constraint, compiled.constraint)],
        )
        for standing in same:
            self._enter_constrained(standing, compiled)

    def _enter_constrained(self, standing: Standing, compiled: Compiled) -> None:
        ticket = standing.ticket
        constraint = ticket.request.constraint
        if compiled.matcher is None or constraint is None:
            self._desk.fail(ticket, FailureClass.INVALID, f"the grammar does not compile: {compiled.problem}")
            return
        close_ids = [] if ticket.request.reasoning is None else ticket.request.reasoning.close_ids
        grammar = self._grammars.filter(compiled.matcher.deep_copy(), constraint, close_ids)
        try:
            grammar.replay(standing.ids[ticket.request.origin :])
        except GrammarBroken as problem:
            self._desk.fail(ticket, FailureClass.CONSTRAINT, str(problem))
            return
        self._enqueue(standing, grammar)

    def _enqueue(self, standing: Standing, grammar: GrammarFilter | None) -> None:
        ticket, request = standing.ticket, standing.ticket.request
        done = len(standing.ids) - len(ticket.ids)
        ticket.grammar = grammar
        try:
            job = ServedJob(
                input_ids=torch.tensor([standing.ids], dtype=torch.long),
                max_new_tokens=request.max_left - done,
                min_new_tokens=max(0, request.min_left - done),
                sampler=build_sampler(request.sampler, self._loaded.tokenizer),
                stop_conditions=request.stop_ids,
                filters=[] if grammar is None else [grammar],
                max_rq_tokens=self._reserve,
            )
            job.serve(ticket, self._desk, self._crew, self._loaded.vocabulary)
            job.rng = seeded(request.seed, request.draws + done)
            job.force(standing.forced)
            if ticket.thought is not None and ticket.thought.spent:
                job.force(ticket.thought.close())
            self._loaded.generator.enqueue(job)
        except (ValueError, AssertionError) as problem:
            self._desk.fail(ticket, FailureClass.INVALID, describe(problem))
            return
        self.jobs[request.id] = job


def _same(one: Constraint | None, other: Constraint) -> bool:
    return one is not None and one.kind is other.kind and one.text == other.text
