"""The backend over exllamav3's generator: requests in, wire events out, one generator step a turn.

What a request is lives in `ticket.py`, how a job serves it in `job.py`, how a failed step is survived in `containment.py`.
This file joins them: who is in the generator, in which order they are prefilled, and what is said after a step.
"""

import time
from pathlib import Path

import torch
from exllamav3.constants import PAGE_SIZE

from daemon.core.pictures import ids_of
from daemon.core.wire import (
    PROTOCOL,
    Answer,
    Durations,
    Event,
    Failed,
    FailureClass,
    FatalClass,
    FinishReason,
    Hello,
    Keep,
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
from daemon.engine.exl3.constraint import GrammarCompiler
from daemon.engine.exl3.containment import Containment, forget
from daemon.engine.exl3.entrance import Entrance, Loaded
from daemon.engine.exl3.faults import describe
from daemon.engine.exl3.job import ServedJob
from daemon.engine.exl3.keeping import Keeping
from daemon.engine.exl3.pace import Pace
from daemon.engine.exl3.thought import Thought
from daemon.engine.exl3.ticket import PROBE, Desk, Standing, Ticket

_BYTES_A_PAGE = 4096
_BEGUN = 8
"""Tokens up to which an answer has only just begun."""


class Exl3Backend:
    """See the module. `reserve` is the answer tokens for which pages are reserved at a time."""

    def __init__(
        self, loaded: Loaded, desk: Desk, pace: Pace, grammars: GrammarCompiler, reserve: int, watch: PrefillWatch
    ) -> None:
        self._loaded = loaded
        self.generator = loaded.generator
        """The library's generator; the thread that calls `step` owns it."""
        self.desk = desk
        """Where the jobs write what happens."""
        self._pace = pace
        self._grammars = grammars
        self._watch = watch
        self._entrance = Entrance(loaded, desk, grammars, reserve, self, watch)
        self._containment = Containment(loaded, desk, pace, self._entrance)
        self._jobs = self._entrance.jobs
        self.keeping = Keeping(self.generator.pagetable, self.generator.recurrent_cache, self._jobs)
        """Which prefixes are evicted last, and which first."""
        self._tickets: dict[int, Ticket] = {}
        self._probes: list[int] = []
        self._arrivals = 0
        self._steps = 0

    def hello(self, boot: str, pid: int) -> Hello:
        """What is loaded."""
        generator = self.generator
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
                vision=self._loaded.gallery is not None,
            ),
            eos=self._loaded.eos,
            vocabulary=self._loaded.vocabulary,
            memory=self._loaded.memory,
        )

    # --- commands ----------------------------------------------------------------------------------------------------

    def submit(self, request: Submit) -> None:
        """Take a request. One that cannot be run is reported as `Failed`."""
        self.cancel(request.id)
        ids = ids_of(request.spans)
        ticket = self._ticket(request, ids)
        self._tickets[request.id] = ticket
        words = [token for span in request.spans if isinstance(span, TokenSpan) for token in span.ids]
        if not words or min(words) < 0 or max(words) >= self._loaded.vocabulary:
            self.desk.fail(ticket, FailureClass.INVALID, "the prompt is empty or holds ids that the model does not have")
        elif request.max_left < 1:
            self.desk.finish(ticket, FinishReason.LENGTH)
        else:
            self._entrance.enter(Standing(ticket, ids, []))
        self._sort_pending()

    def cancel(self, request: int) -> None:
        """Forget a request and free its pages."""
        ticket = self._tickets.pop(request, None)
        if ticket is None:
            return
        ticket.ended = True
        self._entrance.forget(ticket)
        self.desk.events = [event for event in self.desk.events if event.id != request]
        job = self._jobs.pop(request, None)
        if job is not None:
            self.generator.cancel(job)

    def suspend(self, request: int) -> None:
        """Set a request aside at once. What its full pages hold stays in the prefix cache; `job.py` sees to it that a recurrent
        checkpoint stands at the last of them.
        """
        ticket = self._tickets.get(request)
        if ticket is None or ticket.ended:
            return
        kept = 0
        job = self._jobs.get(request)
        if job is None:
            self._entrance.forget(ticket)
        else:
            if job in self.generator.active_jobs:
                job.stash_for_return()
            sequence = job.sequences[0]
            full = sequence.kv_position // PAGE_SIZE
            kept = self._found(job.trail().pages[:full] if sequence.allocated_pages else sequence.page_hashes) * PAGE_SIZE
            self.generator.cancel(job)
        self.desk.set_aside(ticket, kept)

    def steer(self, steer: Steer) -> None:
        """Change prefill order and pace."""
        self._pace.steer(steer)
        for request, rank in steer.ranks.items():
            ticket = self._tickets.get(request)
            if ticket is not None:
                ticket.rank = rank
        self._sort_pending()

    def keep(self, keep: Keep) -> None:
        """Evict the prefixes of these requests last."""
        self.keeping.keep(keep.ids)

    def quote(self, quote: Quote) -> Quoted:
        """What a prompt would cost now. Parts of a page that could be copied are not counted."""
        ids = ids_of(quote.spans)
        if not ids:
            return Quoted(quote.id, 0, 0)
        sequence = ServedJob(input_ids=torch.tensor([ids], dtype=torch.long)).sequences[0]
        sequence.prepare(has_prefix_token=False, max_new_tokens=quote.max_left)
        referenced = self.generator.pagetable.referenced_pages
        held = sum(1 for name in set(sequence.page_hashes) if name in referenced)
        new_pages = len(set(sequence.page_hashes)) + sequence.new_unique_pages - held
        return Quoted(quote.id, new_pages, self._found(sequence.page_hashes) * PAGE_SIZE)

    def _found(self, names: list[bytes]) -> int:
        """Pages at the beginning of a sequence from which a request could go on."""
        table, checkpoints = self.generator.pagetable, self.generator.recurrent_cache
        found = 0
        for place, name in enumerate(names, start=1):
            if table.get_live_page(name) is None:
                break
            if checkpoints is None or checkpoints.has(name):
                found = place
        return found

    def probe(self, probe: int) -> None:
        """Prove that a token can be produced: the next token of anybody, or one of our own where nothing is running."""
        self._probes.append(probe)

    def statistics(self, request: int) -> Statistics:
        """Totals since the start."""
        checkpoints = self.generator.recurrent_cache
        counts = self.desk.counts
        return Statistics(
            id=request,
            steps=self._steps,
            prompt_tokens=counts.prompt_tokens,
            cached_tokens=counts.cached_tokens,
            generated_tokens=counts.generated_tokens,
            evicted_pages=self.generator.pagetable.metrics["evictions_live"],
            checkpoints=0 if checkpoints is None else len(checkpoints),
            checkpoint_bytes=0 if checkpoints is None else checkpoints.current_size,
            resident_bytes=int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _BYTES_A_PAGE,
            accepted=counts.accepted,
            rejected=counts.rejected,
        )

    # --- turns -------------------------------------------------------------------------------------------------------

    def busy(self) -> bool:
        """Whether `step` has anything to do or to report."""
        if self._jobs or self.desk.events or self._probes:
            return True
        return self._grammars.ready() or self._entrance.pictures_ready()

    def in_flight(self) -> tuple[int, ...]:
        """The requests the next step computes for. Those known to wait for room are not among them."""
        return tuple([ticket.id for ticket in self._tickets.values() if not ticket.waiting and ticket.id != PROBE])

    def step(self) -> StepResult:
        """One turn of the generator."""
        if self._entrance.pictures_ready():
            self._entrance.look()
            self._sort_pending()
        if self._grammars.ready():
            for compiled in self._grammars.collect():
                self._entrance.enter_compiled(compiled)
            self._sort_pending()
        if self._probes and not self._jobs:
            self._enter_probe()
        desk = self.desk
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
            pool=self.pool(),
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
        waiting.sort(key=_order)
        decoding = len(active) - len(waiting)
        begun = all(job.ticket.given < _BEGUN for job in active)
        rests = [job.prompt_left() for job in waiting]
        budget = self._pace.budget(decoding, rests, begun=begun)
        for job, rest in zip(waiting, rests, strict=True):
            if budget < min(rest, PAGE_SIZE) or self.desk.lost is not None:
                break
            budget -= self._prefill(job, results, budget)
        self._pace.prefilled(self.desk.prefilled, self.desk.prefill_passes, self.desk.prefill_seconds, decoding)

    def settle(self) -> None:
        """Wait until the device has done what was asked of it."""
        if self._loaded.on_gpu:
            torch.cuda.synchronize()

    def _prefill(self, job: ServedJob, results: list[dict[str, object]], budget: int) -> int:
        self._watch.prefilling(job.ticket.id)
        try:
            return job.run_prefill(results, budget)
        except Exception as problem:  # noqa: BLE001 - written down by the job; the library is told to give it up
            self.generator.reap_failed_job(job, problem, results)
            return 0
        finally:
            self._watch.prefilling(None)

    def _iterate(self) -> None:
        try:
            self.generator.iterate()
        except Exception as problem:  # noqa: BLE001 - sorted by what it means there
            self._containment.recover(problem)
            return
        if self.desk.lost is not None:
            raise EngineFailed(FatalClass.DEVICE, describe(self.desk.lost))
        self._containment.good_step()

    def _settle_accounts(self) -> None:
        """Deal with what the step has left on the desk."""
        desk = self.desk
        for job in self.generator.pending_jobs:
            if isinstance(job, ServedJob):
                self._note_wait(job)
        if desk.spoilt:
            forget(self.generator, desk.spoilt)
            desk.spoilt = []
        if desk.stumbled:
            stumbled, desk.stumbled = desk.stumbled, []
            for ticket in stumbled:
                self._containment.retry_stumbled(ticket)
        if desk.starved:
            starved, desk.starved = desk.starved, []
            for ticket in starved:
                self._containment.retry_starved(ticket)
        for ticket in desk.ended:
            if self._tickets.get(ticket.id) is ticket:
                del self._tickets[ticket.id]
                self._jobs.pop(ticket.id, None)
        desk.ended.clear()

    def _note_wait(self, job: ServedJob) -> None:
        ticket = job.ticket
        if ticket.passed_over and not ticket.waiting:
            self.desk.wait(ticket, job.current_new_pages_required())
        ticket.passed_over = True

    def _events(self) -> list[Event]:
        events = self.desk.take_events()
        return [event for event in events if event.id != PROBE]

    def _answers(self) -> list[Answer]:
        if not self._probes:
            return []
        failed = next((event.detail for event in self.desk.events if isinstance(event, Failed) and event.id == PROBE), "")
        if not self.desk.decoded and not failed:
            return []
        answers: list[Answer] = [Probed(probe, failed) for probe in self._probes]
        self._probes = []
        return answers

    def _phase(self) -> Phase:
        if self.desk.decoded:
            return Phase.DECODE
        return Phase.PREFILL if self.desk.prefilled or self._jobs else Phase.IDLE

    def pool(self) -> Pool:
        """The room now."""
        generator = self.generator
        return Pool(
            pages=generator.pagetable.max_pages,
            referenced=len(generator.pagetable.referenced_pages),
            slots=generator.max_batch_size,
            running=len(generator.active_jobs),
            pending=len(generator.pending_jobs) + self._entrance.waiting,
        )

    # --- jobs --------------------------------------------------------------------------------------------------------

    def _active(self) -> list[ServedJob]:
        return [job for job in self.generator.active_jobs if isinstance(job, ServedJob)]

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
        pending = self.generator.pending_jobs
        if len(pending) > 1:
            pending.sort(key=_order)


def _order(job: object) -> tuple[bool, int, int]:
    """Whoever was generating already goes first, then ranks, then arrival."""
    if not isinstance(job, ServedJob):
        raise TypeError(f"{type(job).__name__} is not a job of ours")
    return (not job.ticket.generating, job.ticket.rank, job.ticket.arrival)
