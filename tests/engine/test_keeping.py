"""`Keep` and `fleeting`: which prefixes and checkpoints survive when the room runs out."""

from pathlib import Path

import msgspec
import pytest

from daemon.core.settings import EngineSettings
from daemon.core.wire import Keep, Started, Submit
from tests.engine.checkpoints import Architecture
from tests.engine.conftest import ModelPath, NullBench
from tests.engine.device import BACKEND
from tests.engine.workbench import Workbench, ask, text

PAGES = 24
TURN = 5 * 256 + 40
"""Tokens of one turn's text; with its answer it fills five pages and a part."""


def _small(model: Path, checkpoint_mib: int = 64) -> Workbench:
    """An engine whose pool holds two grown conversations, and not a third beside them."""
    settings = EngineSettings(
        backend=BACKEND,
        cache_tokens=32 * 256,
        max_batch=4,
        chunk_tokens=512,
        reserve_tokens=256,
        checkpoint_memory_mib=checkpoint_mib,
        threads=1,
    )
    return Workbench(model, settings)


def _cached(bench: Workbench, request: int) -> int:
    return next(event.cached for event in bench.of(request) if isinstance(event, Started))


class Conversation:
    """Turns of one person: each prompt is everything before it and new text."""

    def __init__(self, bench: Workbench, seed: int) -> None:
        self._bench = bench
        self._ids = text(40, seed=seed)
        self._seed = seed
        self._turns = 0
        self.last = 0
        """The request of the last turn."""

    def turn(self) -> tuple[int, int]:
        """One turn. Gives the tokens found in the cache, and those that could have been."""
        had = len(self._ids)
        self._turns += 1
        self._ids += text(TURN if self._turns == 1 else 200, seed=self._seed + self._turns)
        self.last = self._seed * 1000 + self._turns
        self._ids += self._bench.run(ask(self.last, self._ids, 20))[self.last]
        return _cached(self._bench, self.last), had


def _stranger(bench: Workbench, number: int) -> None:
    """Somebody else's long prompt: with one of its kind and a conversation beside it the pool is full."""
    bench.run(ask(number, text(13 * 256, seed=number), 5))


def test_two_alternating_conversations_stay_warm_while_kept(model_path: ModelPath) -> None:
    """Strangers' prompts between the turns take the room of strangers."""
    bench = _small(model_path(Architecture.LLAMA))
    _assert_warm(bench)


def test_kept_conversations_stay_warm_on_a_hybrid_with_their_checkpoints(model_path: ModelPath) -> None:
    """Pages are of no use there without the recurrent state at one of them."""
    bench = _small(model_path(Architecture.QWEN3_5))
    checkpoints = bench.generator.recurrent_cache
    assert checkpoints is not None
    _assert_warm(bench)


def _assert_warm(bench: Workbench) -> None:
    anna, ben = Conversation(bench, 1), Conversation(bench, 2)
    anna.turn()
    bench.backend.keep(Keep([anna.last]))
    ben.turn()
    for turn in range(3):
        bench.backend.keep(Keep([anna.last, ben.last]))
        _stranger(bench, 900 + turn)
        for person in (anna, ben):
            found, could = person.turn()
            assert found >= could // 256 * 256 - 256
            bench.backend.keep(Keep([anna.last, ben.last]))


@pytest.mark.parametrize("architecture", [Architecture.LLAMA, Architecture.QWEN3_5], ids=["llama", "hybrid"])
def test_a_conversation_that_is_not_kept_grows_cold(model_path: ModelPath, architecture: Architecture) -> None:
    """What `Keep` is for: by age alone the stranger wins."""
    bench = _small(model_path(architecture))
    anna, ben = Conversation(bench, 1), Conversation(bench, 2)
    anna.turn()
    ben.turn()
    _stranger(bench, 900)
    _stranger(bench, 901)
    found, could = anna.turn()
    assert found < could // 2


def test_the_most_precious_prefix_is_evicted_last(null_bench: NullBench) -> None:
    """Where not all that is kept has room: the first of the list goes, from its tail, and the last stays."""
    bench = null_bench(cache_tokens=PAGES * 256, reserve_tokens=256)
    bench.run(ask(1, text(8 * 256 + 10, seed=1), 3))
    bench.run(ask(2, text(8 * 256 + 10, seed=2), 3))
    bench.backend.keep(Keep([2, 1]))
    bench.run(ask(3, text(12 * 256, seed=3), 3))
    bench.run(ask(4, text(8 * 256 + 10, seed=1), 1), ask(5, text(8 * 256 + 10, seed=2), 1))
    assert _cached(bench, 4) >= 8 * 256
    assert 0 < _cached(bench, 5) < 8 * 256


def test_a_list_replaces_the_one_before(null_bench: NullBench) -> None:
    """Whoever is no longer on it is evicted by age again."""
    bench = null_bench(cache_tokens=PAGES * 256, reserve_tokens=256)
    bench.run(ask(1, text(8 * 256 + 10, seed=1), 3))
    bench.run(ask(2, text(8 * 256 + 10, seed=2), 3))
    bench.backend.keep(Keep([1]))
    bench.backend.keep(Keep([]))
    bench.run(ask(3, text(12 * 256, seed=3), 3))
    bench.run(ask(4, text(8 * 256 + 10, seed=1), 1))
    assert _cached(bench, 4) < 8 * 256


def test_prefixes_with_a_common_beginning_are_kept_apart(null_bench: NullBench) -> None:
    """One system prompt for everybody makes one tree of pages: only the kept branch of it survives."""
    bench = null_bench(cache_tokens=PAGES * 256, reserve_tokens=256)
    system = text(2 * 256, seed=9)
    branches = {number: [*system, *text(5 * 256 + 10, seed=number)] for number in (1, 2, 3)}
    for number, ids in branches.items():
        bench.run(ask(number, ids, 3))
    bench.backend.keep(Keep([1]))
    bench.run(ask(4, text(15 * 256, seed=4), 3))
    bench.forget()
    found = {}
    for number, ids in branches.items():
        bench.run(ask(10 + number, ids, 1))
        found[number] = _cached(bench, 10 + number)
    assert found[1] >= 7 * 256
    assert found[2] + found[3] < 2 * 7 * 256


def _fleeting(request: Submit) -> Submit:
    return msgspec.structs.replace(request, fleeting=True)


def test_pages_of_fleeting_requests_are_evicted_first(null_bench: NullBench) -> None:
    """Although they are the youngest."""
    bench = null_bench(cache_tokens=PAGES * 256, reserve_tokens=256)
    bench.run(ask(1, text(10 * 256 + 10, seed=1), 3))
    bench.run(_fleeting(ask(2, text(10 * 256 + 10, seed=2), 3)))
    bench.run(ask(3, text(9 * 256, seed=3), 3))
    bench.run(ask(4, text(10 * 256 + 10, seed=1), 1))
    assert _cached(bench, 4) >= 10 * 256


def test_a_fleeting_request_does_not_take_the_prefix_it_found_with_it(null_bench: NullBench) -> None:
    """A title for a chat begins with the chat: only what the title added goes first."""
    bench = null_bench(cache_tokens=PAGES * 256, reserve_tokens=256)
    chat = text(8 * 256 + 10, seed=1)
    bench.run(ask(1, chat, 3))
    bench.run(_fleeting(ask(2, [*chat, *text(4 * 256, seed=2)], 3)))
    bench.run(ask(3, text(7 * 256, seed=3), 3))
    bench.run(ask(4, chat, 1))
    assert _cached(bench, 4) >= 8 * 256


def test_what_a_person_takes_up_again_is_no_longer_fleeting(null_bench: NullBench) -> None:
    """The same text once more, by somebody who comes back."""
    bench = null_bench(cache_tokens=PAGES * 256, reserve_tokens=256)
    ids = text(8 * 256 + 10, seed=1)
    bench.run(_fleeting(ask(1, ids, 3)))
    bench.run(ask(2, ids, 3))
    bench.run(ask(3, text(8 * 256 + 10, seed=3), 3))
    bench.run(ask(4, text(9 * 256, seed=4), 3))
    bench.run(ask(5, text(8 * 256 + 10, seed=3), 1))
    assert _cached(bench, 5) >= 8 * 256
    bench.run(ask(6, ids, 1))
    assert _cached(bench, 6) < 8 * 256


def test_checkpoints_of_kept_requests_outlive_younger_ones(model_path: ModelPath) -> None:
    """The store of checkpoints has a budget of its own: here it holds three or so."""
    bench = _small(model_path(Architecture.QWEN3_5), checkpoint_mib=1)
    checkpoints = bench.generator.recurrent_cache
    assert checkpoints is not None
    ids = text(3 * 256 + 10, seed=1)
    bench.run(ask(1, ids, 3))
    size = checkpoints.current_size // len(checkpoints)
    checkpoints.max_size = 3 * size
    bench.backend.keep(Keep([1]))
    for number in range(2, 7):
        bench.run(ask(number, text(256 + 10, seed=number), 3))
    assert len(checkpoints) == 3
    bench.run(ask(8, ids, 1))
    assert _cached(bench, 8) == 3 * 256


def test_a_checkpoint_that_nobody_keeps_makes_room_for_younger_ones(model_path: ModelPath) -> None:
    """The same without the list."""
    bench = _small(model_path(Architecture.QWEN3_5), checkpoint_mib=1)
    checkpoints = bench.generator.recurrent_cache
    assert checkpoints is not None
    ids = text(3 * 256 + 10, seed=1)
    bench.run(ask(1, ids, 3))
    checkpoints.max_size = 3 * (checkpoints.current_size // len(checkpoints))
    for number in range(2, 7):
        bench.run(ask(number, text(256 + 10, seed=number), 3))
    bench.run(ask(8, ids, 1))
    assert _cached(bench, 8) == 0


def test_ids_the_engine_does_not_know_are_ignored(null_bench: NullBench) -> None:
    """They may have ended long ago, or not begun."""
    bench = null_bench()
    bench.backend.keep(Keep([77, 1, 78]))
    bench.run(ask(1, text(600), 3))
    bench.run(ask(2, text(600), 3))
    assert _cached(bench, 2) == 599
    bench.generator.pagetable.validate_pagetable([])
