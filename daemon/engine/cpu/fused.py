"""Linear layers that share an input, multiplied as one: queries, keys and values; the gate and the other half of an MLP.

On a CPU a small model spends as much time on calls as on arithmetic, and one wide product is faster than several narrow ones.
exllamav3 does the same for EXL3 weights on a GPU. Only plain half layers are served; whatever else a layer has (bias, adapter,
gate, scale) goes exllamav3's own way.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from daemon.engine.cpu.linear import widened, without_padding
from daemon.engine.cpu.matrix import HALF_ROWS, Matrix


class Inner(Protocol):
    """What this room reads of exllamav3's LinearFP16."""

    weight: Tensor
    bias: Tensor | None


class Linear(Protocol):
    """What this room reads of exllamav3's Linear."""

    inner: Inner
    quant_type: str
    in_features: int
    out_features: int
    out_features_unpadded: int
    lora_a_tensors: Mapping[object, Tensor]
    pre_scale: float
    post_scale: float
    softcap: float

    def forward(self, x: Tensor, params: Mapping[str, object], out_dtype: torch.dtype | None = None) -> Tensor:
        """Multiply, and whatever else the layer does."""
        ...


class Attention(Protocol):
    """What this room reads of exllamav3's Attention."""

    q_proj: Linear
    k_proj: Linear
    v_proj: Linear | None
    g_proj: Linear | None
    interleaved_gate: bool
    multi_qkv: object | None
    multi_kv: object | None

    def finish_qkv(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, bsz: int, q_len: int, params: Mapping[str, object]
    ) -> tuple[Tensor | None, ...]:
        """Shape the heads: what the layer does with its projections in every case."""
        ...


class GatedMlp(Protocol):
    """What this room reads of exllamav3's GatedMLP."""

    num_slices: int
    gates: Sequence[Linear]
    ups: Sequence[Linear]
    downs: Sequence[Linear]
    interm_dtype: torch.dtype
    interm_div: float
    act_limit: float
    out_dtype: torch.dtype | None
    tp_reduce: bool
    bc: object | None
    multi_gu: Sequence[object | None]
    activation_fn_call: Callable[[Tensor, Tensor, Tensor, float], None]


class _Joined:
    """Layers as one product, if they are plain."""

    def __init__(self, layers: Sequence[Linear]) -> None:
        self._sources = tuple(layer.inner for layer in layers)
        self.matrix: Matrix | None = None
        self.inputs = 0
        self.outputs: tuple[int, ...] = ()
        if not _plain(layers):
            return
        weights = [layer.inner.weight for layer in layers]
        used = [without_padding(weight) for weight in weights]
        self.inputs = max(inputs for inputs, _ in used)
        self.outputs = tuple(outputs for _, outputs in used)
        self.matrix = Matrix([weight[: self.inputs, :end] for weight, end in zip(weights, self.outputs, strict=True)])

    def made_of(self, layers: Sequence[Linear]) -> bool:
        """Whether these layers still hold what this was made of: a model may be unloaded and loaded again."""
        return all(layer.inner is source for layer, source in zip(layers, self._sources, strict=True))


def _plain(layers: Sequence[Linear]) -> bool:
    """Whether each of the layers is a half weight and nothing else, all with one width of input."""
    return len({layer.in_features for layer in layers}) == 1 and all(
        layer.quant_type == "fp16"
        and layer.inner.bias is None
        and layer.pre_scale == layer.post_scale == 1.0
        and layer.softcap == 0.0
        and layer.out_features == layer.out_features_unpadded
        for layer in layers
    )


class _Joints:
    """What was joined, by the layer it belongs to; made when it is first asked for, since weights are filled late."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[object, _Joined] = WeakKeyDictionary()

    def outputs(self, owner: object, layers: Sequence[Linear], x: Tensor, dtype: torch.dtype) -> list[Tensor] | None:
        """Each layer's result (rows, n), its zero padding left out, for x half (..., k); None where the layers cannot be joined.

        The results are not contiguous, and half only where that was asked for and is what the product gave; else fp32.
        """
        joined = self._known.get(owner)
        if joined is None or not joined.made_of(layers):
            joined = self._known[owner] = _Joined(layers)
        matrix = joined.matrix
        if matrix is None or x.dtype != torch.half or x.shape[-1] != layers[0].in_features:
            return None
        if any(layer.lora_a_tensors for layer in layers):
            return None
        rows = x.reshape(-1, x.shape[-1])
        used = rows if joined.inputs == rows.shape[1] else rows[:, : joined.inputs]
        in_half = dtype == torch.half and rows.shape[0] <= HALF_ROWS
        product = matrix.in_half(used) if in_half else matrix.times(used)
        return list(torch.split_with_sizes(product, joined.outputs, 1))


_Project = Callable[[Attention, Tensor, Mapping[str, object]], tuple[Tensor | None, ...]]
_Forward = Callable[[GatedMlp, Tensor, Mapping[str, object], torch.dtype | None], Tensor]


def joined_qkv(project: _Project) -> _Project:
    """Stands in for `Attention.project_qkv`, here `project`, which still serves the layers that cannot be joined."""
    joints = _Joints()

    def project_qkv(self: Attention, x: Tensor, params: Mapping[str, object]) -> tuple[Tensor | None, ...]:
        gated = self.g_proj is not None or self.interleaved_gate
        joined_already = self.multi_qkv is not None or self.multi_kv is not None
        if gated or joined_already or self.v_proj is None or "capture" in params:
            return project(self, x, params)
        layers = (self.q_proj, self.k_proj, self.v_proj)
        results = joints.outputs(self, layers, x, torch.half)
        if results is None:
            return project(self, x, params)
        q, k, v = (widened(out, layer.out_features, torch.half) for out, layer in zip(results, layers, strict=True))
        return self.finish_qkv(q, k, v, None, x.shape[0], x.shape[1], params)

    return project_qkv


def joined_mlp(forward: _Forward) -> _Forward:
    """Stands in for `GatedMLP.forward`, here `forward`, which still serves the layers that cannot be joined."""
    joints = _Joints()

    def forward_joined(self: GatedMlp, x: Tensor, params: Mapping[str, object], out_dtype: torch.dtype | None = None) -> Tensor:
        joined_already = self.bc is not None or any(part is not None for part in self.multi_gu)
        cut = self.num_slices != 1 or self.interm_div != 1.0 or self.tp_reduce
        if joined_already or cut or "capture" in params or "capture_sens" in params:
            return forward(self, x, params, out_dtype)
        results = joints.outputs(self, (self.gates[0], self.ups[0]), x, self.interm_dtype)
        if results is None or results[0].shape != results[1].shape:
            return forward(self, x, params, out_dtype)
        gate, up = results if self.interm_dtype == torch.float else (result.half() for result in results)
        activated = gate.new_empty(gate.shape, dtype=torch.half)
        self.activation_fn_call(gate, up, activated, self.act_limit)
        # the layer puts zeros back where padding was left out
        out = self.downs[0].forward(activated.view(*x.shape[:-1], -1), params)
        return out.to(out_dtype or self.out_dtype or out.dtype)

    return forward_joined
