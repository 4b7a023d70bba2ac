"""Which engines there are: how many, on which cards, with which part of the settings."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.errors import ConfigError
from daemon.core.layout import layout_of, places, reserves
from daemon.core.settings import EngineLayout, EngineSettings, LoraSettings
from daemon.core.vram_values import Layout

AUTO, SPLIT, TENSOR, REPLICAS = EngineLayout.AUTO, EngineLayout.SPLIT, EngineLayout.TENSOR, EngineLayout.REPLICAS
CARDS = ("GPU-a", "GPU-b", "GPU-c")


@pytest.mark.parametrize(
    ("layout", "replicas", "expected"),
    [
        (AUTO, None, Layout.SPLIT),
        (AUTO, 1, Layout.SPLIT),
        (AUTO, 2, Layout.REPLICAS),
        (SPLIT, None, Layout.SPLIT),
        (SPLIT, 1, Layout.SPLIT),
        (TENSOR, None, Layout.TENSOR),
        (TENSOR, 1, Layout.TENSOR),
        (REPLICAS, None, Layout.REPLICAS),
        (REPLICAS, 1, Layout.REPLICAS),
    ],
)
def test_layout_is_split_unless_replicas_are_asked_for(layout: EngineLayout, replicas: int | None, expected: Layout) -> None:
    assert layout_of(EngineSettings(layout=layout, replicas=replicas)) is expected


@pytest.mark.parametrize("gpus", [None, (), CARDS])
def test_one_engine_has_the_settings_as_they_are_and_every_card(gpus: tuple[str, ...] | None) -> None:
    settings = EngineSettings(gpu_split=[11.0, 11.0, 11.0], ram_cache_mib=512)
    (only,) = places(settings, gpus, 8)
    assert only.settings == settings
    assert (only.number, only.gpus, only.folder) == (0, None, "")
    assert only.environment == {}


def test_replicas_get_a_card_each_in_order_and_see_no_other() -> None:
    laid = places(EngineSettings(layout=REPLICAS), CARDS, 8)
    assert [place.gpus for place in laid] == [("GPU-a",), ("GPU-b",), ("GPU-c",)]
    assert [dict(place.environment) for place in laid] == [{"CUDA_VISIBLE_DEVICES": card} for card in CARDS]
    assert len({place.folder for place in laid}) == 3


def test_fewer_replicas_than_cards_leave_the_last_cards_alone() -> None:
    assert [place.gpus for place in places(EngineSettings(replicas=2), CARDS, 8)] == [("GPU-a",), ("GPU-b",)]


@pytest.mark.parametrize(
    ("settings", "gpus", "words"),
    [
        (EngineSettings(replicas=3), CARDS[:2], "engine.replicas is 3, and 2 GPUs can be used"),
        (EngineSettings(replicas=2), ("GPU-a", "GPU-a"), "engine.replicas is 2, and 1 GPU can be used"),
        (EngineSettings(replicas=2), (), "no GPU"),
        (EngineSettings(layout=REPLICAS), None, "engine.replicas says how many"),
        (EngineSettings(layout=SPLIT, replicas=2), CARDS, "one engine for all GPUs"),
        (EngineSettings(layout=REPLICAS, gpu_split=[11.0]), CARDS, "names 1 GPUs, and there are 3 replicas"),
        (EngineSettings(layout=REPLICAS, reserve_gpu_mib=[512, 0]), CARDS, "has 2 numbers, and 3 GPUs can be used"),
        (EngineSettings(layout=TENSOR, replicas=2), CARDS, "layout is tensor, one engine for all GPUs"),
        (EngineSettings(layout=TENSOR), CARDS[:1], "needs two GPUs or more, and 1 can be used"),
        (EngineSettings(layout=TENSOR), ("GPU-a", "GPU-a"), "needs two GPUs or more, and 1 can be used"),
        (EngineSettings(layout=TENSOR), None, "divides layers among GPUs, and engines compute on a CPU"),
        (EngineSettings(layout=TENSOR, gpu_split=[11.0, 0.0]), CARDS, "needs two GPUs or more, and engine.gpu_split uses 1"),
        (EngineSettings(layout=TENSOR, moe_cpu_layers=3), CARDS, "keeps the experts of 3 layers in host memory"),
        (EngineSettings(layout=TENSOR, loras=[LoraSettings(path="/a")]), CARDS, "engine.loras names 1"),
        (EngineSettings(moe_cpu_layers=3), None, "moe_cpu_layers is 3, which takes experts off a GPU"),
    ],
)
def test_what_cannot_be_laid_out_is_refused_with_the_numbers(
    settings: EngineSettings, gpus: tuple[str, ...] | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        places(settings, gpus, 8)


def test_one_engine_for_the_layout_tensor_has_every_card_also_where_nobody_could_count_them() -> None:
    settings = EngineSettings(layout=TENSOR)
    for gpus in (CARDS, ()):
        (only,) = places(settings, gpus, 8)
        assert (only.settings, only.gpus) == (settings, None)


def test_every_contradiction_is_one_sentence_that_names_its_setting() -> None:
    wrong = EngineSettings(layout=TENSOR, replicas=2)
    with pytest.raises(ConfigError) as caught:
        layout_of(wrong)
    assert str(caught.value).startswith("engine.replicas: ")
    assert "\n" not in str(caught.value)


def test_reserve_is_one_number_for_all_cards_or_one_for_each() -> None:
    assert reserves(EngineSettings(reserve_gpu_mib=300), 3) == (300, 300, 300)
    assert reserves(EngineSettings(reserve_gpu_mib=[1024, 0]), 2) == (1024, 0)
    with pytest.raises(ConfigError, match="has 1 number, and 2 GPUs can be used"):
        reserves(EngineSettings(reserve_gpu_mib=[1024]), 2)


def test_reserve_of_each_card_goes_to_its_engine() -> None:
    laid = places(EngineSettings(layout=REPLICAS, reserve_gpu_mib=[512, 0, 256]), CARDS, 8)
    assert [place.settings.reserve_gpu_mib for place in laid] == [512, 0, 256]


def test_size_of_each_card_goes_to_its_engine() -> None:
    laid = places(EngineSettings(layout=REPLICAS, gpu_split=[11.0, 0.5, 7.0]), CARDS, 8)
    assert [place.settings.gpu_split for place in laid] == [[11.0], [0.5], [7.0]]


@pytest.mark.parametrize(("cores", "threads", "expected"), [(16, None, 4), (2, None, 1), (1, None, 1), (16, 5, 5)])
def test_engines_on_a_cpu_share_its_cores(cores: int, threads: int | None, expected: int) -> None:
    laid = places(EngineSettings(replicas=2, threads=threads), None, cores)
    assert [place.settings.threads for place in laid] == [expected, expected]
    assert [place.gpus for place in laid] == [None, None]


def test_host_memory_is_divided_and_cache_and_streams_are_each_engines_own() -> None:
    settings = EngineSettings(
        layout=REPLICAS, cache_tokens=81920, max_batch=8, ram_cache_mib=4096, checkpoint_memory_mib=1, disk_cache_gib=3.0
    )
    for place in places(settings, CARDS[:2], 8):
        part = place.settings
        assert (part.cache_tokens, part.max_batch) == (81920, 8)
        assert (part.ram_cache_mib, part.checkpoint_memory_mib, part.disk_cache_gib) == (2048, 1, 1.5)


@given(
    layout=st.sampled_from(EngineLayout),
    replicas=st.none() | st.integers(1, 16),
    gpus=st.none() | st.lists(st.sampled_from([f"GPU-{n}" for n in range(6)]), max_size=8),
    cores=st.integers(1, 64),
)
def test_no_two_engines_ever_share_a_card_or_a_folder(
    layout: EngineLayout, replicas: int | None, gpus: list[str] | None, cores: int
) -> None:
    try:
        laid = places(EngineSettings(layout=layout, replicas=replicas), gpus, cores)
    except ConfigError:
        return
    assert [place.number for place in laid] == list(range(len(laid)))
    assert len({place.folder for place in laid}) == len(laid)
    if len(laid) > 1 and gpus is not None:
        assert all(place.gpus for place in laid)
        given_out = list(chain.from_iterable(place.gpus or () for place in laid))
        assert len(given_out) == len(set(given_out))
