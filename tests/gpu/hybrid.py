"""Prefix hits on a hybrid: the turns of a conversation, each found up to the last page that has a recurrent checkpoint."""

import time

import msgspec

from daemon.core.settings import EngineSettings
from daemon.core.wire import Started
from tests.engine.workbench import Workbench, ask, text
from tests.gpu.report import PartFailed, Place

_PAGE = 256


class Turn(msgspec.Struct, frozen=True):
    """One turn."""

    prompt: int
    known: int
    """Tokens of the prompt that the engine had seen or said before."""
    cached: int
    seconds: float
    """From the question to the end of an answer of a few tokens."""


class HybridNumbers(msgspec.Struct, frozen=True):
    """A conversation, and the same last prompt to an engine that never saw it."""

    turns: list[Turn]
    cold_seconds: float


def run(place: Place) -> HybridNumbers:
    """See the module."""
    bench = Workbench(place.hybrid, _settings(place))
    _timed(bench, 99, text(300, seed=99))  # pays what the first request pays
    ids = text(3000 if place.on_gpu else 600, seed=1)
    turns: list[Turn] = []
    known = 0
    for turn in range(1, 5 if place.on_gpu else 3):
        seconds, said = _timed(bench, turn, ids)
        cached = next(event.cached for event in bench.of(turn) if isinstance(event, Started))
        turns.append(Turn(len(ids), known, cached, seconds))
        known = len(ids) + len(said)
        ids = [*ids, *said, *text(300, seed=10 + turn)]
    fresh = Workbench(place.hybrid, _settings(place))
    _timed(fresh, 99, text(300, seed=99))
    cold, _ = _timed(fresh, 1, ids[: turns[-1].prompt])
    numbers = HybridNumbers(turns, cold)
    for turn in turns[1:]:
        if turn.cached < turn.known // _PAGE * _PAGE - _PAGE:
            raise PartFailed(f"{turn.cached} of {turn.known} known tokens were found", numbers)
    return numbers


def _settings(place: Place) -> EngineSettings:
    return EngineSettings(backend=place.device, cache_tokens=16384, max_batch=4, chunk_tokens=512, reserve_tokens=512, threads=1)


def _timed(bench: Workbench, number: int, ids: list[int]) -> tuple[float, list[int]]:
    began = time.perf_counter()
    said = bench.run(ask(number, ids, 8))[number]
    return round(time.perf_counter() - began, 4), said
