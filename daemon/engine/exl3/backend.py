"""The backend over exllamav3's generator: requests in, wire events out, one generator step a turn.

What a request is lives in `ticket.py`, how a job serves it in `job.py`, how a failed step is survived in `containment.py`.
This file joins them: who is in the generator, in which order they are prefilled, and what is said after a step.
"""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from exllamav3 import Generator, Tokenizer
from exllamav3.constants import PAGE_SIZE

from daemon.core.wire import (
    PROTOCOL,
    Answer,
    Constraint,
    Durations,
    Event,
    Failed,
    FailureClass,
    FatalClass,
    FinishReason,
    Hello,
    Limits,
    Phase,
    Pool,
    Probed,
    Quote,
    Quoted,
    Sampler,
    Statistics,
    Steer,
    Submit,
    TokenSpan,
)
from daemon.engine.backend import EngineFailed, PrefillWatch, StepResult
from daemon.engine.exl3.constraint import Compiled, GrammarBroken, GrammarCompiler, GrammarFilter
from daemon.engine.exl3.containment import BatchLimit, Survivor, forget, survivors
from daemon.engine.exl3.faults import FaultKind, classify, describe
from daemon.engine.exl3.job import ServedJob
from daemon.engine.exl3.pace import Pace
from daemon.engine.exl3.sampler import build_sampler, seeded
from daemon.engine.exl3.thought import Thought
from daemon.engine.exl3.ticket import PROBE, Desk, Ticket, flatten
from daemon.engine.tensors import integers

_log = logging.getLogger(__name__)

_BYTES_A_PAGE = 4096


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


class Exl3Backend:
    """See the module. `reserve` is the answer tokens for which pages are reserved at a time."""

    def __init__(
        self, loaded: Loaded, desk: Desk, pace: Pace, grammars: GrammarCompiler, reserve: int, watch: PrefillWatch
    ) -> None:
        self._loaded = loaded
        self._generator = loaded.generator
        self._desk = desk
        self._pace = pace
        self._grammars = grammars
        self._reserve = reserve
        self._watch = watch
        self._limit = BatchLimit(loaded.generator)
        self._jobs: dict[int, ServedJob] = {}
        self._tickets: dict[int, Ticket] = {}
        self._compiling: list[Survivor] = []
        self._probes: list[int] = []
        self._arrivals = 0
        self._steps = 0
        self._failures = 0

    def hello(self, boot: str, pid: int) -> Hello:
        """What is loaded."""
        generator = self._generator
        return Hello(
            protocol=PROTOCOL,
            boot=boot,
            pid=pid,
            backend=self._loaded.backend,
            architecture=self._loaded.architecture,
            limits=Limits(
                page=PAGE_SIZE,
                pages=generator.pagetable.max_pages,
                slots=generator.max_batch_size,
                interval=generator.recurrent_checkpoint_interval if generator.recurrent_cache is not None else 0,
                max_batch=generator.max_batch_size,
            ),
            eos=self._loaded.eos,
            vocabulary=self._loaded.vocabulary,
        )

    # --- commands ----------------------------------------------------------------------------------------------------

    def submit(self, request: Submit) -> None:
        """Take a request. One that cannot be run is reported as `Failed`."""
        self.cancel(request.id)
        ids = flatten(request.spans)
        ticket = self._ticket(request, ids or [])
        self._tickets[request.id] = ticket
        if ids is None:
            self._desk.fail(ticket, FailureClass.UNSUPPORTED, "the loaded model does not take images")
        elif not ids or min(ids) < 0 or max(ids) >= self._loaded.vocabulary:
            self._desk.fail(ticket, FailureClass.INVALID, "the prompt is empty or holds ids that the model does not have")
        elif request.max_left < 1:
            self._desk.finish(ticket, FinishReason.LENGTH)
        else:
            self._enter(Survivor(ticket, ids, []))
        self._sort_pending()

    def cancel(self, request: int) -> None:
        """Forget a request and free its pages."""
        ticket = self._tickets.pop(request, None)
        if ticket is None:
            return
        ticket.ended = True
        self._compiling = [waiting for waiting in self._compiling if waiting.ticket is not ticket]
        self._desk.events = [event for event in self._desk.events if event.id != request]
        job = self._jobs.pop(request, None)
        if job is not None:
            self._generator.cancel(job)

    def suspend(self, request: int) -> None:
        """Run a request to its next page boundary and set it aside."""
        ticket = self._tickets.get(request)
        if ticket is None or ticket.ended:
            return
        ticket.suspending = True
        job = self._jobs.get(request)
        if job is None:
            self._compiling = [waiting for waiting in self._compiling if waiting.ticket is not ticket]
            self._desk.set_aside(ticket, 0)
        elif job in self._generator.pending_jobs or job.sequences[0].kv_position % PAGE_SIZE == 0:
            self._park(ticket, job)

    def steer(self, steer: Steer) -> None:
        """Change prefill order and pace."""
        self._pace.steer(steer)
        for request, rank in steer.ranks.items():
            ticket = self._tickets.get(request)
            if ticket is not None:
                ticket.rank = rank
        self._sort_pending()

    def quote(self, quote: Quote) -> Quoted:
        """What a prompt would cost now. Parts of a page that could be copied are not counted."""
        ids = flatten(quote.spans)
        if not ids:
            return Quoted(quote.id, 0, 0)
        sequence = ServedJob(input_ids=torch.tensor([ids], dtype=torch.long)).sequences[0]
        sequence.prepare(has_prefix_token=False, max_new_tokens=quote.max_left)
        table, checkpoints = self._generator.pagetable, self._generator.recurrent_cache
        held = sum(1 for name in set(sequence.page_hashes) if name in table.referenced_pages)
        cached = 0
        for index, name in enumerate(sequence.page_hashes):
            if table.get_live_page(name) is None:
                break
            if checkpoints is None or checkpoints.has(name):
                cached = index + 1
        return Quoted(quote.id, len(set(sequence.page_hashes)) + sequence.new_unique_pages - held, cached * PAGE_SIZE)

    def probe(self, probe: int) -> None:
        """Prove that a token can be produced: the next token of anybody, or one of our own where nothing is running."""
        self._probes.append(probe)

    def statistics(self, request: int) -> Statistics:
        """Totals since the start."""
        checkpoints = self._generator.recurrent_cache
        counts = self._desk.counts
        return Statistics(
            id=request,
            steps=self._steps,
            prompt_tokens=counts.prompt_tokens,
            cached_tokens=counts.cached_tokens,
            generated_tokens=counts.generated_tokens,
            evicted_pages=self._generator.pagetable.metrics["evictions_live"],
            checkpoints=0 if checkpoints is None else len(checkpoints),
            checkpoint_bytes=0 if checkpoints is None else checkpoints.current_size,
            resident_bytes=int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _BYTES_A_PAGE,
        )

    # --- turns -------------------------------------------------------------------------------------------------------

    def busy(self) -> bool:
        """Whether `step` has anything to do or to report."""
        return bool(self._jobs or self._desk.events or self._probes or self._grammars.ready())

    def in_flight(self) -> tuple[int, ...]:
        """The requests the next step computes for. Those known to wait for room are not among them."""
        return tuple([ticket.id for ticket in self._tickets.values() if not ticket.waiting and ticket.id != PROBE])

    def step(self) -> StepResult:
        """One turn of the generator."""
        for compiled in self._grammars.collect():
            self._enter_compiled(compiled)
        if self._probes and not self._jobs:
            self._enter_probe()
        desk = self._desk
        desk.begin_step()
        began = time.perf_counter()
        if self._jobs:
            self._iterate()
        decode = time.perf_counter() - began - desk.prefill_seconds
        if desk.decoded:
            self._pace.decoded(decode)
            desk.counts.generated_tokens += desk.decoded
        self._settle_accounts()
        self._steps += 1
        answers = self._answers()
        return StepResult(
            phase=self._phase(),
            pool=self._pool(),
            durations=Durations(
                prefill=desk.prefill_seconds,
                decode=decode if desk.decoded else 0.0,
                prefill_tokens=desk.prefilled,
                decode_tokens=desk.decoded,
            ),
            events=self._events(),
            answers=answers,
        )

    def rows(self) -> list[Ticket]:
        """The tickets of the next decode pass, in the order of its rows."""
        return [job.ticket for job in self._active() if job.is_prefill_done()]

    def prefill_round(self, results: list[dict[str, object]]) -> None:
        """Prefill in the order of ranks, as much as the pace allows. Called by the first job of a step."""
        active = self._active()
        waiting = [job for job in active if not job.is_prefill_done()]
        for job in active:
            if not job.ticket.started and job.is_prefill_done():
                job.report_started()
        if not waiting:
            return
        waiting.sort(key=lambda job: (not job.ticket.started, job.ticket.rank, job.ticket.arrival))
        decoding = len(active) - len(waiting)
        budget = self._pace.budget(decoding)
        for job in waiting:
            if budget <= 0:
                break
            if not job.ticket.suspending:
                budget -= self._prefill(job, results, budget)
        self._pace.prefilled(self._desk.prefilled, self._desk.prefill_seconds, decoding)

    def settle(self) -> None:
        """Wait until the device has done what was asked of it."""
        if self._loaded.on_gpu:
            torch.cuda.synchronize()

    def _prefill(self, job: ServedJob, results: list[dict[str, object]], budget: int) -> int:
        self._watch.prefilling(job.ticket.id)
        try:
            return job.run_prefill(results, budget)
        except Exception as problem:  # noqa: BLE001 - written down by the job; the library is told to give it up
            self._generator.reap_failed_job(job, problem, results)
            return 0
        finally:
            self._watch.prefilling(None)

    def _iterate(self) -> None:
        try:
            self._generator.iterate()
        except Exception as problem:  # noqa: BLE001 - sorted by what it means in _recover
            self._recover(problem)
            return
        if self._desk.lost is not None:
            raise EngineFailed(FatalClass.DEVICE, describe(self._desk.lost))
        self._failures = 0
        self._limit.good_step()

    def _settle_accounts(self) -> None:
        """Deal with what the step has left on the desk."""
        desk = self._desk
        for job in self._generator.pending_jobs:
            if isinstance(job, ServedJob):
                self._note_wait(job)
        if desk.spoilt:
            forget(self._generator, desk.spoilt)
            desk.spoilt = []
        if desk.starved:
            starved, desk.starved = desk.starved, []
            for ticket in starved:
                self._retry_starved(ticket)
        self._park_all()
        for ticket in desk.ended:
            if self._tickets.get(ticket.id) is ticket:
                del self._tickets[ticket.id]
                self._jobs.pop(ticket.id, None)
        desk.ended.clear()

    def _park_all(self) -> None:
        parked, self._desk.parked = self._desk.parked, []
        for ticket in parked:
            if not ticket.ended:
                self._park(ticket, self._jobs[ticket.id])

    def _note_wait(self, job: ServedJob) -> None:
        ticket = job.ticket
        if ticket.passed_over and not ticket.waiting:
            self._desk.wait(ticket, job.current_new_pages_required())
        ticket.passed_over = True

    def _events(self) -> list[Event]:
        events = self._desk.take_events()
        return [event for event in events if event.id != PROBE]

    def _answers(self) -> list[Answer]:
        if not self._probes:
            return []
        failed = next((event.detail for event in self._desk.events if isinstance(event, Failed) and event.id == PROBE), "")
        if not self._desk.decoded and not failed:
            return []
        answers: list[Answer] = [Probed(probe, failed) for probe in self._probes]
        self._probes = []
        return answers

    def _phase(self) -> Phase:
        if self._desk.decoded:
            return Phase.DECODE
        return Phase.PREFILL if self._desk.prefilled or self._jobs else Phase.IDLE

    def _pool(self) -> Pool:
        generator = self._generator
        return Pool(
            pages=generator.pagetable.max_pages,
            referenced=len(generator.pagetable.referenced_pages),
            slots=generator.max_batch_size,
            running=len(generator.active_jobs),
            pending=len(generator.pending_jobs) + len(self._compiling),
        )

    # --- jobs --------------------------------------------------------------------------------------------------------

    def _active(self) -> list[ServedJob]:
        return [job for job in self._generator.active_jobs if isinstance(job, ServedJob)]

    def _ticket(self, request: Submit, ids: list[int]) -> Ticket:
        self._arrivals += 1
        delivered = ids[request.origin :]
        return Ticket(
            request=request,
            ids=ids,
            arrival=self._arrivals,
            rank=request.rank,
            stops=frozenset(request.stop_ids),
            position=len(ids),
            thought=None if request.reasoning is None else Thought(request.reasoning, delivered),
        )

    def _enter(self, survivor: Survivor) -> None:
        """Bring a request into the generator, now or when its grammar is compiled."""
        constraint = survivor.ticket.request.constraint
        if constraint is None:
            self._enqueue(survivor, None)
            return
        matcher = self._grammars.find(constraint)
        if matcher is None:
            self._compiling.append(survivor)
            self._grammars.start(constraint)
            return
        self._enter_constrained(survivor, Compiled(constraint, matcher))

    def _enter_compiled(self, compiled: Compiled) -> None:
        same, self._compiling = (
            [waiting for waiting in self._compiling if _same(waiting.ticket.request.constraint, compiled.constraint)],
            [waiting for waiting in self._compiling if not _same(waiting.ticket.request.constraint, compiled.constraint)],
        )
        for survivor in same:
            self._enter_constrained(survivor, compiled)
        self._sort_pending()

    def _enter_constrained(self, survivor: Survivor, compiled: Compiled) -> None:
        ticket = survivor.ticket
        constraint = ticket.request.constraint
        if compiled.matcher is None or constraint is None:
            self._desk.fail(ticket, FailureClass.INVALID, f"the grammar does not compile: {compiled.problem}")
            return
        close_ids = [] if ticket.request.reasoning is None else ticket.request.reasoning.close_ids
        grammar = self._grammars.filter(compiled.matcher.deep_copy(), constraint, close_ids)
        try:
            grammar.replay(survivor.ids[ticket.request.origin :])
        except GrammarBroken as problem:
            self._desk.fail(ticket, FailureClass.CONSTRAINT, str(problem))
            return
        self._enqueue(survivor, grammar)

    def _enqueue(self, survivor: Survivor, grammar: GrammarFilter | None) -> None:
        ticket, request = survivor.ticket, survivor.ticket.request
        done = len(survivor.ids) - len(ticket.ids)
        ticket.grammar = grammar
        try:
            job = ServedJob(
                input_ids=torch.tensor([survivor.ids], dtype=torch.long),
                max_new_tokens=request.max_left - done,
                min_new_tokens=max(0, request.min_left - done),
                sampler=build_sampler(request.sampler, self._loaded.tokenizer),
                stop_conditions=request.stop_ids,
                filters=[] if grammar is None else [grammar],
                max_rq_tokens=self._reserve,
            )
            job.serve(ticket, self._desk, self, self._loaded.vocabulary)
            job.rng = seeded(request.seed, request.draws + done)
            job.force(survivor.forced)
            if ticket.thought is not None and ticket.thought.spent:
                job.force(ticket.thought.close())
            self._generator.enqueue(job)
        except (ValueError, AssertionError) as problem:
            self._desk.fail(ticket, FailureClass.INVALID, describe(problem))
            return
        self._jobs[request.id] = job

    def _enter_probe(self) -> None:
        request = Submit(
            id=PROBE,
            attempt=1,
            spans=[TokenSpan([next(iter(self._loaded.eos), 0)])],
            origin=1,
            max_left=1,
            sampler=Sampler(temperature=0.0),
        )
        self.submit(request)

    def _sort_pending(self) -> None:
        """Requests that were running go first, then ranks, then arrival."""
        pending = self._generator.pending_jobs
        if len(pending) > 1:
            pending.sort(key=_queue_order)

    def _park(self, ticket: Ticket, job: ServedJob) -> None:
        sequence = job.sequences[0]
        checkpoints = self._generator.recurrent_cache
        if job in self._generator.active_jobs:
            kept = sequence.kv_position
            if checkpoints is not None:
                job.maybe_stash_recurrent(checkpoints, PAGE_SIZE)
        else:
            kept = (len(sequence.sequence_ids) - 1) // PAGE_SIZE * PAGE_SIZE if ticket.started else 0
        self._generator.cancel(job)
        self._desk.set_aside(ticket, kept)

    # --- faults ------------------------------------------------------------------------------------------------------

    def _recover(self, problem: Exception) -> None:
        kind = classify(problem)
        if kind is FaultKind.DEVICE:
            raise EngineFailed(FatalClass.DEVICE, describe(problem)) from problem
        _log.error("a step failed and is contained: %s", describe(problem), exc_info=problem)
        running = [job.ticket for job in self._active() if not job.ticket.ended]
        found = survivors(self._generator)
        newest = max(running, key=lambda ticket: ticket.arrival, default=None)
        if kind is FaultKind.MEMORY:
            self._free_memory()
            if newest is not None and len(running) == 1:
                self._desk.fail(newest, FailureClass.MEMORY, describe(problem))
            self._limit.lower(len(running))
        else:
            self._failures += 1
            if self._failures > 1 and newest is not None:
                self._desk.fail(newest, FailureClass.INTERNAL, describe(problem))
                self._failures = 0
        for survivor in found:
            self._jobs.pop(survivor.ticket.id, None)
            if not survivor.ticket.ended:
                self._enter(survivor)

    def _retry_starved(self, ticket: Ticket) -> None:
        """A prompt that ran out of memory tries again in smaller chunks, or with fewer beside it."""
        job = self._jobs.pop(ticket.id, None)
        if job is None or ticket.ended:
            return
        self._free_memory()
        others = len(self._generator.active_jobs)
        smaller = self._pace.shrink()
        if not smaller and others:
            self._limit.lower(others + 1)
        if smaller or others:
            self._enter(Survivor(ticket, integers(job.sequences[0].sequence_ids.torch()), job.forced_left()))
        else:
            self._desk.fail(ticket, FailureClass.MEMORY, "out of memory in the prompt's smallest chunk, with nothing beside it")

    def _free_memory(self) -> None:
        if self._loaded.on_gpu:
            torch.cuda.empty_cache()


def _same(one: Constraint | None, other: Constraint) -> bool:
    return one is not None and one.kind is other.kind and one.text == other.text


def _queue_order(job: object) -> tuple[bool, int, int]:
    if not isinstance(job, ServedJob):
        raise TypeError(f"{type(job).__name__} is not a job of ours")
    return (not job.ticket.started, job.ticket.rank, job.ticket.arrival)
