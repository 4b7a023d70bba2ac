"""The memory plan against what loading took, on each card: the comparison that the daemon makes after every load."""

import os
import time
from pathlib import Path

import msgspec

from daemon.core.settings import BackendKind, EngineSettings
from daemon.core.vram_learned import ASSUMED_OVERHEAD
from daemon.core.vram_measured import compare
from daemon.core.wire import Configure
from daemon.host.fit import weigh_model
from daemon.host.gpu_census import take_census
from tests.engine.child import EngineChild
from tests.gpu.models import served
from tests.gpu.report import PartFailed, Place

_CONTEXT = 8192


class CardNumbers(msgspec.Struct, frozen=True):
    """One card after one load, in MiB."""

    predicted: int
    """Computed: weights, caches, transients."""
    measured: int
    """The most that the engine held."""
    rest: int
    """What the plan does not explain: the overhead it learns."""


class LoadNumbers(msgspec.Struct, frozen=True):
    """One load."""

    model: str
    cache_tokens: int
    k_bits: int
    v_bits: int
    cards: list[CardNumbers]


class MemoryNumbers(msgspec.Struct, frozen=True):
    """All loads. The rest should be the same for each: it is what a process costs, not what a model does."""

    assumed_overhead: int
    """What the plan assumes until it has learned, in MiB a card."""
    driver: str
    loads: list[LoadNumbers]


def run(place: Place) -> MemoryNumbers:
    """See the module. Needs a GPU."""
    census = take_census(os.environ)
    others = {gpu.uuid: gpu.used for gpu in census.gpus if gpu.used is not None}
    model = served(place)
    loads = [
        _load(place, model, tokens, bits, others) for tokens, bits in ((_CONTEXT, 16), (4 * _CONTEXT, 16), (4 * _CONTEXT, 4))
    ]
    numbers = MemoryNumbers(ASSUMED_OVERHEAD >> 20, census.driver, loads)
    worst = max((card.rest for load in loads for card in load.cards), default=0)
    if worst > ASSUMED_OVERHEAD >> 20:
        raise PartFailed(
            f"a card held {worst} MiB more than was computed; the plan assumes at most {numbers.assumed_overhead}", numbers
        )
    return numbers


def _load(place: Place, model: Path, tokens: int, bits: int, others: dict[str, int]) -> LoadNumbers:
    engine = EngineSettings(backend=BackendKind.CUDA, cache_tokens=tokens, k_bits=bits, v_bits=bits, max_batch=8)
    weighed = weigh_model(model, model.name, engine)
    with EngineChild() as child:
        hello = child.start(Configure(str(model), _CONTEXT, engine, str(place.folder)))
    demand = weighed.demand(engine, _CONTEXT)
    load = compare(time.time(), model.name, weighed.shape, weighed.weights, demand, hello.memory, others)
    cards = [CardNumbers(held.predicted >> 20, held.measured >> 20, held.rest >> 20) for held in load.cards]
    return LoadNumbers(model.name, tokens, bits, bits, cards)
