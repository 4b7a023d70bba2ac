"""Faults played at the level of the operation, with four healthy streams beside them."""

from collections.abc import Callable

import msgspec
import pytest
import torch

from daemon.core.wire import Constraint, ConstraintKind, Failed, FailureClass, FatalClass, Sampler
from daemon.engine.backend import EngineFailed
from daemon.engine.exl3.faults import DeviceLost, FaultKind, classify
from daemon.engine.exl3.job import ServedJob
from daemon.engine.null.profile import Fault, FaultPlace, NullProfile
from daemon.engine.null.profile import FaultKind as Played
from tests.engine.checkpoints import END_OF_TEXT
from tests.engine.conftest import NullBench
from tests.engine.workbench import GREEDY, Workbench, ask, text

HEALTHY = {number: text(150 + 90 * number, seed=number) for number in range(1, 5)}
VICTIM = 9
TOKENS = 30


def _healthy(bench: Workbench) -> dict[int, list[int]]:
    """What the four say when nothing happens."""
    told = bench.run(*[ask(number, prompt, TOKENS) for number, prompt in HEALTHY.items()])
    bench.forget()
    return told


def _begin(bench: Workbench, victim_tokens: int = 200, sampler: Sampler = GREEDY) -> ServedJob:
    """Four healthy requests and a victim, all of them generating."""
    for number, prompt in HEALTHY.items():
        bench.backend.submit(ask(number, prompt, TOKENS))
    victim = ask(VICTIM, text(200, seed=77), victim_tokens, sampler=sampler)
    bench.backend.submit(msgspec.structs.replace(victim, stop_ids=[END_OF_TEXT]))
    bench.after_tokens(VICTIM, 3)
    return next(job for job in bench.generator.active_jobs if isinstance(job, ServedJob) and job.ticket.id == VICTIM)


def _all_right(bench: Workbench, expected: dict[int, list[int]]) -> None:
    """The four end with what they would have said; a difference may only be a near-tie under another batch shape."""
    bench.until(lambda: all(bench.ended(number) for number in HEALTHY))
    for number, prompt in HEALTHY.items():
        bench.assert_same(prompt, bench.ids(number), expected[number])
    bench.until(lambda: not bench.backend.busy())
    bench.generator.pagetable.validate_pagetable([])


def _raise(*_arguments: object, **_options: object) -> torch.Tensor:
    raise RuntimeError("a fault was played")


def _break_sampler(job: ServedJob, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job.sampler, "forward", _raise)


def _break_mask(job: ServedJob, patch: pytest.MonkeyPatch) -> None:
    job.min_new_tokens = 1000
    patch.setattr(job, "get_pinned_logit_mask", _raise)


def _break_acceptance(job: ServedJob, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job.sequences[0].sequence_ids, "append", _raise)


@pytest.mark.parametrize(
    ("break_", "kind"),
    [
        (_break_sampler, FailureClass.SAMPLING),
        (_break_mask, FailureClass.CONSTRAINT),
        (_break_acceptance, FailureClass.INTERNAL),
    ],
)
def test_a_fault_in_one_job_ends_that_request_alone(
    bench: Workbench, break_: Callable[[ServedJob, pytest.MonkeyPatch], None], kind: FailureClass, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampler, mask and acceptance: the four others say what they would have said."""
    expected = _healthy(bench)
    break_(_begin(bench), monkeypatch)
    _all_right(bench, expected)
    assert bench.failure(VICTIM) is kind
    assert "a fault was played" in str(bench.of(VICTIM)[-1])


def test_a_fault_while_starting_ends_that_request_alone(dense: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activation and page allocation."""
    expected = _healthy(dense)
    for number, prompt in HEALTHY.items():
        dense.backend.submit(ask(number, prompt, TOKENS))
    dense.after_tokens(4, 3)
    dense.backend.submit(ask(VICTIM, text(200, seed=77), 10))
    victim = next(job for job in dense.generator.pending_jobs if isinstance(job, ServedJob))
    monkeypatch.setattr(victim.sequences[0], "allocate_pages", _raise, raising=False)
    _all_right(dense, expected)
    assert dense.failure(VICTIM) is FailureClass.ACTIVATION


def test_a_fault_in_a_prefill_ends_that_request_and_spoils_no_prefix(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages a failed pass has written over must not be found under their old name."""
    known = text(400, seed=50)
    before = bench.run(ask(20, known, 12))[20]
    bench.forget()
    expected = _healthy(bench)
    for number, prompt in HEALTHY.items():
        bench.backend.submit(ask(number, prompt, TOKENS))
    bench.after_tokens(4, 3)
    for module in bench.generator.model.modules[2:4]:
        monkeypatch.setattr(module, "forward", _wrap(module.forward))
    bench.backend.submit(ask(VICTIM, text(7000, seed=77), 10))
    bench.until(lambda: bench.ended(VICTIM))
    monkeypatch.undo()
    assert bench.failure(VICTIM) is FailureClass.PREFILL
    _all_right(bench, expected)
    bench.forget()
    assert bench.run(ask(21, known, 12))[21] == before


def test_a_prefill_that_fails_once_is_begun_again(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = text(900, seed=78)
    module = bench.generator.model.modules[2]
    forward, failures = module.forward, ["a fault was played"]

    def fail_once(x: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        if x.shape[1] > 1 and failures:
            raise RuntimeError(failures.pop())
        return forward(x, *arguments, **options)

    monkeypatch.setattr(module, "forward", fail_once)
    said = bench.run(ask(VICTIM, prompt, 10))[VICTIM]
    monkeypatch.undo()
    assert failures == []
    assert len(said) == 10
    bench.forget()
    assert bench.run(ask(VICTIM, prompt, 10))[VICTIM] == said


def _wrap(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def fail(x: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        if x.shape[1] > 1:
            raise RuntimeError("a fault was played")
        return forward(x, *arguments, **options)

    return fail


class _Once:
    """A layer whose decode pass fails a number of times."""

    def __init__(self, forward: Callable[..., torch.Tensor], problem: Exception, times: int = 1) -> None:
        self._forward = forward
        self._problem = problem
        self.left = times

    def __call__(self, x: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        if x.shape[1] == 1 and self.left:
            self.left -= 1
            raise self._problem
        return self._forward(x, *arguments, **options)


@pytest.mark.parametrize("problem", [RuntimeError("something broke"), torch.OutOfMemoryError("CUDA out of memory")])
def test_an_exception_out_of_the_forward_pass_is_survived_by_everybody(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    """In the middle of the layers, so that some caches are one token ahead: all go on from prompt and delivered tokens."""
    expected = _healthy(bench)
    slots = bench.generator.max_batch_size
    _begin(bench, victim_tokens=TOKENS)
    layer = bench.generator.model.modules[len(bench.generator.model.modules) // 2]
    monkeypatch.setattr(layer, "forward", _Once(layer.forward, problem))
    _all_right(bench, expected)
    bench.until(lambda: bench.ended(VICTIM))
    assert len(bench.ids(VICTIM)) == TOKENS
    assert not any(isinstance(event, Failed) for event in bench.events)
    lowered = isinstance(problem, torch.OutOfMemoryError)
    assert bench.generator.max_batch_size == (4 if lowered else slots)


def test_what_was_cached_before_a_failed_pass_is_found_again(hybrid: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator stays, and with it the prefix cache: the prompt is not computed a second time."""
    prompt = text(1000)
    hybrid.backend.submit(ask(1, prompt, 20))
    hybrid.after_tokens(1, 3)
    computed = sum(result.durations.prefill_tokens for result in hybrid.results)
    layer = hybrid.generator.model.modules[2]
    monkeypatch.setattr(layer, "forward", _Once(layer.forward, RuntimeError("something broke")))
    hybrid.until(lambda: hybrid.ended(1))
    again = sum(result.durations.prefill_tokens for result in hybrid.results) - computed
    assert again <= 256


def test_a_request_alone_that_runs_out_of_memory_fails(null_bench: NullBench) -> None:
    """There is nobody left to take away."""
    bench = null_bench(NullProfile(faults=[Fault(kind=Played.MEMORY, step=3, times=1000)]))
    bench.run(ask(1, text(20), 10))
    assert bench.failure(1) is FailureClass.MEMORY


def test_a_request_that_breaks_every_pass_ends_and_the_others_go_on(null_bench: NullBench) -> None:
    """The newest is taken for the cause after the second failure in a row."""
    bench = null_bench()
    marker = bench.generator.tokenizer.tokenizer.decode(text(40, seed=77))[:30]
    bench = null_bench(NullProfile(faults=[Fault(kind=Played.RAISE, marker=marker, token=2, times=1000)]))
    for number, prompt in HEALTHY.items():
        bench.backend.submit(ask(number, prompt, TOKENS))
    bench.after_tokens(1, 2)
    bench.run(ask(VICTIM, text(40, seed=77), 10))
    bench.until(lambda: all(bench.ended(number) for number in HEALTHY))
    assert bench.failure(VICTIM) is FailureClass.INTERNAL
    assert all(len(bench.ids(number)) == TOKENS for number in HEALTHY)


def test_the_batch_limit_rises_again_after_good_steps(null_bench: NullBench) -> None:
    """A shortage is not for ever."""
    bench = null_bench(NullProfile(faults=[Fault(kind=Played.MEMORY, step=3)]))
    for number in range(1, 4):
        bench.backend.submit(ask(number, text(20, seed=number), 540))
    bench.after_tokens(1, 10)
    assert bench.generator.max_batch_size == 2
    bench.until(lambda: bench.ended(1))
    assert bench.generator.max_batch_size == 3


def test_a_prompt_that_runs_out_of_memory_is_tried_in_smaller_chunks(null_bench: NullBench) -> None:
    """Half the chunk, and once more half of it."""
    bench = null_bench(NullProfile(faults=[Fault(kind=Played.MEMORY, place=FaultPlace.PREFILL, times=2)]), chunk_tokens=1024)
    bench.run(ask(1, text(3000), 5))
    assert len(bench.ids(1)) == 5


def test_a_prompt_that_runs_out_of_memory_even_in_the_smallest_chunk_fails(null_bench: NullBench) -> None:
    """With nothing beside it there is nothing to try."""
    bench = null_bench(NullProfile(faults=[Fault(kind=Played.MEMORY, place=FaultPlace.PREFILL, times=1000)]))
    bench.run(ask(1, text(3000), 5))
    assert bench.failure(1) is FailureClass.MEMORY


@pytest.mark.parametrize("place", [FaultPlace.DECODE, FaultPlace.PREFILL])
def test_a_sticky_device_error_ends_the_engine(null_bench: NullBench, place: FaultPlace) -> None:
    """It is not blamed on a request: the process says why, once, and goes."""
    bench = null_bench(NullProfile(faults=[Fault(kind=Played.DEVICE, place=place, step=1)]))
    bench.backend.submit(ask(1, text(300), 10))
    with pytest.raises(EngineFailed) as raised:
        bench.until(lambda: bench.ended(1))
    assert raised.value.kind is FatalClass.DEVICE
    assert "illegal memory access" in raised.value.detail


def test_a_device_lost_in_a_prompt_is_said_before_anybody_elses_pass(null_bench: NullBench) -> None:
    """Nothing is computed on it in the rest of the step: people wait for the next engine meanwhile."""
    bench = null_bench(NullProfile(faults=[Fault(kind=Played.DEVICE, place=FaultPlace.PREFILL, step=2)]))
    bench.backend.submit(ask(1, text(300), 100))
    bench.until(lambda: len(bench.ids(1)) > 1)
    bench.backend.submit(ask(2, text(300, seed=2), 10))
    passes = bench.backend.desk.passes
    with pytest.raises(EngineFailed) as raised:
        bench.backend.step()
    assert raised.value.kind is FatalClass.DEVICE
    assert bench.backend.desk.passes == passes


def test_logits_that_are_not_numbers_fail_their_row_and_leave_no_cache_behind(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a stream, where the library does not look."""
    expected = _healthy(bench)
    victim = _begin(bench)
    row = [job for job in bench.generator.active_jobs if job.is_prefill_done()].index(victim)
    pages = [page for page in victim.sequences[0].allocated_pages or [] if page.ref_count == 1]
    head = bench.generator.model.modules[-1]
    forward = head.forward

    def spoil(x: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        logits: torch.Tensor = forward(x, *arguments, **options).clone()
        if logits.shape[0] > row:
            logits[row, :, 17] = torch.nan
        return logits

    monkeypatch.setattr(head, "forward", spoil)
    bench.step()
    monkeypatch.undo()
    assert bench.failure(VICTIM) is FailureClass.NOT_FINITE
    assert pages
    assert all(page.kv_position == 0 for page in pages)
    _all_right(bench, expected)


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), FaultKind.MEMORY),
        (RuntimeError("CUDA error: out of memory"), FaultKind.MEMORY),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), FaultKind.MEMORY),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), FaultKind.DEVICE),
        (RuntimeError("CUDA error: unspecified launch failure"), FaultKind.DEVICE),
        (RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"), FaultKind.DEVICE),
        (DeviceLost(), FaultKind.DEVICE),
        (RuntimeError("shape mismatch"), FaultKind.OTHER),
        (ValueError("CUDA error: an illegal memory access, says the prompt"), FaultKind.OTHER),
        (AssertionError(), FaultKind.OTHER),
    ],
)
def test_exceptions_are_sorted_by_what_they_mean_for_the_process(problem: Exception, kind: FaultKind) -> None:
    """Only torch's own kinds of exception can mean memory or device."""
    assert classify(problem) is kind


def test_a_grammar_that_breaks_while_it_is_followed_ends_its_request_alone(
    dense: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask is computed on another thread; its exception comes back with the result."""
    expected = _healthy(dense)
    request = msgspec.structs.replace(
        ask(VICTIM, text(200, seed=77), 100), constraint=Constraint(ConstraintKind.REGEX, "[a-z]{90}")
    )
    for number, prompt in HEALTHY.items():
        dense.backend.submit(ask(number, prompt, TOKENS))
    dense.backend.submit(request)
    dense.after_tokens(VICTIM, 2)
    victim = next(job for job in dense.generator.active_jobs if isinstance(job, ServedJob) and job.ticket.id == VICTIM)
    monkeypatch.setattr(victim.filters[0], "get_next_logit_mask", _raise)
    _all_right(dense, expected)
    assert dense.failure(VICTIM) is FailureClass.CONSTRAINT
