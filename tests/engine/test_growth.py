"""Answers that all grow in a pool without room for all of them: nobody stands still for ever, and nobody is told a lie."""

import pytest

from daemon.core.settings import EngineSettings
from daemon.core.wire import Finished, Suspended, Waiting
from tests.engine.checkpoints import Architecture
from tests.engine.conftest import ModelPath, NullBench
from tests.engine.device import BACKEND
from tests.engine.workbench import Workbench, ask, text

PAGES = 8
GROWN = 5 * 256
"""Tokens of an answer with which its request alone nearly fills the pool."""


@pytest.fixture
def crowded(null_bench: NullBench) -> Workbench:
    """An engine with few pages, reserved one at a time."""
    return null_bench(cache_tokens=PAGES * 256, reserve_tokens=256)


def _waiting(bench: Workbench, requests: range) -> list[int]:
    """Who said that it waits and has not been given a token since."""
    return [number for number in requests if any(isinstance(event, Waiting) for event in bench.of(number)[-1:])]


def test_answers_that_outgrow_the_pool_together_wait_and_all_end(crowded: Workbench) -> None:
    """Whoever waits goes on when another ends; each gets all of its tokens."""
    requests = range(1, 5)
    given = crowded.run(*[ask(number, text(300, seed=number), 3 * 256) for number in requests])
    assert {number: len(ids) for number, ids in given.items()} == dict.fromkeys(requests, 3 * 256)
    waits = [event for event in crowded.events if isinstance(event, Waiting)]
    assert waits
    assert all(0 < event.pages <= PAGES for event in waits)
    assert crowded.results[-1].pool.referenced == 0


def test_somebody_always_moves_while_all_want_the_whole_pool(crowded: Workbench) -> None:
    """One after the other, without help from outside."""
    requests = range(1, 5)
    given = crowded.run(*[ask(number, text(300, seed=number), GROWN) for number in requests])
    assert all(len(ids) == GROWN for ids in given.values())
    for number in requests:
        assert sum(isinstance(event, Finished) for event in crowded.of(number)) == 1


def test_a_stream_that_waits_is_suspended_at_once_and_the_others_go_on(crowded: Workbench) -> None:
    """What it has is told, and its pages are for others."""
    requests = range(1, 5)
    for number in requests:
        crowded.backend.submit(ask(number, text(20, seed=number), GROWN))
    crowded.until(lambda: bool(_waiting(crowded, requests)))
    (*_, aside) = _waiting(crowded, requests)
    length = 20 + len(crowded.ids(aside))
    crowded.backend.suspend(aside)
    crowded.step()
    last = crowded.of(aside)[-1]
    assert isinstance(last, Suspended)
    assert last.kept == (length - 1) // 256 * 256 > 0
    others = [number for number in requests if number != aside]
    crowded.until(lambda: all(crowded.ended(number) for number in others))
    assert all(len(crowded.ids(number)) == GROWN for number in others)


def test_a_running_stream_that_is_suspended_makes_room_for_one_that_waits(crowded: Workbench) -> None:
    """The next step already lets it go on."""
    requests = range(1, 5)
    for number in requests:
        crowded.backend.submit(ask(number, text(20, seed=number), GROWN))
    crowded.until(lambda: bool(_waiting(crowded, requests)))
    (stuck, *_) = _waiting(crowded, requests)
    running = [number for number in requests if number not in _waiting(crowded, requests)]
    had = len(crowded.ids(stuck))
    for number in running:
        crowded.backend.suspend(number)
    for _ in range(3):
        crowded.step()
    assert len(crowded.ids(stuck)) > had


def test_a_hybrid_that_outgrows_its_pool_goes_on_from_its_checkpoint(model_path: ModelPath) -> None:
    """A stream that waits has given its slot back; its state is in the store, and what follows is what would have followed."""
    settings = EngineSettings(backend=BACKEND, cache_tokens=5 * 256, max_batch=2, chunk_tokens=512, reserve_tokens=256, threads=1)
    bench = Workbench(model_path(Architecture.QWEN3_5), settings)
    bench.generator.recurrent_checkpoint_interval = 256
    prompts = {number: text(256 + number, seed=number) for number in (1, 2)}
    given = bench.run(*[ask(number, ids, 265) for number, ids in prompts.items()])
    (stuck,) = [event.id for event in bench.events if isinstance(event, Waiting)]
    assert [len(ids) for ids in given.values()] == [265, 265]
    before = prompts[stuck] + given[stuck][:257]
    rest = bench.run(ask(3, before, 8))[3]
    bench.assert_same(before, rest, given[stuck][257:])
