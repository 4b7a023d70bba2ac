"""Requests through the real library on tiny models: what is reported, and when."""

import msgspec
import pytest

from daemon.core.settings import EngineSettings
from daemon.core.wire import (
    FailureClass,
    Finished,
    FinishReason,
    ImageSpan,
    Phase,
    Prefilling,
    Probed,
    Quote,
    Started,
    Submit,
    Tokens,
    TokenSpan,
    Waiting,
)
from tests.engine.checkpoints import Architecture
from tests.engine.conftest import ModelPath, NullBench
from tests.engine.device import BACKEND
from tests.engine.workbench import GREEDY, Workbench, ask, text


def test_one_request_gives_the_library_s_own_ids_at_exact_positions(bench: Workbench) -> None:
    """The lean acceptance of tokens changes no id, and every id says where it stands."""
    prompt = text(700)
    expected = bench.library(prompt, 40)
    fresh = text(700, seed=1)
    assert bench.run(ask(1, prompt, 40))[1] == expected
    bench.run(ask(2, fresh, 12))
    events = bench.of(2)
    assert isinstance(events[0], Started)
    assert isinstance(events[1], Prefilling)
    assert isinstance(events[-1], Finished)
    assert [event.start for event in events if isinstance(event, Tokens)] == list(range(700, 712))


def test_several_requests_at_once_give_what_each_gives_alone(dense: Workbench) -> None:
    """Rows of a batch do not see each other. Differences may only be near-ties of the two best tokens."""
    prompts = {number: text(length, seed=number) for number, length in ((1, 10), (2, 37), (3, 300), (4, 700))}
    together = dense.run(*[ask(number, prompt, 24) for number, prompt in prompts.items()])
    for number, prompt in prompts.items():
        dense.forget()
        alone = dense.run(ask(number, prompt, 24))[number]
        dense.assert_same(prompt, alone, together[number])


def test_a_stop_id_ends_the_request_and_is_the_last_id_delivered(bench: Workbench) -> None:
    """The library holds a stop id back; here it is delivered."""
    prompt = text(60)
    said = bench.library(prompt, 30)
    stop = said[9]
    first = said.index(stop)
    request = msgspec.structs.replace(ask(1, prompt, 30), stop_ids=[stop])
    assert bench.run(request)[1] == said[: first + 1]
    assert bench.finish(1) is FinishReason.STOP


def test_a_stop_id_before_the_minimum_is_not_chosen(dense: Workbench) -> None:
    """`min_left` holds stop ids off, and no longer."""
    prompt = text(60)
    stop = dense.library(prompt, 3)[2]
    request = msgspec.structs.replace(ask(1, prompt, 30), stop_ids=[stop], min_left=12)
    said = dense.run(request)[1]
    assert stop not in said[:12]
    assert len(said) >= 12


def test_the_limit_ends_a_request_with_length(dense: Workbench) -> None:
    """Exactly `max_left` ids."""
    assert len(dense.run(ask(1, text(20), 17))[1]) == 17
    assert dense.finish(1) is FinishReason.LENGTH


def test_a_cancelled_request_frees_its_pages_within_two_steps_and_is_silent(bench: Workbench) -> None:
    """Pages of a stream that nobody wants are there for others at once."""
    bench.backend.submit(ask(1, text(300), 500))
    bench.backend.submit(ask(2, text(30, seed=2), 60))
    bench.after_tokens(1, 5)
    held = bench.results[-1].pool.referenced
    bench.backend.cancel(1)
    bench.forget()
    bench.step()
    bench.step()
    assert bench.results[-1].pool.referenced < held
    assert not bench.of(1)
    bench.until(lambda: bench.ended(2))
    assert bench.results[-1].pool.referenced == 0


def test_a_request_cancelled_while_it_waits_is_gone(dense: Workbench) -> None:
    """A request that never began leaves no trace."""
    for number in range(1, 10):
        dense.backend.submit(ask(number, text(20, seed=number), 40))
    dense.step()
    assert dense.results[-1].pool.pending == 1
    dense.backend.cancel(9)
    dense.until(lambda: all(dense.ended(number) for number in range(1, 9)))
    assert not dense.of(9)
    assert not dense.backend.busy()


def test_an_answer_longer_than_its_reserve_starts_once_and_stays_whole(model_path: ModelPath, dense: Workbench) -> None:
    """Requeues inside the library do not show, and change no id."""
    tight = Workbench(
        model_path(Architecture.QWEN3),
        EngineSettings(backend=BACKEND, cache_tokens=1024, max_batch=2, chunk_tokens=512, reserve_tokens=256, threads=1),
    )
    prompt = text(250)
    assert tight.run(ask(1, prompt, 270))[1] == dense.run(ask(1, prompt, 270))[1]
    assert _starts(tight, 1) == 1


def test_an_answer_of_many_reserves_is_told_without_a_gap(null_bench: NullBench) -> None:
    """Every page of the pool is claimed and given back several times on the way."""
    tight = null_bench(cache_tokens=2048, reserve_tokens=256)
    tight.run(ask(1, text(100), 1900))
    assert [event.start for event in tight.of(1) if isinstance(event, Tokens)] == list(range(100, 2000))
    assert _starts(tight, 1) == 1
    assert not any(isinstance(event, Waiting) for event in tight.events)


def test_an_answer_that_outgrows_the_pool_says_once_a_wait_that_it_waits(null_bench: NullBench) -> None:
    """Eight pages for two requests that want seven each: one must wait, says so, and goes on later where it was."""
    tight = null_bench(cache_tokens=2048, reserve_tokens=256)
    tight.run(ask(1, text(100), 1600), ask(2, text(100, seed=2), 1600))
    waits = [event for event in tight.events if isinstance(event, Waiting)]
    assert 1 <= len(waits) <= 4
    assert all(event.pages >= 1 for event in waits)
    for number in (1, 2):
        assert _starts(tight, number) == 1
        assert [event.start for event in tight.of(number) if isinstance(event, Tokens)] == list(range(100, 1700))


def _starts(bench: Workbench, request: int) -> int:
    return sum(isinstance(event, Started) for event in bench.of(request))


def test_a_short_answer_claims_no_more_pages_than_it_can_fill(dense: Workbench) -> None:
    """The reserve is a bound, not a habit."""
    dense.run(ask(1, text(100), 20))
    started = dense.of(1)[0]
    assert isinstance(started, Started)
    assert started.new_pages == 1


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (ask(1, text(9000), 10), FailureClass.INVALID),
        (ask(1, [100_000], 10), FailureClass.INVALID),
        (ask(1, [], 10), FailureClass.INVALID),
        (Submit(1, 1, [TokenSpan([5]), ImageSpan("00", "image/png", b"", 4)], 5, 5, sampler=GREEDY), FailureClass.UNSUPPORTED),
        (msgspec.structs.replace(ask(1, [5], 5), sampler=msgspec.structs.replace(GREEDY, top_p=3.0)), FailureClass.INVALID),
    ],
    ids=["larger than the pool", "unknown id", "empty", "image", "sampler out of range"],
)
def test_a_request_that_cannot_run_fails_alone_with_its_reason(dense: Workbench, request_: Submit, kind: FailureClass) -> None:
    """Nothing is raised, nothing is left behind, the next request runs."""
    dense.run(request_)
    assert dense.failure(1) is kind
    assert len(dense.run(ask(2, text(20), 5))[2]) == 5


def test_a_request_with_nothing_left_to_generate_is_finished(dense: Workbench) -> None:
    """It happens when an engine dies between the last token and the last event."""
    dense.run(ask(1, text(20), 0))
    assert dense.finish(1) is FinishReason.LENGTH


def test_the_same_id_again_replaces_the_earlier_attempt(dense: Workbench) -> None:
    """The front submits again after an interruption; what belonged to the old attempt is over."""
    dense.backend.submit(ask(1, text(30), 400))
    dense.after_tokens(1, 3)
    dense.forget()
    dense.run(ask(1, text(30), 5, attempt=2))
    assert {event.attempt for event in dense.of(1) if not isinstance(event, Prefilling)} == {2}
    assert dense.results[-1].pool.referenced == 0


def test_every_step_tells_the_pool_as_it_is(bench: Workbench) -> None:
    """Free and held pages, running and waiting requests."""
    for number in (1, 2):
        bench.backend.submit(ask(number, text(300, seed=number), 30))
    bench.after_tokens(2, 3)
    pool = bench.results[-1].pool
    assert pool.pages == 32
    assert pool.running == 2
    assert pool.pending == 0
    assert pool.referenced == len(bench.generator.pagetable.referenced_pages) == 4
    assert bench.results[-1].phase is Phase.DECODE


def test_a_quote_is_what_the_request_then_costs(bench: Workbench) -> None:
    """Pages to allocate and tokens that need no prefill, before anything is submitted."""
    prompt = text(700)
    cold = bench.backend.quote(Quote(1, [TokenSpan(prompt)], 100))
    assert (cold.new_pages, cold.cached) == (4, 0)
    bench.run(ask(1, prompt, 5))
    longer = prompt + text(300, seed=5)
    warm = bench.backend.quote(Quote(2, [TokenSpan(longer)], 20))
    bench.run(ask(2, longer, 20))
    started = bench.of(2)[0]
    assert isinstance(started, Started)
    assert warm.cached == started.cached // 256 * 256 == 512


def test_an_idle_engine_answers_a_probe_with_a_token_of_its_own(bench: Workbench) -> None:
    """And nobody sees that token."""
    bench.backend.probe(7)
    assert bench.backend.busy()
    bench.until(lambda: bool(bench.results and bench.results[-1].answers))
    assert bench.results[-1].answers == [Probed(7)]
    assert not bench.events
    assert bench.results[-1].pool.referenced == 0


def test_a_busy_engine_answers_a_probe_with_the_next_token_of_anybody(dense: Workbench) -> None:
    """No extra work where there is proof already."""
    dense.backend.submit(ask(1, text(20), 30))
    dense.after_tokens(1, 2)
    dense.backend.probe(8)
    assert dense.step().answers == [Probed(8)]
    assert dense.results[-1].pool.running == 1


def test_statistics_count_what_was_done(bench: Workbench) -> None:
    """Totals since the start, cached tokens among them."""
    prompt = text(600)
    bench.run(ask(1, prompt, 10))
    bench.run(ask(2, [*prompt, *text(50, seed=3)], 10))
    told = bench.backend.statistics(3)
    assert told.prompt_tokens == 1250
    assert told.generated_tokens == 20
    assert told.cached_tokens >= 512
    assert told.resident_bytes > 1 << 20


@pytest.mark.parametrize("architecture", [Architecture.QWEN3, Architecture.QWEN3_5])
def test_a_pool_that_was_claimed_many_times_over_still_gives_the_same_text(
    model_path: ModelPath, architecture: Architecture
) -> None:
    """Eviction and the library's defragmentation, which moves pages while nothing runs, change no answer."""
    small = Workbench(
        model_path(architecture),
        EngineSettings(backend=BACKEND, cache_tokens=1024, max_batch=2, chunk_tokens=512, reserve_tokens=512, threads=1),
    )
    prompt = text(300)
    first = small.run(ask(1, prompt, 8))[1]
    moved = small.generator.pagetable.last_defrag_serial
    for number in range(2, 16):
        small.run(ask(number, text(700, seed=number), 2))
    assert small.generator.pagetable.last_defrag_serial > moved
    small.generator.pagetable.validate_pagetable([])
    small.run(ask(99, [*prompt, *text(20, seed=99)], 2))
    again = small.run(ask(100, prompt, 8))[100]
    small.assert_same(prompt, again, first)
    assert small.backend.statistics(1).evicted_pages > 0
