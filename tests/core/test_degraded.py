"""Slow steps with full memory are told once; slow steps for a good reason never."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.degraded import ACCEPTED, ENOUGH, Change, Recovered, Slowed, StepPace
from daemon.core.wire import Durations, Pool

FACTOR = 3.0


def pool(running: int = 1, referenced: int = 40) -> Pool:
    return Pool(pages=1000, referenced=referenced, slots=16, running=running, pending=0)


class Engine:
    """Steps one after the other, and what was noticed."""

    def __init__(self) -> None:
        self.pace = StepPace(FACTOR)
        self.t = 1000.0
        self.changes: list[Change] = []

    def steps(
        self, count: int, seconds: float, *, full: float | None = 0.99, state: Pool | None = None, prefill: int = 0
    ) -> None:
        for _ in range(count):
            self.t += seconds
            durations = Durations(decode=seconds, decode_tokens=1, prefill_tokens=prefill)
            change = self.pace.saw(self.t, durations, state or pool(), full)
            if change is not None:
                self.changes.append(change)


def test_steps_three_times_slower_with_full_memory_are_told_once_and_their_end_too() -> None:
    engine = Engine()
    engine.steps(ENOUGH, 0.03)
    engine.steps(1000, 0.12)
    engine.steps(1000, 0.03)
    slowed, recovered = engine.changes
    assert isinstance(slowed, Slowed)
    assert slowed.times == pytest.approx(4, rel=0.1)
    assert slowed.learned == pytest.approx(0.03, rel=0.05)
    assert isinstance(recovered, Recovered)
    assert not recovered.accepted


@pytest.mark.parametrize("full", [None, 0.5, 0.96])
def test_slow_steps_with_memory_to_spare_are_none_of_its_business(full: float | None) -> None:
    engine = Engine()
    engine.steps(ENOUGH, 0.03)
    engine.steps(2000, 0.3, full=full)
    assert engine.changes == []


def test_larger_batches_and_longer_contexts_have_their_own_pace() -> None:
    engine = Engine()
    engine.steps(ENOUGH, 0.03)
    engine.steps(1000, 0.2, state=pool(running=16))
    engine.steps(1000, 0.2, state=pool(referenced=900))
    assert engine.changes == []


def test_one_long_stall_is_not_a_slow_engine() -> None:
    engine = Engine()
    engine.steps(ENOUGH, 0.03)
    engine.steps(1, 40.0)
    engine.steps(1000, 0.03)
    assert engine.changes == []


def test_steps_that_prefill_are_not_compared() -> None:
    engine = Engine()
    engine.steps(ENOUGH, 0.03)
    engine.steps(1000, 0.5, prefill=2048)
    assert engine.changes == []


def test_slow_work_before_and_after_a_pause_is_not_one_slowness() -> None:
    engine = Engine()
    engine.steps(ENOUGH, 0.03)
    for _ in range(5):
        engine.steps(60, 0.12)
        engine.t += 60
    assert engine.changes == []


def test_pace_that_stays_slow_becomes_the_pace() -> None:
    engine = Engine()
    engine.steps(ENOUGH, 0.03)
    engine.steps(int(2 * ACCEPTED / 0.12), 0.12)
    slowed, recovered = engine.changes
    assert isinstance(slowed, Slowed)
    assert isinstance(recovered, Recovered)
    assert recovered.seconds == pytest.approx(ACCEPTED, rel=0.01)
    assert recovered.accepted


@given(st.lists(st.tuples(st.integers(1, 400), st.floats(0.001, 1.0), st.sampled_from([None, 0.5, 0.98, 1.0])), max_size=12))
def test_slowness_and_recovery_always_take_turns(phases: Iterable[tuple[int, float, float | None]]) -> None:
    engine = Engine()
    for count, seconds, full in phases:
        engine.steps(count, seconds, full=full)
    kinds = [type(change) for change in engine.changes]
    assert kinds == ([Slowed, Recovered] * len(kinds))[: len(kinds)]
