"""The forecast before an engine: what is refused, what is only said, and what cannot be known."""

import logging
from pathlib import Path

import pytest
from msgspec.structs import replace

from daemon.core.errors import ConfigError
from daemon.core.settings import BackendKind, EngineLayout, EngineSettings, Speculation
from daemon.core.vram_learned import Held, Learned, Load, Machine, learn
from daemon.core.vram_values import Layout
from daemon.host import gpu_census
from daemon.host.fit import check_fit, forecast, weigh_model
from daemon.host.gpu_census import Census, CountedGpu
from tests.core.vram_models import ORNITH_9B, tensors, write_model
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


def test_drafter_is_weighed_with_the_model(model: Path) -> None:
    engine = EngineSettings(k_bits=4, v_bits=4, speculation=Speculation.DRAFT, draft_model=str(model))
    weighed = weigh_model(model, "9B", engine)
    assert weighed.beside.draft is not None
    assert weighed.beside.draft.weights == weighed.weights.loaded
