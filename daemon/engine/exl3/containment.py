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

from dataclasses import dataclass

from exllamav3 import Generator
from exllamav3.constants import PAGE_SIZE
from exllamav3.generator.pagetable import CachePage

from daemon.engine.exl3.job import ServedJob
from daemon.engine.exl3.ticket import Ticket
from daemon.engine.tensors import integers

PROBATION = 512
"""Steps without shortage of memory after which one more request is allowed again."""


@dataclass(frozen=True, slots=True)
class Survivor:
    """A request as it stood when the step failed."""

    ticket: Ticket
    ids: list[int]
    forced: list[int]


def survivors(generator: Generator) -> list[Survivor]:
    """Cancel every job and give back what it needs to go on, oldest first."""
    jobs = [job for job in [*generator.active_jobs, *generator.pending_jobs] if isinstance(job, ServedJob)]
    found = [
        Survivor(job.ticket, integers(job.sequences[0].sequence_ids.torch()), job.forced_left())
        for job in jobs
        if not job.ticket.ended
    ]
    dirty = [page for job in generator.active_jobs for page in _half_written(job)]
    for job in jobs:
        generator.cancel(job)
    forget(generator, dirty)
    return sorted(found, key=lambda survivor: survivor.ticket.arrival)


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
        if checkpoints is not None and page.phash in checkpoints:
            checkpoints.pop(page.phash)
            checkpoints.update_total_size()
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
