"""Loading: order, progress, sizes, and every failure in words that say what to change."""

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from daemon.core.settings import BackendKind, EngineSettings
from daemon.core.wire import Configure, FatalClass
from daemon.engine.backend import EngineFailed, LoadStage
from daemon.engine.exl3 import loading, runtime
from daemon.engine.exl3.runtime import Device, DeviceKind
from tests.engine.checkpoints import Architecture
from tests.engine.conftest import ModelPath
from tests.engine.workbench import Workbench, ask, text

CPU = Device(DeviceKind.CPU, 1)


def _cpu(cache_tokens: int | None = 1024, k_bits: int = 16, v_bits: int = 16) -> EngineSettings:
    return EngineSettings(
        backend=BackendKind.CPU, cache_tokens=cache_tokens, k_bits=k_bits, v_bits=v_bits, max_batch=2, chunk_tokens=512, threads=1
    )


def _copy(source: Path, target: Path) -> Path:
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('{"architectures": ["NoSuchForCausalLM"]}', ("NoSuchForCausalLM", "Qwen3_5ForCausalLM", "LlamaForCausalLM")),
        ('{"architectures": []}', ("none", "LlamaForCausalLM")),
        ("[1, 2]", ("none",)),
        ("not json", ("config.json cannot be read",)),
        (None, ("config.json is missing",)),
        ('{"architectures": ["Qwen3ForCausalLM"]}', ("no .safetensors",)),
    ],
    ids=["unknown architecture", "no architecture", "no object", "broken", "missing", "no weights"],
)
def test_a_model_directory_that_cannot_be_loaded_is_explained(tmp_path: Path, config: str | None, words: tuple[str, ...]) -> None:
    """File or field by name; no restart helps."""
    if config is not None:
        (tmp_path / "config.json").write_text(config, encoding="utf-8")
    with pytest.raises(EngineFailed) as raised:
        Workbench(tmp_path, _cpu())
    assert raised.value.kind is FatalClass.CONFIG
    assert all(word in raised.value.detail for word in words), raised.value.detail


def test_a_missing_tensor_is_named(model_path: ModelPath, tmp_path: Path) -> None:
    """Not just that loading failed."""
    _copy(model_path(Architecture.QWEN3), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(key for key in tensors if "layers.1.self_attn.q_proj" in key)
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineFailed, match=r"layers\.1\.self_attn\.q_proj") as raised:
        Workbench(tmp_path, _cpu())
    assert raised.value.kind is FatalClass.CONFIG


def test_truncated_weights_are_explained(model_path: ModelPath, tmp_path: Path) -> None:
    """A download that was cut off."""
    weights = _copy(model_path(Architecture.QWEN3), tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:3000])
    with pytest.raises(EngineFailed, match="cannot be loaded") as raised:
        Workbench(tmp_path, _cpu())
    assert raised.value.kind is FatalClass.CONFIG


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (_cpu(v_bits=4), "both must be 16"),
        (_cpu(k_bits=9, v_bits=9), "between 2 and 8"),
        (_cpu(cache_tokens=1000), "multiple of 256"),
        (msgspec.structs.replace(_cpu(), ram_cache_mib=1024), "need a GPU"),
        (msgspec.structs.replace(_cpu(), disk_cache_gib=1.0), "need a GPU"),
    ],
)
def test_settings_that_do_not_fit_together_are_explained(model_path: ModelPath, settings: EngineSettings, words: str) -> None:
    """Before anything is loaded."""
    with pytest.raises(EngineFailed, match=words) as raised:
        Workbench(model_path(Architecture.QWEN3), settings)
    assert raised.value.kind is FatalClass.CONFIG


@pytest.mark.parametrize(
    ("problem", "kind", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), FatalClass.MEMORY, "engine.cache_tokens"),
        (RuntimeError("Insufficient VRAM in split for model and cache"), FatalClass.MEMORY, "does not fit the GPUs"),
        (RuntimeError("CUDA error: unknown error"), FatalClass.DEVICE, "device failed while loading"),
        (RuntimeError("something else"), FatalClass.INTERNAL, "something else"),
        (ValueError("Required tensor x not found"), FatalClass.CONFIG, "Required tensor x"),
    ],
)
def test_failures_of_the_library_are_translated(
    model_path: ModelPath, monkeypatch: pytest.MonkeyPatch, problem: Exception, kind: FatalClass, words: str
) -> None:
    """Each to its class and to words that say what to change."""

    def fail(*_arguments: object, **_options: object) -> object:
        raise problem

    monkeypatch.setattr(loading, "build_cache", fail)
    with pytest.raises(EngineFailed) as raised:
        Workbench(model_path(Architecture.QWEN3), _cpu())
    assert raised.value.kind is kind
    assert words in raised.value.detail


def test_the_cache_holds_one_whole_context_unless_told_otherwise() -> None:
    """On a CPU at most 32,768 tokens; always whole pages."""
    gpu = Device(DeviceKind.CUDA, 1)

    def tokens(context: int, device: Device, wanted: int | None = None) -> int:
        return loading.cache_tokens(Configure("/m", context, _cpu(wanted), "/s"), device)

    assert tokens(8192, gpu) == 8192 + 256
    assert tokens(100_000, CPU) == 32768
    assert tokens(100_000, gpu) == 100_096
    assert tokens(100_000, CPU, 65536) == 65536


def test_loading_tells_its_stages_and_modules(model_path: ModelPath) -> None:
    """For people who wait, and so that a stall can be told from a slow disk."""
    said: list[tuple[LoadStage, int, int]] = []
    settings = _cpu()
    model = str(model_path(Architecture.QWEN3))
    loading.load(
        Configure(model, 1024, settings, model),
        runtime.prepare(settings),
        _NoWatch(),
        lambda stage, done, total: said.append((stage, done, total)),
        lambda: None,
    )
    assert list(dict.fromkeys(stage for stage, _, _ in said)) == [LoadStage.LOADING, LoadStage.WARMING_UP, LoadStage.BUILDING]
    modules = [(done, total) for stage, done, total in said if stage is LoadStage.LOADING]
    assert modules[-1][0] == modules[-1][1] > 3
    assert modules == sorted(modules)


class _NoWatch:
    def prefilling(self, request: int | None) -> None:
        del request


@pytest.mark.parametrize("bits", [(4, 2), (8, 8), (6, 5)])
def test_a_hybrid_with_a_quantised_cache_generates_and_hits_its_prefix(model_path: ModelPath, bits: tuple[int, int]) -> None:
    """Unequal bits allowed; the second turn finds the first."""
    bench = Workbench(model_path(Architecture.QWEN3_5), _cpu(cache_tokens=4096, k_bits=bits[0], v_bits=bits[1]))
    prompt = text(520)
    said = bench.run(ask(1, prompt, 6))[1]
    bench.run(ask(2, [*prompt, *said, *text(30, seed=2)], 6))
    assert bench.backend.statistics(1).cached_tokens == 512


def test_cuda_that_is_not_there_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the way out."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EngineFailed, match="no NVIDIA GPU") as raised:
        runtime.prepare(EngineSettings(backend=BackendKind.CUDA))
    assert raised.value.kind is FatalClass.CONFIG
