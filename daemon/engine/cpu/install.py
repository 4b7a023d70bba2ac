"""Let `import exllamav3` (1.6.5, unchanged on disk) work and run without a GPU. Called once, before that import.

What is changed, and why; `PATCHES` is the list that is carried out:

1. `sys.modules["exllamav3_ext"]`: the compiled extension is replaced by `extension.CpuExtension`.
2. `sys.modules["triton"]`, only while exllamav3 is imported and only where triton is missing: see `triton_stub`.
3. Environment (exllamav3's own switches, `SWITCHES`): layers captured as CUDA graphs are off.
4. `sys.modules["exllamav3.vendor.fla"]`: Triton kernels for long passes of GatedDeltaNet; ours has the one in use.
5. `PATCHES`: names inside exllamav3 and torch, each with its reason.

Nothing here runs on a machine whose engine uses a GPU: only the CPU backend calls `install`.
"""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor

from daemon.core.errors import ConfigError
from daemon.engine.cpu import attention, delta_net, exl3, fused, linear
from daemon.engine.cpu.extension import NAME, CpuExtension
from daemon.engine.cpu.triton_stub import triton_in_place

SWITCHES: Mapping[str, str] = {
    "EXL3_BC_ATTN": "0",
    "EXL3_BC_GDN": "0",
    "EXL3_EXPANDABLE_SEGMENTS": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Graph-captured attention and GatedDeltaNet off; no CUDA allocator to configure; no tokenizer threads beside torch's."""


@dataclass(frozen=True, slots=True)
class Patch:
    """One name that is replaced. `attribute` may reach into a class."""

    module: str
    attribute: str
    replacement: object
    reason: str


def _unpinned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def unpinned(*args: object, pin_memory: bool = False, **options: object) -> Tensor:
        del pin_memory
        return make(*args, **options)

    return unpinned


def _nothing(*_args: object, **_options: object) -> None:
    """No device to wait for."""


class _ExpertLayer(Protocol):
    """What this room uses of exllamav3's BlockSparseMLP."""

    routing_cfg: object | None

    def load_routing(self, **options: object) -> None: ...


def _load_experts(load: Callable[..., None]) -> Callable[..., None]:
    def load_with_routing(self: _ExpertLayer, device: torch.device, **options: object) -> None:
        load(self, device, **options)
        self.load_routing(**options)

    return load_with_routing


_UNPINNED = "without CUDA torch cannot pin memory, which exllamav3 asks for in its host buffers"


def _patches() -> tuple[Patch, ...]:
    backend = attention.Attention()
    experts = importlib.import_module("exllamav3.modules.block_sparse_mlp").BlockSparseMLP
    layers = importlib.import_module("exllamav3.modules")
    return (
        Patch("torch", "empty", _unpinned(torch.empty), _UNPINNED),
        Patch("torch", "zeros", _unpinned(torch.zeros), _UNPINNED),
        Patch("torch", "empty_like", _unpinned(torch.empty_like), _UNPINNED),
        Patch("torch.cuda", "synchronize", _nothing, "the page table and the generator wait for the device at some points"),
        Patch(
            "exllamav3.modules.attention_fn.dispatch",
            "attn_fns",
            [backend.plain],
            "the other backends are Triton and CUDA kernels",
        ),
        Patch(
            "exllamav3.modules.attention_fn.dispatch",
            "_fns_qc",
            [backend.quantized],
            "the same, for quantised caches",
        ),
        Patch(
            "exllamav3.modules.quant.fp16",
            "LinearFP16.forward",
            linear.half_linear_forward,
            "torch multiplies half matrices slowly on a CPU; compute in fp32 on a kept copy of the weight",
        ),
        Patch(
            "exllamav3.modules.attn",
            "Attention.project_qkv",
            fused.joined_qkv(layers.Attention.project_qkv),
            "one product instead of three; it joins layers on CUDA only, and EXL3 weights only",
        ),
        Patch(
            "exllamav3.modules.mlp",
            "GatedMLP.forward",
            fused.joined_mlp(layers.GatedMLP.forward),
            "the same, for the two layers in front of the activation",
        ),
        Patch(
            "exllamav3.modules.quant.exl3",
            "LinearEXL3.reconstruct_hgemm",
            exl3.exl3_many_rows,
            "it decodes the weight on every call with many rows; the decoded weight is kept here",
        ),
        Patch(
            "exllamav3.modules.block_sparse_mlp",
            "BlockSparseMLP.load",
            _load_experts(experts.load),
            "on anything but CUDA it leaves the router unprepared",
        ),
        Patch(
            "exllamav3.modules.gated_delta_net_fn.conv1d",
            "causal_conv1d_update_slotted_triton",
            delta_net.causal_conv1d_update_slotted,
            "a Triton kernel",
        ),
    )


def _apply(patch: Patch) -> None:
    target: object = importlib.import_module(patch.module)
    *path, name = patch.attribute.split(".")
    for step in path:
        target = getattr(target, step)
    if not hasattr(target, name):
        raise ConfigError(f"exllamav3 has no {patch.attribute} to replace; is it 1.6.5?", patch.module)
    setattr(target, name, patch.replacement)


def installed() -> bool:
    """Whether `install` has run in this process."""
    return isinstance(sys.modules.get(NAME), CpuExtension)


def install() -> tuple[Patch, ...]:
    """Put everything in place and import exllamav3. Does nothing the second time. Returns the names replaced, with reasons.

    Raises ConfigError when exllamav3 is imported already, since it would keep using its compiled extension.
    """
    if installed():
        return ()
    if "exllamav3" in sys.modules or NAME in sys.modules:
        raise ConfigError("exllamav3 was imported before the CPU operations were installed", "daemon.engine.cpu")
    os.environ.update(SWITCHES)
    sys.modules[NAME] = CpuExtension()
    fla = ModuleType("exllamav3.vendor.fla")
    vars(fla)["chunk_gated_delta_rule"] = delta_net.chunk_gated_delta_rule
    with triton_in_place():
        importlib.import_module("exllamav3")
        # imported late otherwise, when a model is opened: it brings in every model's kernels
        importlib.import_module("exllamav3.architecture.architectures")
        patches = _patches()
    sys.modules["exllamav3.vendor.fla"] = fla
    for patch in patches:
        _apply(patch)
    return patches
