"""Order and pace of prefill: what `Steer` asks for, and what the engine chooses by itself."""

import msgspec
import pytest

from daemon.core.wire import Prefilling, Steer
from daemon.engine.exl3.pace import MAX_PAUSE, Pace, PrefillCost
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


LONG = [80_000]
"""The rest of a prompt that takes many steps."""


def _measured(decode: float, per_token: float) -> Pace:
    pace = Pace(2048)
    pace.decoded(decode)
    pace.prefilled(1000, 1, 1000 * per_token, decoding=0)
    return pace


@pytest.mark.parametrize(
    ("target", "expected"), [(0.10, 256), (0.30, 1024), (0.60, 2048)], ids=["one page", "four pages", "no more than the chunk"]
)
def test_the_chunk_fits_the_latency_target(target: float, expected: int) -> None:
    """Decode 0.02 s, prefill 0.25 ms a token: what is left of the target is spent on the prompt."""
    pace = _measured(0.02, 0.00025)
    pace.steer(Steer(itl_target=target))
    assert pace.budget(3, LONG) == expected


def _taken(pace: Pace, rests: list[int], *, decode: float, per_token: float, steps: int) -> list[int]:
    """What each of many steps prefills while two streams decode."""
    given: list[int] = []
    for _ in range(steps):
        tokens = pace.budget(2, rests)
        pace.decoded(decode)
        pace.prefilled(tokens, 1, tokens * per_token, decoding=2)
        given.append(tokens)
    return given


def test_a_target_below_the_smallest_chunk_is_kept_on_average() -> None:
    """Decode 0.02 s, a page costs 0.1 s, 0.04 s wanted: one page in five steps or so."""
    pace = _measured(0.02, 0.1 / 256)
    pace.steer(Steer(itl_target=0.04))
    given = _taken(pace, LONG, decode=0.02, per_token=0.1 / 256, steps=100)
    assert 0.03 < 0.02 + sum(given) * 0.1 / 256 / 100 <= 0.041


def test_a_prompt_is_never_starved_by_a_target_that_cannot_be_met() -> None:
    """Its smallest chunk comes all the same, now and then."""
    pace = _measured(0.05, 0.001)
    pace.steer(Steer(itl_target=0.01))
    given = _taken(pace, LONG, decode=0.05, per_token=0.001, steps=MAX_PAUSE * 3)
    assert given.count(256) == 3
    assert set(given) == {0, 256}


def test_a_machine_too_slow_for_the_target_gives_prompts_a_share_all_the_same() -> None:
    """Decode alone takes longer than was wanted: a fifth of the time is the prompt's."""
    pace = _measured(0.5, 0.001)
    pace.steer(Steer(itl_target=0.25))
    given = _taken(pace, LONG, decode=0.5, per_token=0.001, steps=200)
    assert sum(given) * 0.001 == pytest.approx(0.25 * 0.5 * 200, rel=0.05)


def test_without_a_target_running_streams_are_slowed_by_a_bounded_factor() -> None:
    """The engine's own choice on a slow machine: a page costs four decode steps and is taken every other step at most."""
    pace = _measured(0.1, 0.4 / 256)
    given = _taken(pace, LONG, decode=0.1, per_token=0.4 / 256, steps=60)
    assert 20 <= sum(tokens > 0 for tokens in given) <= 35


def test_a_short_prompt_is_finished_at_once_and_the_long_one_pays_for_it() -> None:
    """It costs less than the target; the next steps prefill less until that is worked off."""
    pace = _measured(0.02, 0.0002)
    pace.steer(Steer(itl_target=0.25))
    tokens = pace.budget(3, [1100, *LONG])
    assert 1100 <= tokens <= 1150
    pace.prefilled(tokens, 1, tokens * 0.0002, decoding=3)
    usual = int(0.23 / 0.0002) // 256 * 256
    assert pace.budget(3, LONG) == usual


def test_short_prompts_beside_answers_that_have_just_begun_come_in_together() -> None:
    """However slow the machine: seven of them cost two seconds here, and the batch then decodes in step."""
    pace = _measured(0.4, 0.007)
    pace.steer(Steer(itl_target=0.25))
    shorts = [40] * 7
    assert pace.budget(1, shorts, begun=True) == 280
    assert pace.budget(1, shorts) < 280
    assert pace.budget(1, [4000, *shorts], begun=True) == 0


def test_what_a_pass_costs_is_told_from_what_its_tokens_cost() -> None:
    """From passes of different sizes: 10 ms each and 0.1 ms a token."""
    cost = PrefillCost()
    for tokens in (40, 2048, 256, 60, 1024):
        cost.measure(1, tokens, 0.01 + tokens * 0.0001)
    assert cost.seconds(512) == pytest.approx(0.0612, rel=0.01)
    assert cost.tokens(0.0612) == pytest.approx(512, abs=6)


def test_an_unmeasured_engine_begins_with_a_page() -> None:
    """Until times are known."""
    assert Pace(2048).budget(1, LONG) == 256
    assert Pace(2048).budget(0, LONG) == 2048


def test_memory_halves_the_chunk_down_to_a_page() -> None:
    """And says when there is nothing left to halve."""
    pace = Pace(1024)
    assert pace.shrink()
    assert pace.shrink()
    assert not pace.shrink()
    assert pace.full_chunk == 256
