"""What the daemon refuses before a GPU is touched, and in which words. Tables: settings and cards in, a sentence out."""

from dataclasses import replace

import msgspec
import pytest
from msgspec.structs import replace as replace_setting

from daemon.core.errors import ConfigError
from daemon.core.settings import EngineSettings, Speculation
from daemon.core.vram_fit import Beside, Planned, demand_of, draft_of, limited, refusal
from daemon.core.vram_learned import ASSUMED_OVERHEAD
from daemon.core.vram_model import Precision, describe, state_bytes
from daemon.core.vram_values import MARGIN, Card, Layout
from daemon.core.vram_weights import weigh
from tests.core.vram_models import MOE, ORNITH_9B, QWEN3_5_27B, expert_tensors, weights

GIB, MIB = 1 << 30, 1 << 20
MODELS = {
    "27B": (describe(QWEN3_5_27B), weights(QWEN3_5_27B)),
    "9B": (describe(ORNITH_9B), weights(ORNITH_9B)),
}


def planned(model: str, sizes: tuple[float, ...], engine: EngineSettings, context: int = 81920) -> Planned:
    cards = tuple(Card(f"GPU {n} (RTX)", int(size * GIB), ASSUMED_OVERHEAD) for n, size in enumerate(sizes))
    return Planned(model, *MODELS[model], limited(cards, engine), demand_of(engine, context), Layout.SPLIT, context)


FOUR_BITS = EngineSettings(k_bits=4, v_bits=4, max_batch=4)


@pytest.mark.parametrize(
    ("model", "sizes", "engine", "context", "fits"),
    [
        ("9B", (12, 12), EngineSettings(), 81920, True),
        ("9B", (12,), FOUR_BITS, 81920, True),
        ("9B", (5,), FOUR_BITS, 8192, False),
        ("27B", (12, 12), FOUR_BITS, 262144, True),
        ("27B", (12, 12), EngineSettings(), 262144, False),
        ("27B", (24,), FOUR_BITS, 81920, True),
        ("27B", (12,), FOUR_BITS, 2048, False),
        ("27B", (12, 12), EngineSettings(k_bits=4, v_bits=4, cache_tokens=1 << 20), 81920, False),
        ("27B", (12, 12), EngineSettings(k_bits=4, v_bits=4, max_batch=128), 81920, False),
        ("27B", (12, 12), EngineSettings(k_bits=4, v_bits=4, max_batch=4, gpu_split=[11, 11]), 81920, True),
        ("27B", (12, 12), EngineSettings(k_bits=4, v_bits=4, max_batch=4, gpu_split=[11]), 81920, False),
        ("27B", (12, 12), EngineSettings(k_bits=4, v_bits=4, max_batch=4, reserve_gpu_mib=6000), 81920, False),
    ],
)
def test_what_fits_is_let_through_and_what_cannot_is_refused(
    model: str, sizes: tuple[float, ...], engine: EngineSettings, context: int, fits: bool
) -> None:
    assert (refusal(planned(model, sizes, engine, context)) is None) is fits


def test_refusal_tells_what_is_needed_what_is_there_and_what_to_change() -> None:
    words = refusal(planned("27B", (12, 12), EngineSettings(), 262144))
    assert words is not None
    lines = words.splitlines()
    assert lines[0].startswith("27B does not fit as configured: layer ")
    assert lines[0].endswith("or more are missing.")
    assert "KV cache 16.0 GiB (exact)" in lines[1]
    assert "prefill transient" in lines[1]
    assert lines[2] == "  GPU 0 (RTX): 12.0 GiB; 768 MiB of overhead (assumed), 512 MiB left free"
    assert "  would fit: engine.k_bits and engine.v_bits 4" in lines
    assert any(line.startswith("  would fit: engine.cache_tokens ") and "one request has at most" in line for line in lines)
    assert "exl3d --force" in lines[-1]


@pytest.mark.parametrize(
    ("engine", "name", "step"),
    [
        (EngineSettings(k_bits=4, v_bits=4, max_batch=128), "max_batch", 1),
        (EngineSettings(k_bits=4, v_bits=4, max_batch=4, cache_tokens=1 << 20), "cache_tokens", 256),
    ],
)
def test_advised_number_is_the_largest_that_fits(engine: EngineSettings, name: str, step: int) -> None:
    words = refusal(planned("27B", (12, 12), engine))
    assert words is not None
    advised = next(line for line in words.splitlines() if f"would fit: engine.{name} " in line)
    number = int(advised.split()[3].rstrip(","))
    given = msgspec.to_builtins(engine)
    largest, next_larger = (msgspec.convert({**given, name: n}, EngineSettings) for n in (number, number + step))
    assert refusal(planned("27B", (12, 12), largest)) is None
    assert refusal(planned("27B", (12, 12), next_larger)) is not None


def test_split_that_is_too_small_is_named_and_taking_whole_cards_advised() -> None:
    engine = EngineSettings(k_bits=4, v_bits=4, max_batch=4, gpu_split=[11.0])
    words = refusal(planned("27B", (12, 12), engine))
    assert words is not None
    assert "finds no room in the split 11,0" in words
    assert "  the split is 11,0 GiB" in words
    assert "engine.gpu_split null: the whole of each card" in words


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ([6.0, 6.0, 6.0], "engine.gpu_split names 3 GPUs, and 2 can be used"),
        ([0.0, 0.0], "one of them above 0"),
        ([-1.0, 12.0], "one of them above 0"),
    ],
)
def test_split_that_names_what_is_not_there_is_one_sentence(split: list[float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        planned("9B", (12, 12), EngineSettings(gpu_split=split))


def test_cards_of_different_size_may_be_numbered_either_way() -> None:
    """CUDA puts the fastest first, the driver goes by slot. The plan for one order must not refuse the other."""
    sizes = (5.5, 12.0)
    small_first = planned("9B", sizes, EngineSettings(k_bits=4, v_bits=4, cache_tokens=262144, max_batch=4))
    large_first = replace(small_first, cards=small_first.cards[::-1])
    assert refusal(small_first) is refusal(large_first) is None


def test_measured_overhead_is_told_with_its_loads_and_other_programs_are_named() -> None:
    plan = planned("27B", (12,), FOUR_BITS)
    card = replace(plan.cards[0], overhead=900 * MIB, confirmed=1, others=700 * MIB)
    words = refusal(replace(plan, cards=(card,)))
    assert words is not None
    assert "900 MiB of overhead (measured in 1 load), 512 MiB left free, 700 MiB held by other programs" in words
    elsewhere = refusal(replace(plan, cards=(replace(card, confirmed=0, elsewhere=2),)))
    assert elsewhere is not None
    assert "seen in 2 loads under other circumstances" in elsewhere


def test_speculation_is_counted_and_leaving_it_out_is_advised() -> None:
    shape, load = MODELS["9B"]
    draft = draft_of(shape, load, Precision(4, 4), 4)
    assert draft.weights == load.loaded
    assert draft.slot == sum(state_bytes(layer, 1, 4) for layer in shape.layers)
    engine = EngineSettings(k_bits=4, v_bits=4, max_batch=4, speculation=Speculation.DRAFT, draft_model="/small", draft_tokens=2)
    plan = replace(planned("27B", (12, 12), engine), demand=demand_of(engine, 262144, Beside(draft)))
    assert (plan.demand.history, plan.demand.draft, plan.demand.drafter) == (2, draft, False)
    words = refusal(plan)
    assert words is not None
    assert "would fit: engine.speculation none" in words
    ngram = demand_of(EngineSettings(speculation=Speculation.NGRAM), 81920, Beside(draft))
    assert (ngram.history, ngram.draft) == (4, None)
    assert demand_of(EngineSettings(speculation=Speculation.MTP), 81920).drafter


def test_vision_tower_is_counted_where_it_is_loaded_and_leaving_it_out_is_advised() -> None:
    shape, load = MODELS["9B"]
    engine = EngineSettings(k_bits=4, v_bits=4, max_batch=4, vision=True)
    assert demand_of(engine, 8192).vision
    assert not demand_of(EngineSettings(), 8192).vision
    plan = planned("9B", (12,), engine)
    assert refusal(replace(plan, shape=shape, weights=replace(load, vision=GIB))) is None
    words = refusal(replace(plan, shape=shape, weights=replace(load, vision=6 * GIB)))
    assert words is not None
    assert "vision 6,144 MiB (exact)" in words
    assert "  would fit: engine.vision false: no pictures in chats" in words.splitlines()


def test_reserve_of_each_card_fixes_which_is_which() -> None:
    """Two cards of different sizes fit one way round only, and the numbers say which."""
    engine = EngineSettings(k_bits=4, v_bits=4, cache_tokens=262144, max_batch=4, reserve_gpu_mib=[0, 4096])
    small_first = planned("9B", (5.5, 12.0), engine)
    assert [card.reserve for card in small_first.cards] == [MARGIN, MARGIN + 4096 * MIB]
    assert refusal(small_first) is None
    large_first = planned("9B", (12.0, 5.5), replace_setting(engine, reserve_gpu_mib=[0, 5000]))
    assert refusal(large_first) is None
    assert refusal(planned("9B", (5.5, 12.0), replace_setting(engine, reserve_gpu_mib=[5000, 9000]))) is not None


def test_experts_in_host_memory_are_advised_where_they_make_it_fit() -> None:
    shape = describe(MOE)
    load = weigh(expert_tensors(), len(shape.layers), tied=False)
    cards = tuple(Card(f"GPU {n}", 12 * GIB, ASSUMED_OVERHEAD) for n in range(2))
    engine = EngineSettings(max_batch=2, cache_tokens=8192)
    plan = Planned("MoE", shape, load, limited(cards, engine), demand_of(engine, 8192), Layout.SPLIT, 8192)
    words = refusal(plan)
    assert words is not None
    count = int(next(line for line in words.splitlines() if "engine.moe_cpu_layers " in line).split()[-1])
    assert refusal(replace(plan, demand=replace(plan.demand, experts_on_cpu=count))) is None
    assert refusal(replace(plan, demand=replace(plan.demand, experts_on_cpu=count - 1))) is not None
    assert "moe_cpu_layers" not in (refusal(replace(plan, layout=Layout.TENSOR)) or "moe_cpu_layers")


def test_reserve_is_left_free_beside_the_margin_of_the_split() -> None:
    (card,) = limited((Card("GPU 0", 12 * GIB, 0),), EngineSettings(reserve_gpu_mib=1000))
    assert card.reserve == MARGIN + 1000 * MIB
