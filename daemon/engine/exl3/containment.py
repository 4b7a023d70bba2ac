"""Bringing a generator back after an exception has come out of a step. The process and its prefix cache stay.

1. A device error is not contained: the process ends.
2. Everything is cancelled, after noting where each request stands. Retrying the step itself would corrupt every stream.
3. Pages that a failed pass may have left half written lose their content, so that no later request finds it.
4. Memory was short: one request fewer at a time from now on; the newest wait. A request that was alone cannot run at all.
   The limit rises again after `PROBATION` good steps.
5. Anything else, for the second time in a row without a good step in between: the newest request is taken for the cause and
   ends; the others try again.
6. The rest is submitted again, oldest first, from its prompt and what was generated.
"""

import logging

import torch
from exllamav3 import Generator
from exllamav3.constants import PAGE_SIZE
from exllamav3.generator.pagetable import CachePage

from daemon.core.wire import FailureClass, FatalClass
from daemon.engine.backend import EngineFailed
from daemon.engine.exl3.entrance import Entrance, Loaded
from daemon.engine.exl3.faults import FaultKind, classify, describe
from daemon.engine.exl3.job import ServedJob
from daemon.engine.exl3.keeping import drop_checkpoint
from daemon.engine.exl3.pace import Pace
from daemon.engine.exl3.ticket import Desk, Standing, Ticket
from daemon.engine.tensors import integers

_log = logging.getLogger(__name__)

PROBATION = 512
"""Steps without shortage of memory after which one more request is allowed again."""


def survivors(generator: Generator) -> list[Standing]:
    """Cancel every job and give back what it needs to go on, oldest first."""
    jobs = [job for job in [*generator.active_jobs, *generator.pending_jobs] if isinstance(job, ServedJob)]
    found = [
        Standing(job.ticket, integers(job.sequences[0].sequence_ids.torch()), job.forced_left())
        for job in jobs
        if not job.ticket.ended
    ]
    dirty = [page for job in generator.active_jobs for page in _half_written(job)]
    for job in jobs:
        generator.cancel(job)
    forget(generator, dirty)
    return sorted(found, key=lambda standing: standing.ticket.arrival)


def _half_written(job: object) -> list[CachePage]:
    """The page a decode pass was writing, and whatever a prefill pass may have begun."""
    if not isinstance(job, ServedJob):
        return []
    sequence = job.sequences[0]
    pages = sequence.allocated_pages or []
    return [page for page in pages[sequence.kv_position // PAGE_SIZE :] if page.ref_count == 1]


def forget(generator: Generator, pages: list[CachePage]) -> None:
    """Make pages that nobody holds empty, and drop recurrent checkpoints that stand on them."""
    checkpoints = generator.recurrent_cache
    for page in pages:
        if page.ref_count:
            continue
        if checkpoints is not None:
            drop_checkpoint(checkpoints, page.phash)
        page.clear()


class BatchLimit:
    """How many requests may run together, lowered while memory is short."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._most = generator.max_batch_size
        self._good = 0

    def lower(self, running: int) -> None:
        """Memory was short with `running` requests."""
        self._generator.max_batch_size = max(1, min(self._generator.max_batch_size, running - 1))
        self._good = 0

    def good_step(self) -> None:
        """A step went well."""
        if self._generator.max_batch_size >= self._most:
            return
        self._good += 1
        if self._good >= PROBATION:
            self._good = 0
            self._generator.max_batch_size += 1


class Containment:
    """Carries out what the module says. `entrance` lets the survivors in again."""

    def __init__(self, loaded: Loaded, desk: Desk, pace: Pace, entrance: Entrance) -> None:
        self._loaded = loaded
        self._generator = loaded.generator
        self._desk = desk
        self._pace = pace
        self._entrance = entrance
        self._limit = BatchLimit(loaded.generator)
        self._failures = 0

    def good_step(self) -> None:
        """A step went well."""
        self._failures = 0
        self._limit.good_step()

    def recover(self, problem: Exception) -> None:
        """Survive an exception out of a step. Raises EngineFailed where the device is lost."""
        kind = classify(problem)
        if kind is FaultKind.DEVICE:
            raise EngineFailed(FatalClass.DEVICE, describe(problem)) from problem
        _log.error("a step failed and is contained: %s", describe(problem), exc_info=problem)
        running = [job.ticket for job in self._generator.active_jobs if isinstance(job, ServedJob) and not job.ticket.ended]
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
        for standing in found:
            self._entrance.jobs.pop(standing.ticket.id, None)
            if not standing.ticket.ended:
                self._entrance.enter(standing)

    def retry_stumbled(self, ticket: Ticket) -> None:
        """A prompt whose pass failed is begun once more, from the pages that were sound: like a decode pass that failed once."""
        job = self._entrance.jobs.pop(ticket.id, None)
        if job is not None and not ticket.ended:
            self._entrance.enter(Standing(ticket, integers(job.sequences[0].sequence_ids.torch()), job.forced_left()))

    def retry_starved(self, ticket: Ticket) -> None:
        """A prompt that ran out of memory tries again in smaller chunks, or with fewer beside it."""
        job = self._entrance.jobs.pop(ticket.id, None)
        if job is None or ticket.ended:
            return
        self._free_memory()
        others = len(self._generator.active_jobs)
        smaller = self._pace.shrink()
        if not smaller and others:
            self._limit.lower(others + 1)
        if smaller or others:
            self._entrance.enter(Standing(ticket, integers(job.sequences[0].sequence_ids.torch()), job.forced_left()))
        else:
            self._desk.fail(ticket, FailureClass.MEMORY, "out of memory in the prompt's smallest chunk, with nothing beside it")

    def _free_memory(self) -> None:
        if self._loaded.on_gpu:
            torch.cuda.empty_cache()
