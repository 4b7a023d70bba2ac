"""What loads teach: predicted against measured, by machine, and how plans use it."""

from collections.abc import Sequence

import msgspec
import pytest

from daemon.core.vram_learned import (
    ASSUMED_OVERHEAD,
    KEPT,
    MOST_MACHINES,
    Held,
    Label,
    Learned,
    Load,
    Machine,
    cards_of,
    learn,
)
from daemon.core.vram_measured import compare, layout_of, machine_of
from daemon.core.vram_model import describe
from daemon.core.vram_values import Demand, Layout
from daemon.core.wire import DeviceMemory
from tests.core.vram_models import ORNITH_9B, weights

GIB, MIB = 1 << 30, 1 << 20
TWO = Machine(("RTX", "RTX"), "576.88", Layout.SPLIT)
LABELS = tuple(Label("RTX", 12 * GIB, f"GPU {n} (RTX)") for n in range(2))
MODEL, WEIGHTS = describe(ORNITH_9B), weights(ORNITH_9B)


def load(*rests: int, others: int | None = None) -> Load:
    return Load(1.0, "m", tuple(Held(GIB, GIB + rest, 12 * GIB - 50 * MIB, others) for rest in rests))


def overheads(
    learned: Learned, labels: Sequence[Label] = LABELS, driver: str = "576.88", layout: Layout = Layout.SPLIT
) -> object:
    return [(card.overhead, card.confirmed, card.elsewhere) for card in cards_of(learned, labels, driver, layout)]


def test_nothing_is_known_before_the_first_load() -> None:
    assert overheads(Learned()) == [(ASSUMED_OVERHEAD, 0, 0)] * 2
    assert [card.size for card in cards_of(Learned(), LABELS, "", Layout.SPLIT)] == [12 * GIB] * 2


def test_largest_rest_of_the_latest_loads_counts_for_each_card() -> None:
    learned = learn(learn(Learned(), TWO, load(700 * MIB, 300 * MIB)), TWO, load(500 * MIB, 400 * MIB))
    assert overheads(learned) == [(700 * MIB, 2, 0), (400 * MIB, 2, 0)]
    for _ in range(KEPT):
        learned = learn(learned, TWO, load(450 * MIB, 350 * MIB))
    assert overheads(learned) == [(450 * MIB, KEPT, 0), (350 * MIB, KEPT, 0)]


def test_measurement_below_the_plan_is_no_rest() -> None:
    assert overheads(learn(Learned(), TWO, load(-GIB // 2, 0))) == [(0, 1, 0)] * 2


def test_what_cuda_can_use_and_what_others_held_is_planned_with() -> None:
    cards = cards_of(learn(Learned(), TWO, load(0, 0, others=300 * MIB)), LABELS, "576.88", Layout.SPLIT)
    assert [(card.size, card.others) for card in cards] == [(12 * GIB - 50 * MIB, 300 * MIB)] * 2
    now = tuple(Label("RTX", 12 * GIB, "GPU", others=0) for _ in range(2))
    assert [card.others for card in cards_of(learn(Learned(), TWO, load(0, 0, others=MIB)), now, "576.88", Layout.SPLIT)] == [
        0,
        0,
    ]


@pytest.mark.parametrize(
    ("labels", "driver", "layout"),
    [(LABELS, "580.1", Layout.SPLIT), (LABELS, "576.88", Layout.TENSOR), (LABELS[:1], "576.88", Layout.SPLIT)],
    ids=["driver", "layout", "neighbour"],
)
def test_other_circumstances_tell_an_overhead_and_confirm_none(labels: Sequence[Label], driver: str, layout: Layout) -> None:
    learned = learn(Learned(), TWO, load(600 * MIB, 800 * MIB))
    assert overheads(learned, labels, driver, layout) == [(800 * MIB, 0, 2)] * len(labels)


def test_replicas_learn_from_engines_that_had_one_card_each() -> None:
    alone = Machine(("RTX",), "576.88", Layout.REPLICAS)
    assert overheads(learn(Learned(), alone, load(650 * MIB)), layout=Layout.REPLICAS) == [(650 * MIB, 1, 0)] * 2


def test_cards_without_a_name_learn_from_nobody_else() -> None:
    nameless = (Label("", 12 * GIB, "GPU 0"),)
    assert overheads(learn(Learned(), TWO, load(0, 0)), nameless) == [(ASSUMED_OVERHEAD, 0, 0)]


def test_machine_loaded_on_longest_ago_is_forgotten_first() -> None:
    learned = Learned()
    for n in range(MOST_MACHINES + 1):
        learned = learn(learned, Machine((f"card {n}",), "1", Layout.SPLIT), load(0))
        learned = learn(learned, Machine(("card 0",), "1", Layout.SPLIT), load(0))
    assert len(learned.known) == MOST_MACHINES
    names = {known.machine.gpus[0] for known in learned.known}
    assert "card 0" in names
    assert "card 1" not in names


def test_file_round_trips() -> None:
    learned = learn(Learned(), TWO, load(1, 2, others=3))
    assert msgspec.json.decode(msgspec.json.encode(learned), type=Learned) == learned


# --- a load against its plan ---------------------------------------------------------------------------------------------


def device(gpu: int, layers: int, *, peak: int, reserved: int, free: int) -> DeviceMemory:
    return DeviceMemory("RTX", f"GPU-{gpu}", 12 * GIB, free, reserved, peak, layers)


DEMAND = Demand(8192, 1, cache_tokens=8192, slots=4)


def test_load_is_compared_for_the_layers_that_lie_on_each_card() -> None:
    memory = [
        device(0, 20, peak=5 * GIB, reserved=4 * GIB, free=7 * GIB),
        device(1, 12, peak=4 * GIB, reserved=4 * GIB, free=6 * GIB),
    ]
    made = compare(9.0, "m", MODEL, WEIGHTS, DEMAND, memory, {"GPU-1": GIB // 2})
    assert [held.measured for held in made.cards] == [(12 - 7 - 4) * GIB + 5 * GIB, (12 - 6 - 4) * GIB - GIB // 2 + 4 * GIB]
    assert [(held.total, held.others) for held in made.cards] == [(12 * GIB, None), (12 * GIB, GIB // 2)]
    first, second = (held.predicted for held in made.cards)
    assert first > sum(layer.total for layer in WEIGHTS.layers[:20])
    assert second > sum(layer.total for layer in WEIGHTS.layers[20:]) + WEIGHTS.head
    assert machine_of(memory, "1") == Machine(("RTX", "RTX"), "1", Layout.SPLIT)


def test_layers_on_no_card_in_particular_are_tensor_parallel() -> None:
    memory = [device(n, 0, peak=0, reserved=0, free=6 * GIB) for n in range(2)]
    assert layout_of(memory, replica=False) is Layout.TENSOR
    made = compare(9.0, "m", MODEL, WEIGHTS, DEMAND, memory, {})
    assert [held.measured for held in made.cards] == [6 * GIB] * 2
    assert abs(made.cards[0].predicted - made.cards[1].predicted) < 64 * MIB
    assert min(held.predicted for held in made.cards) > WEIGHTS.loaded // 2


def test_one_engine_of_several_is_a_replica() -> None:
    assert machine_of([device(0, 32, peak=0, reserved=0, free=0)], "1", replica=True) == Machine(("RTX",), "1", Layout.REPLICAS)
