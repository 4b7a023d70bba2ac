"""A job of exllamav3's generator that serves one ticket: guarded, and lean where the library is general.

Differences from the library's job, each needed by what the engine promises:
1. Whatever fails for this job alone (activation, pages, prefill, filter, sampler, acceptance) ends this job alone. Memory and
   device errors are not caught here: they concern everybody.
2. `receive_sample` reports ids and decodes no text: nothing is held back for half characters or stop strings.
3. `prefill` runs for all jobs in the order and amount the backend decides, once a step.
4. Penalties see the sequence from `Submit.origin` on.
5. On models with recurrent state it has a checkpoint at its last full page while it generates, not only once an interval.
6. A stop inside a thought, or its spent budget, makes the job go on with the ids that close the thought.

The constructor is the library's: a requeued job is constructed again in place, by the library, as the same class. What is
added here (`ticket`, `desk`, `crew`) is set once after construction and survives that.
"""

import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import torch
from exllamav3 import Generator, Job
from exllamav3.cache.recurrent import RecurrentCache
from exllamav3.constants import PAGE_SIZE

from daemon.core.wire import FailureClass, FinishReason
from daemon.engine.exl3.constraint import GrammarBroken
from daemon.engine.exl3.faults import FaultKind, classify, contained, describe
from daemon.engine.exl3.keeping import Keeping, Trail, drop_checkpoint, full_pages
from daemon.engine.exl3.sampler import DRAW_LIMIT, Probabilities
from daemon.engine.exl3.ticket import Desk, Ticket
from daemon.engine.tensors import integers


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a job must end."""

    kind: FailureClass
    detail: str


@dataclass(slots=True)
class Draw:
    """A token that was chosen: where its logits stand in the pass, and what goes with it."""

    row: int
    forced: bool = False
    fault: Fault | None = None
    probabilities: Probabilities | None = None


class JobFault(Exception):
    """Makes the library give a job up that cannot run."""


class Crew(Protocol):
    """What a job asks of the backend that runs it."""

    def prefill_round(self, results: list[dict[str, object]]) -> None:
        """Run this step's prefill for all jobs."""
        ...

    def settle(self) -> None:
        """Wait until queued work is done, so that times mean something."""
        ...

    @property
    def keeping(self) -> Keeping:
        """Who is told which pages a job leaves behind."""
        ...


class ServedJob(Job):
    """See the module."""

    ticket: Ticket
    desk: Desk
    crew: Crew
    vocabulary: int
    fault: Fault | None = None
    draws: deque[Draw]
    """Tokens chosen in this pass and not accepted yet: with drafts several may be chosen before the first is."""
    drawn_in: int = 0
    past: torch.Tensor | None = None
    rolling: bytes | None = None
    """The page whose checkpoint makes room for that of the next one."""
    lasting: int | None = None
    """Where the last checkpoint stands that stays."""

    def serve(self, ticket: Ticket, desk: Desk, crew: Crew, vocabulary: int) -> None:
        """Bind the job to what it works for."""
        self.ticket = ticket
        self.desk = desk
        self.crew = crew
        self.vocabulary = vocabulary
        self.draws = deque()

    def force(self, ids: list[int]) -> None:
        """Make the next tokens of this job be `ids`."""
        if ids:
            self.forced_ids = torch.tensor([ids], dtype=torch.long)
            self.forced_index = 0
            self.forced_ids_device = None

    def forced_left(self) -> list[int]:
        """Forced ids that have not come out yet."""
        if self.forced_ids is None:
            return []
        return integers(self.forced_ids[0, self.forced_index :])

    def prepare_for_queue(self, generator: Generator, serial_number: int, rq: bool = False) -> None:
        """Claim pages for the reserve, or for the rest of the answer where that is less."""
        if self.max_rq_tokens is not None and self.max_new_tokens <= self.max_rq_tokens:
            # The rest of the answer is shorter than the reserve: claim no more pages than it can fill.
            self.max_rq_tokens = None
        super().prepare_for_queue(generator, serial_number, rq)

    # --- starting ----------------------------------------------------------------------------------------------------

    def activate(self) -> None:
        """Take its place in the batch; a grammar keeps the state it has, where the library would reset it."""
        self.logits_device = self.generator.model.output_device
        if self.is_requeued:
            return
        try:
            for grammar in self.filters:
                grammar.attach(self)
        except Exception as problem:
            if not contained(problem):
                raise
            self.fault = Fault(FailureClass.ACTIVATION, describe(problem))

    def allocate_pages(self) -> None:
        """Claim pages, and find what the prefix cache holds."""
        if self.fault is not None:
            self.desk.fail(self.ticket, self.fault.kind, self.fault.detail)
            raise JobFault(self.fault.detail)
        before = self.pagetable.metrics["alloc_kv_only_pages"]
        try:
            super().allocate_pages()
        except Exception as problem:
            self.give_up(problem, FailureClass.ACTIVATION)
            raise
        self.ticket.kv_only = self.pagetable.metrics["alloc_kv_only_pages"] - before
        self.ticket.waiting = False
        self.ticket.passed_over = False

    def trail(self) -> Trail:
        """The full pages it holds."""
        origin = self.ticket.request.origin
        return Trail(full_pages(self.sequences[0].allocated_pages or []), max(0, origin - 1) // PAGE_SIZE)

    def deallocate_pages(self) -> None:
        """Give the pages back: at the end, for a suspension, or to be queued again."""
        ticket = self.ticket
        over = ticket.request.fleeting and ticket.ended
        if self.accepted_draft_tokens or self.rejected_draft_tokens:
            self.desk.drafted(ticket, self.accepted_draft_tokens, self.rejected_draft_tokens)
        self.crew.keeping.leave(ticket.id, self.trail(), new_from=ticket.cached // PAGE_SIZE if over else None)
        super().deallocate_pages()

    # --- recurrent checkpoints ---------------------------------------------------------------------------------------

    def is_checkpoint_boundary(self, override_interval: int | None = None) -> bool:
        """Whether a checkpoint belongs here: while it generates, at every page."""
        if override_interval is None and self.ticket.generating and self.is_prefill_done():
            override_interval = PAGE_SIZE
        return super().is_checkpoint_boundary(override_interval)

    def maybe_stash_recurrent(self, cache: RecurrentCache, interval: int | None = None) -> None:
        """Store the recurrent state where it is time for it."""
        position = self.sequences[0].kv_position
        if position in {0, self.last_recurrent_checkpoint_pos} or not self.is_checkpoint_boundary(interval):
            return
        self.crew.keeping.refresh_checkpoints()
        if self.ticket.generating:
            self._roll(cache, position)
        super().maybe_stash_recurrent(cache, interval)

    def _roll(self, cache: RecurrentCache, position: int) -> None:
        """While it generates, its last page has a checkpoint, so that it can be set aside at once, go on after a fault and be
        taken up by the next turn; of those before it only one an interval stays.
        """
        if self.rolling is not None:
            drop_checkpoint(cache, self.rolling)
            self.rolling = None
        if self.lasting is None:
            self.lasting = self.last_recurrent_checkpoint_pos or self.cached_pages * PAGE_SIZE
        if position - self.lasting >= self.generator.recurrent_checkpoint_interval:
            self.lasting = position
        else:
            self.rolling = (self.sequences[0].allocated_pages or [])[position // PAGE_SIZE - 1].phash

    def stash_for_return(self) -> None:
        """It is about to be set aside: store the recurrent state if it stands at the end of a page."""
        checkpoints = self.generator.recurrent_cache
        if checkpoints is not None:
            self.maybe_stash_recurrent(checkpoints, PAGE_SIZE)

    def give_up(self, problem: Exception, kind: FailureClass) -> None:
        """Write a fault down that the library is about to end this job for."""
        match classify(problem):
            case FaultKind.DEVICE:
                self.desk.lost = problem
            case FaultKind.MEMORY:
                self.desk.starved.append(self.ticket)
            case FaultKind.OTHER if kind is FailureClass.PREFILL and not self.ticket.stumbled:
                self.ticket.stumbled = True
                self.desk.stumbled.append(self.ticket)
            case FaultKind.OTHER:
                self.desk.fail(self.ticket, kind, describe(problem))

    # --- prefill -----------------------------------------------------------------------------------------------------

    def is_prefill_done(self) -> bool:
        """Whether only the last token is left to compute."""
        sequence = self.sequences[0]
        return sequence.kv_position == sequence.sequence_ids.seq_len - 1

    def prompt_left(self) -> int:
        """Tokens of the prompt that are not in the cache."""
        sequence = self.sequences[0]
        return sequence.sequence_ids.seq_len - 1 - sequence.kv_position

    def get_max_seq_len(self) -> int:
        """Tokens of the sequence once it decodes."""
        sequence = self.sequences[0]
        length = sequence.sequence_ids.seq_len
        return length if sequence.kv_position == length - 1 else 0

    def prefill(self, results: list[dict[str, object]], chunk_size: int | None = None) -> None:
        """Called for every job in every step; the first call does the work for all."""
        del chunk_size
        if not self.desk.prefill_done:
            self.desk.prefill_done = True
            self.crew.prefill_round(results)

    def run_prefill(self, results: list[dict[str, object]], limit: int) -> int:
        """Prefill up to `limit` tokens: whole pages, or the rest of the prompt; one page or rest in any case. Gives the number
        computed; cached ones cost nothing.
        """
        began = time.perf_counter()
        computed = 0
        try:
            while not self.is_prefill_done() and (computed == 0 or computed + min(PAGE_SIZE, self.prompt_left()) <= limit):
                computed += self._pass(results, limit - computed)
        except Exception as problem:
            self._distrust_pages()
            self.give_up(problem, FailureClass.PREFILL)
            raise
        finally:
            self.desk.prefill_seconds += time.perf_counter() - began
            self.desk.prefilled += computed
        self._report_prefill()
        return computed

    def _pass(self, results: list[dict[str, object]], limit: int) -> int:
        sequence = self.sequences[0]
        position, cached = sequence.kv_position, self._cached()
        left = self.prompt_left()
        size = -(-left // PAGE_SIZE) * PAGE_SIZE if left <= limit else max(PAGE_SIZE, limit // PAGE_SIZE * PAGE_SIZE)
        self.desk.prefill_passes += 1
        super().prefill(results, None if size >= self.generator.max_chunk_size else size)
        self.crew.settle()
        advanced = sequence.kv_position - position
        if advanced <= 0:
            raise JobFault(f"prefill stands still at token {position}")
        return advanced - (self._cached() - cached)

    def _cached(self) -> int:
        return self.cached_pages * PAGE_SIZE + self.cached_tokens

    def report_started(self) -> None:
        """Say that the request holds its pages, with what the prefix cache saved. Once an attempt."""
        if not self.ticket.started:
            self.desk.start(self.ticket, self._cached(), self.total_pages - self.cached_pages, PAGE_SIZE)

    def _report_prefill(self) -> None:
        self.report_started()
        if not self.is_requeued:
            self.desk.prefilling(self.ticket, self.sequences[0].kv_position, len(self.ticket.ids) - 1)

    def _distrust_pages(self) -> None:
        """After a failed pass, pages from here on hold neither what they held before nor what they should.

        The library would give such a page its old name back, and with it a prefix that others may find.
        """
        sequence = self.sequences[0]
        for page in (sequence.allocated_pages or [])[sequence.kv_position // PAGE_SIZE :]:
            if page.ref_count == 1:
                page.can_revert = False

    # --- one token ---------------------------------------------------------------------------------------------------

    def prepare_logit_mask(self) -> None:
        """Put the masks of grammar and minimum length together."""
        if not self.filters and self.new_tokens >= self.min_new_tokens:
            self.device_logit_mask = None
            return
        try:
            super().prepare_logit_mask()
        except Exception as problem:
            if not contained(problem):
                raise
            self.fault = Fault(FailureClass.CONSTRAINT, describe(problem))
            self.filter_futures.clear()
            self.logit_masks.clear()
            self.device_logit_mask = None

    def prepare_sampling_past_ids(self) -> None:
        """Give the sampler what was generated, without the prompt."""
        if not self.sampler.reqs_past_ids:
            return
        generated = self.sequences[0].sequence_ids.torch()[:, self.ticket.request.origin :]
        device = self.logits_device
        if device is None or device.type == "cpu":
            self.current_device_ids = generated
            return
        length = generated.shape[-1]
        if self.past is None or self.past.shape[-1] < length:
            self.past = torch.empty((1, length + self.max_new_tokens + PAGE_SIZE), dtype=torch.long, pin_memory=True)
        self.past[:, :length].copy_(generated)
        self.current_device_ids = self.past[:, :length].to(device, non_blocking=True)

    def receive_logits(
        self, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """Choose a token from logits of shape (1, 1, padded vocabulary)."""
        desk = self.desk
        if self.drawn_in != desk.passes:
            self.drawn_in = desk.passes
            self.draws.clear()
        draw = Draw(desk.row_of(logits), fault=self.fault)
        self.draws.append(draw)
        if draw.fault is None:
            try:
                return self._choose(logits, draw), None, None, None
            except Exception as problem:
                if not contained(problem):
                    raise
                draw.fault = Fault(FailureClass.SAMPLING, describe(problem))
        return torch.zeros((1, 1), dtype=torch.long), None, None, None

    def _choose(self, logits: torch.Tensor, draw: Draw) -> torch.Tensor:
        wanted = self.ticket.request.logprobs
        if wanted is not None:
            draw.probabilities = Probabilities(logits, self.vocabulary, wanted)
        number = self.rng.randint(0, DRAW_LIMIT)
        if self.forced_ids is not None:
            # A draw is spent on it all the same: a token delivered is a draw made, which a resume relies on.
            draw.forced = True
            return self._pop_forced_token(logits.device)
        return self.sampler.forward(
            logits, self.current_device_ids, number, self.generator.tokenizer, logit_mask=self.device_logit_mask
        )

    def receive_sample(
        self,
        logits: torch.Tensor | None,
        next_token: torch.Tensor,
        next_k_tokens: torch.Tensor | None,
        next_k_probs: torch.Tensor | None,
        next_prob: torch.Tensor | None,
        results: list[dict[str, object]],
        first_sample_in_sd_batch: bool = True,
    ) -> tuple[bool, torch.Tensor, bool]:
        """Accept the chosen token. Gives whether the job is over, the token, and whether it must be queued again for pages."""
        del logits, next_k_tokens, next_k_probs, next_prob, results, first_sample_in_sd_batch
        try:
            return self._accept(next_token)
        except GrammarBroken as problem:
            self.desk.fail(self.ticket, FailureClass.CONSTRAINT, str(problem))
        except Exception as problem:
            if not contained(problem):
                raise
            self.desk.fail(self.ticket, FailureClass.INTERNAL, describe(problem))
        return True, next_token, False

    def _accept(self, chosen: torch.Tensor) -> tuple[bool, torch.Tensor, bool]:
        ticket, desk = self.ticket, self.desk
        draw = self.draws.popleft()
        fault = draw.fault
        if fault is None and not desk.is_finite(draw.row):
            fault = Fault(FailureClass.NOT_FINITE, "the model gave logits that are not numbers")
            desk.spoilt.extend(page for page in self.sequences[0].allocated_pages or [] if page.ref_count == 1)
        if fault is not None:
            desk.fail(ticket, fault.kind, fault.detail)
            return True, chosen, False
        forced = draw.forced
        if self.forced_ids is not None and not forced:
            # Chosen together with the token that made the thought be closed, before that was known.
            chosen, forced = self._pop_forced_token(chosen.device), True
        elif ticket.thought is not None and not forced:
            chosen, forced = self._think(ticket, chosen)
        chosen = chosen.cpu()
        token = int(chosen.item())
        self._append(chosen)
        desk.token(ticket, token, None if draw.probabilities is None else draw.probabilities.of(token))
        complete = ticket.grammar is not None and ticket.grammar.advance(token, forced=forced)
        reason = self._ending(token, forced=forced, complete=complete)
        if reason is not None:
            desk.finish(ticket, reason)
            return True, chosen, False
        return False, chosen, self.max_rq_tokens is not None and self.new_tokens > self.max_rq_tokens - self.rq_margin

    def _think(self, ticket: Ticket, chosen: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Follow the thought, and its beginning where the model opens it. A stop inside it is replaced by the first of the ids
        that close it; says whether it was.
        """
        thought = ticket.thought
        if thought is None or thought.over:
            return chosen, False
        token = int(chosen.item())
        if token in ticket.stops and thought.closes_on_stop():
            first, *rest = thought.close()
            self.force(rest)
            return torch.tensor([[first]], dtype=torch.long), True
        thought.feed(token)
        if thought.spent:
            self.force(thought.close())
        return chosen, False

    def _append(self, chosen: torch.Tensor) -> None:
        self.new_tokens += 1
        sequence = self.sequences[0]
        sequence.sequence_ids.append(chosen)
        sequence.kv_position += 1
        if sequence.kv_position % PAGE_SIZE == 0:
            self.hash_completed_page(sequence, sequence.kv_position // PAGE_SIZE - 1)

    def _ending(self, token: int, *, forced: bool, complete: bool) -> FinishReason | None:
        if token in self.ticket.stops and not forced:
            return FinishReason.STOP
        if complete:
            return FinishReason.CONSTRAINT
        if self.new_tokens >= self.max_new_tokens:
            return FinishReason.LENGTH
        return None
