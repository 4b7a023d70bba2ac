"""The soak bench sees growth where there is some, and none where there is noise; its clients behave as they should."""

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.bench.processes import RunningDaemon
from ops.bench.soak_clients import Client, Crowd, Habit
from ops.bench.soak_verdict import slope, trend
from ops.bench.vitals import gauges, process_vitals
from tests.ops.openai_server import serving


@given(st.lists(st.floats(-1, 1), min_size=12, max_size=40))
def test_noise_is_no_growth(noise: list[float]) -> None:
    found = trend([100.0 + each for each in noise], 3.0)
    assert found is not None
    assert not found.grown


@given(st.lists(st.floats(-1, 1), min_size=12, max_size=40))
def test_steady_growth_under_noise_is_found(noise: list[float]) -> None:
    found = trend([100.0 + 2 * at + each for at, each in enumerate(noise)], 3.0)
    assert found is not None
    assert found.grown


def test_what_grows_only_at_the_beginning_is_warming_up() -> None:
    found = trend([10.0, 40.0, 70.0, 90.0, 100.0] + [100.0] * 15, 1.0)
    assert found is not None
    assert not found.grown


def test_few_outliers_do_not_count() -> None:
    values = [50.0] * 20
    values[15] = values[16] = 500.0
    found = trend(values, 1.0)
    assert found is not None
    assert not found.grown


def test_one_step_up_that_stays_is_growth() -> None:
    found = trend([7.0] * 14 + [12.0] * 10, 2.0)
    assert found is not None
    assert found.grown


def test_too_few_values_give_no_verdict() -> None:
    assert trend([1.0, 2.0, 3.0], 0.0) is None
    assert slope([5.0]) == 0.0


def test_vitals_of_this_process_follow_what_it_opens(tmp_path: Path) -> None:
    before = process_vitals(os.getpid())
    assert before is not None
    files = [(tmp_path / str(number)).open("w") for number in range(7)]
    during = process_vitals(os.getpid())
    for file in files:
        file.close()
    assert during is not None
    assert during.descriptors == before.descriptors + 7
    assert during.rss_mib > 1
    assert during.threads >= 1


def test_process_that_is_not_there_has_no_vitals() -> None:
    assert process_vitals(2**22 + 1) is None


def test_samples_of_one_name_are_added_up() -> None:
    text = '# TYPE a gauge\na{engine="0"} 2\na{engine="1"} 3\n# TYPE b counter\nb_total 4\n'
    assert gauges(text) == {"a": 5.0, "b_total": 4.0}


@pytest.mark.parametrize("habit", list(Habit))
async def test_client_of_each_habit_comes_to_an_end(habit: Habit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a server that answers everything: whoever reads to the end is content, whoever leaves leaves nothing open."""
    monkeypatch.setattr("ops.bench.soak_clients._WEIGHTS", {habit: 1})
    crowd = Crowd()
    async with serving() as server:
        served = RunningDaemon(server.base_url, "", "tiny", 0, 0, Path(), Path())
        for seed in range(3):
            async with asyncio.timeout(60):
                await Client(served, crowd, seed, tokens=8).once(0.05)
    assert crowd.done == {habit: 3}
    wrong = {Habit.BLUNDER, Habit.WHOLE}  # this server streams whatever it is asked and refuses nothing
    assert bool(crowd.problems) == (habit in wrong)
