"""The way of a request into the generator: its pictures, its grammar, its sampler, its job. Used for new requests and for those
that go on after a contained fault.
"""

import logging
from dataclasses import dataclass, field

import torch
from exllamav3 import Generator, Tokenizer

from daemon.core.wire import Constraint, DeviceMemory, FailureClass, FatalClass
from daemon.engine.backend import EngineFailed, PrefillWatch
from daemon.engine.exl3.constraint import Compiled, GrammarBroken, GrammarCompiler, GrammarFilter
from daemon.engine.exl3.faults import FaultKind, classify, describe
from daemon.engine.exl3.job import Crew, ServedJob
from daemon.engine.exl3.sampler import build_sampler, seeded
from daemon.engine.exl3.ticket import Desk, Standing, Ticket
from daemon.engine.exl3.vision import Gallery, Patches

_log = logging.getLogger(__name__)


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
    gallery: Gallery | None = None
    """Looks at pictures; None where no vision tower is loaded."""


class Entrance:
    """Makes jobs of tickets. `reserve` is the answer tokens for which pages are reserved at a time."""

    def __init__(
        self, loaded: Loaded, desk: Desk, grammars: GrammarCompiler, reserve: int, crew: Crew, watch: PrefillWatch
    ) -> None:
        self._loaded = loaded
        self._watch = watch
        self._desk = desk
        self._grammars = grammars
        self._reserve = reserve
        self._crew = crew
        self._compiling: list[Standing] = []
        self._looking: list[Standing] = []
        self.jobs: dict[int, ServedJob] = {}
        """The jobs in the generator, by request."""

    @property
    def waiting(self) -> int:
        """Requests whose grammar is being compiled, or whose pictures are looked at."""
        return len(self._compiling) + len(self._looking)

    def forget(self, ticket: Ticket) -> None:
        """Do not let a request in whose grammar is being compiled, or whose pictures are looked at."""
        self._compiling = [waiting for waiting in self._compiling if waiting.ticket is not ticket]
        self._looking = [waiting for waiting in self._looking if waiting.ticket is not ticket]

    def enter(self, standing: Standing) -> None:
        """Bring a request into the generator, now or when its pictures are known and its grammar is compiled."""
        if self._knows_pictures(standing.ticket):
            self._enter_seen(standing)
        elif not standing.ticket.ended:
            self._looking.append(standing)

    def pictures_ready(self) -> bool:
        """Whether `look` has something to do."""
        return self._loaded.gallery is not None and self._loaded.gallery.ready()

    def look(self) -> None:
        """Look at one picture and let in who waited for nothing else. Raises EngineFailed where the device is lost."""
        gallery = self._loaded.gallery
        if gallery is None or not gallery.ready():
            return
        read = gallery.take()
        waiting = [standing.ticket for standing in self._looking if _shows(standing.ticket, read.digest)]
        if not waiting:
            return
        if read.patches is None:
            for ticket in waiting:
                self._desk.fail(ticket, FailureClass.INVALID, f"{_named(ticket, read.digest)} cannot be read: {read.problem}")
        else:
            self._look_at(gallery, read.digest, read.patches, waiting)
        found, self._looking = self._looking, []
        for standing in found:
            if not standing.ticket.ended:
                self.enter(standing)

    def _look_at(self, gallery: Gallery, digest: str, patches: Patches, waiting: list[Ticket]) -> None:
        """Run the tower; what goes wrong with that picture ends the requests that show it."""
        self._watch.prefilling(waiting[0].id)
        try:
            seen = gallery.look(digest, patches)
        except Exception as problem:
            match classify(problem):
                case FaultKind.DEVICE:
                    raise EngineFailed(FatalClass.DEVICE, describe(problem)) from problem
                case FaultKind.MEMORY:
                    kind = FailureClass.MEMORY
                case FaultKind.OTHER:
                    kind = FailureClass.PREFILL
            _log.exception("the vision tower failed")
            for ticket in waiting:
                self._desk.fail(ticket, kind, f"{_named(ticket, digest)} cannot be looked at: {describe(problem)}")
        else:
            for ticket in waiting:
                ticket.looked_at[digest] = seen
        finally:
            self._watch.prefilling(None)

    def _knows_pictures(self, ticket: Ticket) -> bool:
        """Whether all its pictures were looked at; if not, that begins now."""
        gallery, missing = self._loaded.gallery, False
        for span in ticket.pictures:
            if span.digest in ticket.looked_at:
                continue
            seen = None if gallery is None else gallery.find(span.digest)
            if seen is not None:
                ticket.looked_at[span.digest] = seen
            elif gallery is None:
                self._desk.fail(ticket, FailureClass.UNSUPPORTED, "the loaded model does not take pictures (engine.vision)")
                return False
            else:
                gallery.start(span)
                missing = True
        return not missing

    def _enter_seen(self, standing: Standing) -> None:
        ticket = standing.ticket
        for span in ticket.pictures:
            counted = ticket.looked_at[span.digest].mm_length
            if counted != span.tokens:
                words = f"{_named(ticket, span.digest)} takes {counted} tokens and was counted as {span.tokens}"
                self._desk.fail(ticket, FailureClass.INTERNAL, words)
                return
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
                embeddings=list(ticket.looked_at.values()),
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


def _shows(ticket: Ticket, digest: str) -> bool:
    return any(span.digest == digest for span in ticket.pictures)


def _named(ticket: Ticket, digest: str) -> str:
    """A picture as whoever sent it knows it."""
    digests = [span.digest for span in ticket.pictures]
    return f"picture {digests.index(digest) + 1} of {len(digests)}"
