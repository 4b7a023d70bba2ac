"""The forecast before an engine: what is refused, what is only said, and what cannot be known."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from daemon.core.errors import ConfigError
from daemon.core.layout import layout_of
from daemon.core.settings import BackendKind, EngineLayout, EngineSettings, LoraSettings, Speculation
from daemon.core.vram_host import HostMemory
from daemon.core.vram_learned import Held, Learned, Load, Machine, learn
from daemon.core.vram_values import Layout
from daemon.host import gpu_census
from daemon.host.fit import Weighed, check_fit, check_host, check_possible, forecast, host_memory, weigh_model
from daemon.host.gpu_census import Census, CountedGpu
from tests.core.vram_models import MOE, ORNITH_9B, expert_tensors, tensor, tensors, write_adapter, write_model
from tests.host.test_gpu_census import tool

GIB = 1 << 30
CUDA = EngineSettings(backend=BackendKind.CUDA, k_bits=4, v_bits=4, max_batch=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "9B", ORNITH_9B)


def card(size: float, used: float | None = 0.0) -> CountedGpu:
    return CountedGpu(f"GPU-{size}", "RTX", int(size * GIB), None if used is None else int(used * GIB))


def looked(model: Path, directory: Path, mib: int, engine: EngineSettings) -> object:
    around = tool(directory, f"print('GPU-1, RTX, {mib}, 0, 576.88')")
    return forecast(model, "9B", engine, 8192, Learned(), around)


def test_model_too_large_for_the_card_is_refused_with_the_plan(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="9B does not fit as configured: layer") as caught:
        looked(model, tmp_path, 4096, CUDA)
    assert "GPU 0 (RTX): 4,096 MiB" in str(caught.value)


def test_force_loads_it_and_the_log_has_the_plan(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    forced = EngineSettings(backend=BackendKind.CUDA, k_bits=4, v_bits=4, max_batch=4, force=True)
    with caplog.at_level(logging.WARNING):
        looked(model, tmp_path, 4096, forced)
    assert "this may end for want of memory: 9B does not fit as configured" in caplog.text


@pytest.mark.parametrize("backend", [BackendKind.CPU, BackendKind.NULL])
def test_engine_without_a_gpu_is_never_refused(model: Path, tmp_path: Path, backend: BackendKind) -> None:
    around = tool(tmp_path, "import pathlib; pathlib.Path(__file__).with_suffix('.asked').touch()")
    found = forecast(model, "9B", EngineSettings(backend=backend), 8192, Learned(), around)
    assert found.model is None
    assert not (tmp_path / "nvidia-smi.asked").exists()


def test_nothing_is_refused_where_no_card_answers(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_census, "_ELSEWHERE", ())
    assert forecast(model, "9B", CUDA, 8192, Learned(), {"PATH": str(tmp_path)}).census.gpus == ()


def test_model_whose_memory_nobody_knows_is_loaded_without_a_plan(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    strange = write_model(tmp_path / "strange", {**ORNITH_9B, "ssm_state_size": 128}, tensors(ORNITH_9B))
    with caplog.at_level(logging.WARNING):
        looked(strange, tmp_path, 4096, CUDA)
    assert "loading without a memory plan" in caplog.text


def test_what_does_not_fit_only_beside_other_programs_is_tried(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    weighed = weigh_model(model, "9B", CUDA)
    with caplog.at_level(logging.WARNING):
        check_fit(weighed, CUDA, 8192, Census((card(12, used=0.2),)), Learned())
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING):
        check_fit(weighed, CUDA, 8192, Census((card(12, used=9),)), Learned())
    assert "9,216 MiB held by other programs" in caplog.text


def test_measured_overhead_decides_where_the_assumed_one_would_not(model: Path) -> None:
    weighed, cards = weigh_model(model, "9B", CUDA), Census((card(7),), "1")
    check_fit(weighed, CUDA, 8192, cards, Learned())
    held = Held(5 * GIB, 8 * GIB, 7 * GIB, 0)
    learned = learn(Learned(), Machine(("RTX",), "1", Layout.SPLIT), Load(1.0, "9B", (held,)))
    with pytest.raises(ConfigError, match=r"3,072 MiB of overhead \(measured in 1 load\)"):
        check_fit(weighed, CUDA, 8192, cards, learned)


def test_each_card_must_hold_a_whole_replica(model: Path) -> None:
    weighed = weigh_model(model, "9B", CUDA)
    both = Census((card(12), card(4)))
    check_fit(weighed, CUDA, 8192, both, Learned())
    with pytest.raises(ConfigError, match=r"GPU 1 \(RTX\): 4,096 MiB"):
        check_fit(weighed, replace(CUDA, layout=EngineLayout.REPLICAS), 8192, both, Learned())


def test_split_over_more_cards_than_there_are_is_refused(model: Path) -> None:
    engine = EngineSettings(backend=BackendKind.CUDA, gpu_split=[6.0, 6.0])
    with pytest.raises(ConfigError, match=r"engine\.gpu_split names 2 GPUs, and 1 can be used"):
        check_fit(weigh_model(model, "9B", engine), engine, 8192, Census((card(12),)), Learned())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reserve_gpu_mib": [256, 256, 0]}, r"engine\.reserve_gpu_mib has 3 numbers, and 2 GPUs can be used"),
        ({"reserve_gpu_mib": [11000, 11000]}, r"GPU 0 \(RTX\): 12.0 GiB; 768 MiB of overhead \(assumed\), 11.0 GiB left free"),
        ({"layout": EngineLayout.TENSOR, "replicas": 2}, r"engine\.layout is tensor, one engine for all GPUs"),
        ({"layout": EngineLayout.TENSOR, "gpu_split": [12.0, 0.0]}, r"needs two GPUs or more, and engine\.gpu_split uses 1"),
        ({"layout": EngineLayout.TENSOR, "gpu_split": [3.0, 3.0]}, r"the share of GPU \d \(RTX\) does not fit it"),
        ({"moe_cpu_layers": 4}, r"moe_cpu_layers is 4, and the model has no experts in any of its 32 layers"),
    ],
)
def test_what_two_cards_cannot_do_is_refused_with_the_numbers(model: Path, change: dict[str, Any], words: str) -> None:
    engine = replace(CUDA, **change)
    weighed = weigh_model(model, "9B", engine)
    with pytest.raises(ConfigError, match=words):
        refuse(weighed, engine, Census((card(12), card(11.5))))


def refuse(weighed: Weighed, engine: EngineSettings, census: Census) -> None:
    check_possible(weighed, engine, layout_of(engine))
    check_fit(weighed, engine, 8192, census, Learned())


def test_cards_that_together_hold_the_model_hold_it_divided(model: Path) -> None:
    engine = replace(CUDA, layout=EngineLayout.TENSOR)
    weighed = weigh_model(model, "9B", engine)
    refuse(weighed, engine, Census((card(5), card(5.5))))
    with pytest.raises(ConfigError, match="needs two GPUs or more, and 1 can be used"):
        refuse(weighed, engine, Census((card(24),)))
    undivided = dataclasses.replace(weighed, shape=dataclasses.replace(weighed.shape, architecture="Olmo3ForCausalLM"))
    with pytest.raises(ConfigError, match="cannot divide the layers of Olmo3ForCausalLM among GPUs: use split or replicas"):
        refuse(undivided, engine, Census((card(12), card(11.5))))


def test_host_memory_is_asked_before_an_engine_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Refused where the machine never has it, told where only others hold it."""
    directory = write_model(tmp_path / "experts", MOE, expert_tensors())
    engine = replace(CUDA, moe_cpu_layers=40)
    weighed = weigh_model(directory, "MoE", engine)
    assert weighed.demand(engine, 8192).experts_on_cpu == 40
    check_host(weighed, engine, Layout.SPLIT, 2, HostMemory(64 * GIB, 60 * GIB))
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING):
        check_host(weighed, engine, Layout.SPLIT, 2, HostMemory(64 * GIB, 8 * GIB))
    assert "host memory is short by" in caplog.text
    with pytest.raises(ConfigError, match=r"MoE does not fit as configured: host memory is short by .* has 32\.0 GiB"):
        check_host(weighed, engine, Layout.REPLICAS, 2, HostMemory(32 * GIB, 30 * GIB))
    check_host(weighed, replace(engine, force=True), Layout.REPLICAS, 2, HostMemory(32 * GIB, 30 * GIB))


def test_host_memory_is_read_from_the_system_and_its_absence_stops_nothing(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       32768 kB\nMemFree:         1 kB\nMemAvailable:   1024 kB\n")
    assert host_memory(file) == HostMemory(32 << 20, 1 << 20)
    assert host_memory(tmp_path / "nowhere") is None
    real = host_memory()
    assert real is not None
    assert 0 < real.available <= real.total


def test_adapters_are_weighed_with_the_model_and_a_directory_without_one_is_named(model: Path, tmp_path: Path) -> None:
    half = tensor("base_model.model.model.layers.3.mlp.up_proj.lora_A.weight", "F32", 8, 4096)
    adapter = write_adapter(tmp_path / "tuned", (half,))
    engine = replace(CUDA, loras=[LoraSettings(path=str(adapter))])
    demand = weigh_model(model, "9B", engine).demand(engine, 8192)
    assert demand.adapters is not None
    assert (demand.adapters.layers[3], demand.adapters.total) == (2 * 8 * 4096, 2 * 8 * 4096)
    with pytest.raises(ConfigError, match=r"adapter_model\.safetensors is missing"):
        weigh_model(model, "9B", replace(CUDA, loras=[LoraSettings(path=str(tmp_path))]))


def test_drafter_is_weighed_with_the_model(model: Path) -> None:
    engine = EngineSettings(k_bits=4, v_bits=4, speculation=Speculation.DRAFT, draft_model=str(model))
    weighed = weigh_model(model, "9B", engine)
    assert weighed.beside.draft is not None
    assert weighed.beside.draft.weights == weighed.weights.loaded
