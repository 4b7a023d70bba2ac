"""What install puts in place, and what it refuses."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from daemon.core.errors import ConfigError
from daemon.engine.cpu import coverage, extension, install
from tests.engine.checkpoints import Architecture
from tests.engine.conftest import ModelPath

ROOT = Path(__file__).parents[3]


FRESH = """
import sys
from daemon.engine.cpu.install import install, installed
patches = install()
import exllamav3
assert patches and all(patch.reason for patch in patches)
assert installed() and install() == ()
assert "triton" not in sys.modules or sys.modules["triton"].__file__
"""


def test_a_fresh_process_gets_every_patch_once_and_keeps_no_triton() -> None:
    done = subprocess.run([sys.executable, "-c", FRESH], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_exllamav3_imported_before_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, extension.NAME)
    with pytest.raises(ConfigError, match="exllamav3 was imported before"):
        install.install()


def test_a_name_that_exllamav3_no_longer_has_is_an_error() -> None:
    patch = install.Patch("exllamav3.modules.quant.fp16", "LinearFP16.no_such_method", None, "a test")
    with pytest.raises(ConfigError, match=r"no LinearFP16\.no_such_method"):
        install._apply(patch)  # pyright: ignore[reportPrivateUsage] - makes the fault


def test_an_operation_that_is_missing_fails_with_its_name() -> None:
    module = importlib.import_module(extension.NAME)
    with pytest.raises(extension.OperationMissing, match=r"exllamav3_ext\.mamba2_dt_op has no CPU version"):
        module.mamba2_dt_op(torch.zeros(1))


@pytest.mark.parametrize("architecture", list(Architecture))
def test_models_we_serve_miss_nothing(architecture: Architecture, model_path: ModelPath) -> None:
    x = importlib.import_module("exllamav3")
    model = x.Model.from_config(x.Config.from_directory(str(model_path(architecture))))
    assert coverage.missing_operations(model) == ()


class Mamba2:
    """A layer of a kind never tried on a CPU."""

    key = "layer"
    modules: list[object]

    def __init__(self) -> None:
        self.modules = []


class Model:
    """A model with one such layer, inside a layer that is fine."""

    def __init__(self, layer: object) -> None:
        self.modules = [layer]


def test_an_unknown_kind_of_layer_is_named_before_loading() -> None:
    x = importlib.import_module("exllamav3.modules")
    block = x.TransformerBlock.__new__(x.TransformerBlock)
    block.modules = [Mamba2()]
    with pytest.raises(ConfigError, match=r"cannot run on a CPU, which has no .*Mamba2"):
        coverage.require_operations(Model(block))  # pyright: ignore[reportArgumentType] - a model as far as this check looks


@pytest.mark.parametrize(
    ("kind", "setting", "value", "missing"),
    [
        ("GatedDeltaNet", "kda", True, "chunk_kda"),
        ("GatedDeltaNet", "qkvz_proj", object(), "gated_delta_net_fused_op"),
        ("BlockSparseMLP", "router_type", "ds3", "routing_ds3"),
        ("Attention", "use_cu_seqlens", True, "attention over packed sequences"),
        ("Attention", "qsa_indexer", object(), "sparse attention"),
    ],
)
def test_a_setting_that_needs_more_is_named(kind: str, setting: str, value: object, missing: str) -> None:
    x = importlib.import_module("exllamav3.modules")
    layer = getattr(x, kind).__new__(getattr(x, kind))
    layer.modules = []
    setattr(layer, setting, value)
    assert coverage.missing_operations(Model(layer)) == (missing,)  # pyright: ignore[reportArgumentType] - as above
