"""Order and pace of prefill: what `Steer` asks for, and what the engine chooses by itself."""

import msgspec
import pytest

from daemon.core.wire import Prefilling, Steer
from daemon.engine.exl3.pace import MAX_PAUSE, Pace
from tests.engine.conftest import NullBench
from tests.engine.workbench import ask, text


def _order(order: list[int]) -> list[int]:
    """Requests in the order of their first prefill pass."""
    return list(dict.fromkeys(order))


def test_prompts_are_prefilled_in_the_order_of_their_ranks(null_bench: NullBench) -> None:
    """Whoever came first; ties go by arrival."""
    bench = null_bench()
    for number, rank in ((1, 5), (2, 1), (3, 1), (4, 0)):
        bench.backend.submit(msgspec.structs.replace(ask(number, text(1500, seed=number), 3), rank=rank))
    bench.until(lambda: all(bench.ended(number) for number in range(1, 5)))
    assert _order(bench.watch.order) == [4, 2, 3, 1]


def test_a_steer_changes_the_order_in_the_middle_of_a_prompt(null_bench: NullBench) -> None:
    """The long prompt pauses, the other runs, the first goes on: `B` is done before `A` moves again."""
    bench = null_bench()
    bench.backend.submit(ask(1, text(5000, seed=1), 3))
    bench.until(lambda: any(isinstance(event, Prefilling) for event in bench.of(1)))
    bench.backend.submit(ask(2, text(1500, seed=2), 3))
    bench.backend.steer(Steer(ranks={1: 10}))
    bench.watch.order.clear()
    bench.until(lambda: bench.ended(1) and bench.ended(2))
    turns = bench.watch.order
    assert turns.index(1) > max(place for place, request in enumerate(turns) if request == 2)


def test_a_steered_chunk_bounds_each_step_while_somebody_generates(null_bench: NullBench) -> None:
    """And with nobody generating the full chunk is used."""
    bench = null_bench(chunk_tokens=1024)
    bench.backend.submit(ask(1, text(20), 400))
    bench.after_tokens(1, 2)
    bench.backend.steer(Steer(chunk=256))
    bench.backend.submit(ask(2, text(3000, seed=2), 3))
    bench.until(lambda: bench.ended(2))
    sizes = [result.durations.prefill_tokens for result in bench.results if result.durations.prefill_tokens > 20]
    assert max(sizes) == 256
    assert all(result.durations.decode_tokens for result in bench.results[-10:])


def test_an_idle_engine_prefills_in_full_chunks(null_bench: NullBench) -> None:
    """Nobody waits for a token."""
    bench = null_bench(chunk_tokens=1024)
    bench.run(ask(1, text(4000), 2))
    assert [result.durations.prefill_tokens for result in bench.results][:3] == [1024, 1024, 1024]


def test_short_prompts_submitted_together_are_prefilled_in_one_step(null_bench: NullBench) -> None:
    """They share the step's budget instead of taking turns."""
    bench = null_bench()
    for number in range(1, 5):
        bench.backend.submit(ask(number, text(60, seed=number), 3))
    bench.step()
    assert bench.results[0].durations.prefill_tokens == 4 * 59
    assert bench.results[0].durations.decode_tokens == 4


def _measured(decode: float, per_token: float) -> Pace:
    pace = Pace(2048)
    pace.decoded(decode)
    pace.prefilled(1000, 1000 * per_token, decoding=0)
    return pace


@pytest.mark.parametrize(
    ("target", "expected"), [(0.10, 256), (0.30, 1024), (0.60, 2048)], ids=["one page", "four pages", "no more than the chunk"]
)
def test_the_chunk_fits_the_latency_target(target: float, expected: int) -> None:
    """Decode 0.02 s, prefill 0.25 ms a token: what is left of the target is spent on the prompt."""
    pace = _measured(0.02, 0.00025)
    pace.steer(Steer(itl_target=target))
    assert pace.budget(decoding=3) == expected


def test_a_target_below_the_smallest_chunk_is_kept_on_average() -> None:
    """Decode 0.02 s, a page costs 0.1 s, 0.04 s wanted: one page in five steps or so."""
    pace = _measured(0.02, 0.1 / 256)
    pace.steer(Steer(itl_target=0.04))
    spent = 0.0
    steps = 100
    for _ in range(steps):
        tokens = pace.budget(decoding=2)
        seconds = tokens * 0.1 / 256
        pace.prefilled(tokens, seconds, decoding=2)
        spent += 0.02 + seconds
    assert 0.03 < spent / steps <= 0.041


def test_a_prompt_is_never_starved_by_a_target_that_cannot_be_met() -> None:
    """Its smallest chunk comes all the same, now and then."""
    pace = _measured(0.05, 0.001)
    pace.steer(Steer(itl_target=0.01))
    given = [pace.budget(decoding=1) for _ in range(MAX_PAUSE * 3)]
    assert given.count(256) == 3
    assert set(given) == {0, 256}


def test_without_a_target_running_streams_are_slowed_by_a_bounded_factor() -> None:
    """The engine's own choice on a slow machine: a page costs four decode steps and is taken every other step at most."""
    pace = _measured(0.1, 0.4 / 256)
    given = 0
    for _ in range(60):
        tokens = pace.budget(decoding=1)
        pace.prefilled(tokens, tokens * 0.4 / 256, decoding=1)
        given += tokens > 0
    assert 20 <= given <= 35


def test_an_unmeasured_engine_begins_with_a_page() -> None:
    """Until times are known."""
    assert Pace(2048).budget(decoding=1) == 256
    assert Pace(2048).budget(decoding=0) == 2048


def test_memory_halves_the_chunk_down_to_a_page() -> None:
    """And says when there is nothing left to halve."""
    pace = Pace(1024)
    assert pace.shrink()
    assert pace.shrink()
    assert not pace.shrink()
    assert pace.full_chunk == 256
