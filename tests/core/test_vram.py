"""The memory plan: exllamav3's arithmetic reproduced, layouts, what to change, and what loading teaches."""

import json
from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.core.errors import ConfigError
from daemon.core.safetensors_header import header_length, parse_header
from daemon.core.vram import layer_transient, logits_bytes, longest_context, most_people, place, split_as
from daemon.core.vram_advice import Lever, changes, lighter, speculation_advice
from daemon.core.vram_learned import ASSUMED_OVERHEAD
from daemon.core.vram_model import (
    PAGE,
    AttentionLayer,
    DeltaLayer,
    LatentLayer,
    Precision,
    SlidingLayer,
    checkpoint_bytes,
    describe,
    state_bytes,
    token_bytes,
)
from daemon.core.vram_values import MARGIN, Card, Certainty, Demand, Draft, Fits, Item, Layout, NoRoom
from daemon.core.vram_weights import Part, placement, weigh
from tests.core.vram_models import ORNITH_9B, QWEN3_5_27B, tensor, tensors, weights

GIB = 1 << 30
MIB = 1 << 20
FULL, EIGHT, FOUR = Precision(), Precision(8, 8), Precision(4, 4)
TWELVE = tuple(Card(f"GPU {n}", 12 * GIB, ASSUMED_OVERHEAD) for n in range(2))
BIG = (Card("big", 96 * GIB, ASSUMED_OVERHEAD),)
EIGHTY_K = 81920
MODEL_27B, WEIGHTS_27B = describe(QWEN3_5_27B), weights(QWEN3_5_27B)
MODEL_9B, WEIGHTS_9B = describe(ORNITH_9B), weights(ORNITH_9B)


def test_qwen_27b_kv_per_token_is_64_34_18_kib() -> None:
    model = describe(QWEN3_5_27B)
    per_token = [sum(token_bytes(layer, precision) for layer in model.layers) for precision in (FULL, EIGHT, FOUR)]
    assert [size / 1024 for size in per_token] == [64, 34, 18]
    assert sum(isinstance(layer, AttentionLayer) for layer in model.layers) == 16


def test_qwen_27b_recurrent_slot_is_148_7_mib_and_156_25_with_history() -> None:
    model = describe(QWEN3_5_27B)
    slot = {history: sum(state_bytes(layer, 1, history) for layer in model.layers) / MIB for history in (0, 4)}
    assert round(slot[0], 1) == 148.7
    assert round(slot[4], 2) == 156.25
    assert round(16 * slot[4] / 1024, 1) == 2.4


def test_qwen_27b_checkpoint_is_75_75_mib() -> None:
    assert sum(checkpoint_bytes(layer) for layer in describe(QWEN3_5_27B).layers) / MIB == 75.75


def test_ornith_9b_at_262k_of_8_bit_cache_is_4_25_gib() -> None:
    """A measured figure of another engine's q8_0 cache on this model: the same bytes a value."""
    model = describe(ORNITH_9B)
    assert sum(isinstance(layer, AttentionLayer) for layer in model.layers) == 8
    assert 262144 * sum(token_bytes(layer, EIGHT) for layer in model.layers) == 4.25 * GIB


@pytest.mark.parametrize("bits", [(2, 2), (4, 4), (8, 4), (5, 8)])
def test_quantised_cache_bytes_equal_the_closed_formula(bits: tuple[int, int]) -> None:
    layer = AttentionLayer(24, 4, 256)
    assert layer.token_bytes(Precision(*bits)) == 4 * 256 * (sum(bits) + 1) // 8


def test_latent_cache_bytes_follow_rank_and_rope() -> None:
    layer = LatentLayer(128, 512, 64)
    assert layer.token_bytes(FULL) == 2 * (512 + 64)
    assert layer.token_bytes(Precision(4, 8)) == 512 // 32 * (4 * 4 + 2) + 2 * 64


def test_sliding_window_ring_is_whole_pages_per_slot_whatever_the_context() -> None:
    layer = SlidingLayer(8, 4, 64, 1000)
    assert layer.state_bytes(3, 0) == 3 * 1536 * 4 * 64 * 2 * 2
    assert token_bytes(layer, FULL) == 0


def test_weights_of_a_conversion_add_up_to_its_files() -> None:
    files = tensors(QWEN3_5_27B)
    model = describe(QWEN3_5_27B)
    weighed = weigh(files, len(model.layers), tied=False)
    assert weighed.loaded + weighed.embedding == sum(item.size for item in files)
    assert weighed.bits == 4.0
    assert weighed.layers[0].rebuilt == 5120 * 17408 * 2
    assert weighed.head_rebuilt == 5120 * 32768 * 2


def test_tied_head_counts_the_embedding_again_on_the_gpu() -> None:
    files = (tensor("model.embed_tokens.weight", "BF16", 1000, 64), tensor("model.norm.weight", "BF16", 64))
    assert weigh(files, 0, tied=True).loaded == 1000 * 64 * 2 + 128
    assert weigh(files, 0, tied=False).loaded == 128


@pytest.mark.parametrize(
    ("name", "part", "layer"),
    [
        ("model.layers.3.self_attn.q_proj.trellis", Part.MIXING, 3),
        ("model.language_model.layers.12.linear_attn.A_log", Part.MIXING, 12),
        ("model.layers.3.self_attn.q_norm.weight", Part.MIXING, 3),
        ("model.layers.3.mlp.experts.7.up_proj.suh", Part.FEED_FORWARD, 3),
        ("model.layers.3.input_layernorm.weight", Part.NORM, 3),
        ("model.language_model.embed_tokens.weight", Part.EMBEDDING, None),
        ("lm_head.trellis", Part.HEAD, None),
        ("model.norm.weight", Part.NORM, None),
        ("model.visual.blocks.0.attn.qkv.weight", Part.VISION, None),
        ("mtp.layers.0.self_attn.q_proj.trellis", Part.DRAFTER, None),
    ],
)
def test_tensor_name_tells_its_part(name: str, part: Part, layer: int | None) -> None:
    place_of = placement(name)
    assert (place_of.part, place_of.layer) == (part, layer)


def test_27b_on_two_12_gib_cards_seats_five_at_80k_with_4_bit_cache() -> None:
    """The question this plan exists for. One card alone never holds it, so replicas seat nobody."""
    model, load = MODEL_27B, WEIGHTS_27B
    people = {
        (precision, layout): most_people(model, load, TWELVE, Demand(EIGHTY_K, 6, precision), layout)
        for precision in (FULL, EIGHT, FOUR)
        for layout in Layout
    }
    assert people == {
        (FULL, Layout.SPLIT): 1, (FULL, Layout.TENSOR): 1, (FULL, Layout.REPLICAS): 0,
        (EIGHT, Layout.SPLIT): 2, (EIGHT, Layout.TENSOR): 3, (EIGHT, Layout.REPLICAS): 0,
        (FOUR, Layout.SPLIT): 5, (FOUR, Layout.TENSOR): 5, (FOUR, Layout.REPLICAS): 0,
    }  # fmt: skip


def test_9b_on_two_12_gib_cards_seats_six_at_80k_even_with_fp16_cache() -> None:
    model, load = MODEL_9B, WEIGHTS_9B
    people = {
        (precision, layout): most_people(model, load, TWELVE, Demand(EIGHTY_K, 6, precision), layout)
        for precision in (FULL, FOUR)
        for layout in Layout
    }
    assert people == {
        (FULL, Layout.SPLIT): 6, (FULL, Layout.TENSOR): 6, (FULL, Layout.REPLICAS): 4,
        (FOUR, Layout.SPLIT): 22, (FOUR, Layout.TENSOR): 23, (FOUR, Layout.REPLICAS): 16,
    }  # fmt: skip


def test_split_rows_hold_every_byte_of_weights_cache_and_state_once() -> None:
    model, load = MODEL_27B, WEIGHTS_27B
    demand = Demand(EIGHTY_K, 5, FOUR)
    placed = place(model, load, TWELVE, demand, Layout.SPLIT)
    assert isinstance(placed, Fits)
    assert sum(card.size(Item.WEIGHTS) for card in placed.cards) == load.loaded
    assert sum(card.size(Item.KV) for card in placed.cards) == demand.tokens * 18 * 1024
    assert sum(card.size(Item.RECURRENT) for card in placed.cards) == sum(state_bytes(layer, 5, 0) for layer in model.layers)
    first, second = placed.cards
    assert first.layers is not None
    assert second.layers is not None
    assert (first.layers[0], second.layers[0], second.layers[1]) == (0, first.layers[1] + 1, 63)
    assert min(card.free for card in placed.cards) >= 0
    assert (first.size(Item.MARGIN), first.size(Item.OVERHEAD)) == (MARGIN, ASSUMED_OVERHEAD)


def test_rows_say_how_far_they_can_be_believed() -> None:
    model, load = MODEL_9B, WEIGHTS_9B
    measured = (Card("RTX", 12 * GIB, 900 * MIB, confirmed=3), TWELVE[1])
    placed = place(model, load, measured, Demand(EIGHTY_K, 6, FULL), Layout.SPLIT)
    assert isinstance(placed, Fits)
    believed = [{row.item: row.certainty for row in card.rows} for card in placed.cards]
    assert believed[0][Item.OVERHEAD] is Certainty.MEASURED
    assert believed[1][Item.OVERHEAD] is Certainty.ASSUMED
    assert believed[0][Item.WEIGHTS] is believed[0][Item.KV] is Certainty.EXACT
    assert believed[0][Item.PREFILL] is Certainty.ESTIMATED
    tensor_rows = place(model, load, TWELVE, Demand(EIGHTY_K, 2, FULL), Layout.TENSOR)
    assert isinstance(tensor_rows, Fits)
    assert tensor_rows.cards[0].rows[0].certainty is Certainty.ESTIMATED


def test_model_that_fits_nowhere_says_which_layer_and_how_much_is_missing() -> None:
    model, load = MODEL_27B, WEIGHTS_27B
    placed = place(model, load, TWELVE[:1], Demand(EIGHTY_K, 1, FOUR), Layout.SPLIT)
    assert isinstance(placed, NoRoom)
    assert placed.words == "layer 51 of 64 finds no room on the card"
    assert 3 * GIB < placed.short < 4 * GIB


def test_card_without_room_is_left_out_and_the_other_used() -> None:
    model, load = MODEL_9B, WEIGHTS_9B
    cards = (Card("small", 1 * GIB, ASSUMED_OVERHEAD), TWELVE[1])
    placed = place(model, load, cards, Demand(8192, 1, FOUR), Layout.SPLIT)
    assert isinstance(placed, Fits)
    assert placed.cards[0].layers is None
    assert placed.cards[1].layers == (0, 31)


def test_replicas_share_people_out_by_room() -> None:
    model, load = MODEL_9B, WEIGHTS_9B
    placed = place(model, load, TWELVE, Demand(EIGHTY_K, 3, FULL), Layout.REPLICAS)
    assert isinstance(placed, Fits)
    assert [card.people for card in placed.cards] == [2, 1]
    assert all(card.layers == (0, 31) for card in placed.cards)


def test_replicas_that_seat_too_few_say_what_one_more_person_lacks() -> None:
    placed = place(MODEL_9B, WEIGHTS_9B, TWELVE, Demand(EIGHTY_K, 6, FULL), Layout.REPLICAS)
    assert isinstance(placed, NoRoom)
    assert placed.words == "4 people fit on 2 cards, 6 are wanted"
    assert 0 < placed.short < Demand(EIGHTY_K, 1).tokens * 32 * 1024


def test_split_made_elsewhere_is_planned_by_the_layers_that_lie_on_each_card() -> None:
    model, load = MODEL_27B, WEIGHTS_27B
    demand = Demand(EIGHTY_K, 2, FOUR)
    own = place(model, load, TWELVE, demand, Layout.SPLIT)
    assert isinstance(own, Fits)
    held = tuple(card.layers[1] - card.layers[0] + 1 for card in own.cards if card.layers)
    assert split_as(model, load, TWELVE, demand, held) == own
    shifted = split_as(model, load, TWELVE, demand, (held[0] - 1, held[1] + 1))
    assert sum(card.computed for card in shifted.cards) == sum(card.computed for card in own.cards)
    assert shifted.cards[1].computed > own.cards[1].computed
    alone = split_as(model, load, TWELVE, demand, (64, 0))
    assert [card.layers for card in alone.cards] == [(0, 63), None]
    assert alone.cards[1].computed == 0
    assert alone.cards[0].free < 0


def test_other_programs_reserve_and_limit_leave_less_room() -> None:
    card = Card("GPU 0", 12 * GIB, GIB, others=2 * GIB, reserve=GIB)
    assert card.room == 8 * GIB
    assert replace(card, limit=6 * GIB).room == 5 * GIB
    assert replace(card, limit=20 * GIB).room == 8 * GIB
    placed = place(MODEL_9B, WEIGHTS_9B, (card,), Demand(8192, 1, FOUR), Layout.SPLIT)
    assert isinstance(placed, Fits)
    assert placed.cards[0].size(Item.OTHERS) == 2 * GIB
    assert placed.cards[0].free == 12 * GIB - placed.cards[0].used


def test_drafter_of_its_own_costs_weights_cache_and_states() -> None:
    draft = Draft(weights=GIB, token=1000, slot=5000)
    demand = Demand(8192, 2, FULL, history=4, draft=draft)
    placed = place(MODEL_9B, WEIGHTS_9B, TWELVE, demand, Layout.SPLIT)
    assert isinstance(placed, Fits)
    assert placed.cards[0].size(Item.DRAFTER) == GIB + 1000 * demand.tokens + 2 * 5000


def test_configured_cache_and_slots_count_and_not_those_of_people() -> None:
    demand = Demand(EIGHTY_K, 1, FOUR, cache_tokens=4096, slots=7)
    placed = place(MODEL_9B, WEIGHTS_9B, TWELVE, demand, Layout.SPLIT)
    assert isinstance(placed, Fits)
    assert sum(card.size(Item.KV) for card in placed.cards) == 4096 * sum(token_bytes(layer, FOUR) for layer in MODEL_9B.layers)
    assert sum(card.size(Item.RECURRENT) for card in placed.cards) == sum(state_bytes(layer, 7, 0) for layer in MODEL_9B.layers)


def test_experts_that_stay_in_host_memory_are_not_on_the_card() -> None:
    config = {**QWEN3_5_27B, "architectures": ["Qwen3_5MoeForCausalLM"], "num_experts": 4, "moe_intermediate_size": 512}
    model = describe(config)
    expert = tensor("model.language_model.layers.0.mlp.experts.1.up_proj.trellis", "I16", 320, 32, 64)
    mark = tensor("model.language_model.layers.0.mlp.experts.1.up_proj.mul1", "F32", 1)
    rest = tensors(QWEN3_5_27B)
    files = weigh((*rest, expert, mark), 64, tied=False)
    held = [place(model, files, BIG, Demand(256, 1, experts_on_cpu=experts), Layout.SPLIT) for experts in (0, 1)]
    moved = [placed.cards[0].size(Item.WEIGHTS) for placed in held if isinstance(placed, Fits)]
    assert moved[0] - moved[1] == expert.size + mark.size
    unmarked = weigh((*rest, expert), 64, tied=False)
    assert unmarked.layers[0].experts == 0


def test_tensor_layout_keeps_heads_whole_on_uneven_cards() -> None:
    model, load = MODEL_9B, WEIGHTS_9B
    cards = (Card("big", 24 * GIB, ASSUMED_OVERHEAD), Card("small", 8 * GIB, ASSUMED_OVERHEAD))
    demand = Demand(EIGHTY_K, 2, FULL)
    placed = place(model, load, cards, demand, Layout.TENSOR)
    assert isinstance(placed, Fits)
    whole = demand.tokens * 8 * 4 * 1024
    assert [card.size(Item.KV) / whole for card in placed.cards] == [0.75, 0.25]


def test_drafter_history_and_vision_are_counted_only_when_asked_for() -> None:
    config = {**ORNITH_9B, "mtp_num_hidden_layers": 1, "vision_config": {"depth": 1}}
    files = (*tensors(ORNITH_9B), tensor("mtp.fc.weight", "F16", 1000, 1000), tensor("model.visual.x.weight", "F16", 500, 500))
    model = describe(config)
    load = weigh(files, len(model.layers), tied=False)
    plain = place(model, load, TWELVE, Demand(8192, 1, FULL), Layout.SPLIT)
    asked = place(model, load, TWELVE, Demand(8192, 1, FULL, history=4, drafter=True, vision=True), Layout.SPLIT)
    assert isinstance(plain, Fits)
    assert isinstance(asked, Fits)
    assert plain.cards[0].size(Item.DRAFTER) == plain.cards[0].size(Item.VISION) == 0
    assert asked.cards[0].size(Item.DRAFTER) == 2_000_000 + Demand(8192, 1).tokens * 4096
    assert asked.cards[0].size(Item.VISION) == 500_000
    assert asked.cards[0].size(Item.RECURRENT) > plain.cards[0].size(Item.RECURRENT)


def test_prefill_transient_is_the_larger_half_with_staging_only_for_a_quantised_cache() -> None:
    model, load = MODEL_27B, WEIGHTS_27B
    attention, part = model.layers[3], load.layers[3]
    demand = Demand(EIGHTY_K, 1, FULL)
    rows = 2048
    assert layer_transient(model, attention, part, demand) == 2 * rows * 5120 * 4 + part.rebuilt + 2 * rows * 17408 * 2
    thin = layer_transient(model, attention, part, replace(demand, precision=FOUR))
    staging = 2 * 256 * 256 * 4 * 256 * 2 + rows * 24 * 256 * 4
    assert thin == 2 * rows * 5120 * 4 + part.rebuilt + staging + rows * (3 * 24 + 2 * 4) * 256 * 2
    short = layer_transient(model, attention, part, replace(demand, chunk=128))
    assert short == 2 * 128 * 5120 * 4 + 2 * 128 * 17408 * 2


def test_logits_are_rows_of_padded_vocabulary() -> None:
    assert logits_bytes(describe({**ORNITH_9B, "vocab_size": 1000}), Demand(256, 3, history=2)) == 9 * 1024 * 6


def test_changes_are_each_proven_and_empty_where_it_fits() -> None:
    model, load = MODEL_27B, WEIGHTS_27B
    demand = Demand(EIGHTY_K, 6, FULL)
    found = {change.lever: change for change in changes(model, load, TWELVE, demand, Layout.SPLIT)}
    assert set(found) == {Lever.CACHE_BITS, Lever.CONTEXT, Lever.PEOPLE}
    assert found[Lever.CACHE_BITS].words.endswith("for 5 people at this context, or 6 at 72,448 tokens")
    assert found[Lever.PEOPLE].words == "1 person at this context"
    context = longest_context(model, load, TWELVE, demand, Layout.SPLIT)
    assert f"{context:,}" in found[Lever.CONTEXT].words
    assert isinstance(place(model, load, TWELVE, replace(demand, context=context), Layout.SPLIT), Fits)
    assert isinstance(place(model, load, TWELVE, replace(demand, context=context + PAGE), Layout.SPLIT), NoRoom)
    thin = {change.lever: change for change in changes(model, load, TWELVE, replace(demand, precision=FOUR), Layout.SPLIT)}
    assert thin[Lever.WEIGHT_BITS].words == "the model quantised to about 3.5 bits a weight"
    assert most_people(model, lighter(load, 3.5), TWELVE, replace(demand, precision=FOUR), Layout.SPLIT) >= 6
    four = {change.lever: change for change in changes(model, load, TWELVE, replace(demand, people=4), Layout.SPLIT)}
    assert four[Lever.CACHE_BITS].words == "a cache of 5-bit keys and 5-bit values"
    assert changes(model, load, TWELVE, Demand(EIGHTY_K, 1, FOUR), Layout.SPLIT) == ()


def test_layout_that_would_fit_is_named() -> None:
    model, load = MODEL_27B, WEIGHTS_27B
    found = changes(model, load, TWELVE, Demand(EIGHTY_K, 3, EIGHT), Layout.SPLIT)
    assert Lever.LAYOUT in {change.lever for change in found}


def test_leaving_speculation_out_is_advised_where_it_makes_room() -> None:
    draft = Draft(weights=2 * GIB, token=10_000, slot=0)
    demand = Demand(EIGHTY_K, 5, FOUR, history=4, draft=draft)
    found = {change.lever: change for change in changes(MODEL_27B, WEIGHTS_27B, TWELVE, demand, Layout.SPLIT)}
    assert (found[Lever.SPECULATION].words, found[Lever.SPECULATION].people) == ("no speculation", 5)


def test_speculation_for_many_streams_is_advised_against() -> None:
    assert speculation_advice(Demand(EIGHTY_K, 6, history=4)) is not None
    assert speculation_advice(Demand(EIGHTY_K, 2, history=4)) is None
    assert speculation_advice(Demand(EIGHTY_K, 6)) is None


@settings(max_examples=20, deadline=None)
@given(
    context=st.integers(256, 262144),
    bits=st.sampled_from([FULL, EIGHT, FOUR]),
    layout=st.sampled_from(list(Layout)),
    sizes=st.lists(st.integers(2, 32), min_size=1, max_size=3),
)
def test_more_people_fit_never_with_more_context_and_a_placing_never_overfills(
    context: int, bits: Precision, layout: Layout, sizes: list[int]
) -> None:
    model, load = MODEL_9B, WEIGHTS_9B
    cards = tuple(Card(f"GPU {n}", size * GIB, ASSUMED_OVERHEAD) for n, size in enumerate(sizes))
    people = most_people(model, load, cards, Demand(context, 1, bits), layout)
    assert most_people(model, load, cards, Demand(context + 4096, 1, bits), layout) <= people
    if people:
        placed = place(model, load, cards, Demand(context, people, bits), layout)
        assert isinstance(placed, Fits)
        assert all(card.used <= card.card.size for card in placed.cards if card.layers is not None)
        assert sum(card.people for card in placed.cards if layout is Layout.REPLICAS) in {0, people}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "architectures"),
        ({"architectures": [], "hidden_size": 1, "num_hidden_layers": 1, "num_attention_heads": 1}, "architectures is empty"),
        ({**ORNITH_9B, "hidden_size": "big"}, "hidden_size"),
        ({**ORNITH_9B, "num_attention_heads": 0}, "positive"),
        ({**ORNITH_9B, "layer_types": ["full_attention"]}, "1 entries for 32 layers"),
        ({**ORNITH_9B, "layer_types": ["moonshine"] * 32}, "moonshine"),
        ({**ORNITH_9B, "ssm_state_size": 128}, "ssm_state_size"),
        ({**ORNITH_9B, "vocab_size": None}, "vocab_size"),
    ],
)
def test_config_that_cannot_be_planned_is_one_sentence(config: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        describe(config)


@pytest.mark.parametrize("bits", [(16, 4), (1, 4), (9, 9), (4, 16)])
def test_cache_bits_that_no_cache_has_are_refused(bits: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=f"k_bits is {bits[0]} and v_bits is {bits[1]}"):
        Precision(*bits).check()


def test_multimodal_config_is_read_from_its_text_part() -> None:
    inner = {key: value for key, value in ORNITH_9B.items() if key != "architectures"}
    model = describe({"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": inner, "vision_config": {}})
    assert model.vision
    assert model.layers == describe(ORNITH_9B).layers


def test_mixture_of_experts_is_read() -> None:
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 1000, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "intermediate_size": 6144,
    }  # fmt: skip
    model = describe(config)
    assert model.experts is not None
    assert (model.experts.count, model.experts.per_token, model.experts.intermediate) == (128, 8, 768)
    assert model.layers == (AttentionLayer(32, 4, 128),) * 2


def _header(entries: dict[str, object]) -> bytes:
    return json.dumps(entries).encode()


def test_header_is_read_with_sizes_and_order() -> None:
    head = _header(
        {
            "__metadata__": {"format": "pt"},
            "b": {"dtype": "F16", "shape": [2, 3], "data_offsets": [8, 20]},
            "a": {"dtype": "I32", "shape": [2], "data_offsets": [0, 8]},
        }
    )
    assert header_length(len(head).to_bytes(8, "little"), "x") == len(head)
    assert [(t.name, t.size, t.shape) for t in parse_header(head, "x").tensors] == [("a", 8, (2,)), ("b", 12, (2, 3))]
    assert parse_header(head, "x").body == 20


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"{", "damaged"),
        (b"[]", "damaged"),
        (_header({"a": {"dtype": "F16", "shape": [2]}}), "damaged"),
        (_header({"a": {"dtype": "F16", "shape": [2], "data_offsets": [4, 0]}}), "offsets"),
        (_header({"a": {"dtype": "F16", "shape": [-2, -1], "data_offsets": [0, 4]}}), "damaged"),
        (_header({"a": {"dtype": "F16", "shape": [3], "data_offsets": [0, 4]}}), "another number"),
        (
            _header(
                {
                    "a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]},
                    "b": {"dtype": "F16", "shape": [2], "data_offsets": [2, 6]},
                }
            ),
            "b begins inside a",
        ),
    ],
)
def test_damaged_header_is_one_sentence_with_the_file(head: bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_header(head, "model.safetensors")
    assert str(caught.value).startswith("model.safetensors: ")


@pytest.mark.parametrize("prefix", [b"", b"\0" * 8, b"\xff" * 8])
def test_file_that_is_no_safetensors_is_refused(prefix: bytes) -> None:
    with pytest.raises(ConfigError, match="no safetensors file"):
        header_length(prefix, "x")


@given(st.binary(max_size=200))
def test_arbitrary_header_bytes_give_tensors_or_a_config_error(head: bytes) -> None:
    try:
        found = parse_header(head, "x").tensors
    except ConfigError:
        return
    assert all(item.size >= 0 and prod(item.shape) >= 0 for item in found)


def test_delta_layer_channels_are_queries_keys_and_values() -> None:
    assert DeltaLayer(16, 48, 128, 128, 4).channels == 2 * 16 * 128 + 48 * 128
