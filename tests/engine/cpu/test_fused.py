"""Layers that are multiplied as one, against the layers multiplied one by one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from daemon.engine.cpu import activations, fused, linear

HIDDEN, QUERIES, KEYS, INNER = 64, 96, 32, 160


@dataclass(eq=False)
class Inner:
    """The parts of exllamav3's LinearFP16 that are read."""

    weight: Tensor
    out_dtype: torch.dtype | None
    bias: Tensor | None = None
    bc: linear.BC_LinearFP16 = field(init=False)
    out_features: int = field(init=False)

    def __post_init__(self) -> None:
        self.bc = linear.BC_LinearFP16(self.weight, self.bias)
        self.out_features = self.weight.shape[1]


@dataclass(eq=False)
class Layer:
    """The parts of exllamav3's Linear that are read."""

    half: Inner
    inner: fused.Inner = field(init=False)
    in_features: int = field(init=False)
    out_features: int = field(init=False)
    out_features_unpadded: int = field(init=False)
    quant_type: str = "fp16"
    lora_a_tensors: Mapping[object, Tensor] = field(default_factory=dict[object, Tensor])
    pre_scale: float = 1.0
    post_scale: float = 1.0
    softcap: float = 0.0

    def __post_init__(self) -> None:
        self.inner = self.half
        self.in_features, self.out_features = self.half.weight.shape
        self.out_features_unpadded = self.out_features

    def forward(self, x: Tensor, params: Mapping[str, object], out_dtype: torch.dtype | None = None) -> Tensor:
        padded = functional.pad(x, (0, self.in_features - x.shape[-1]))
        return linear.half_linear_forward(self.half, padded, params, out_dtype)


def layer(inputs: int, outputs: int, seed: int, out_dtype: torch.dtype | None = None) -> fused.Linear:
    weight = torch.randn(inputs, outputs, generator=torch.Generator().manual_seed(seed)) / inputs**0.5
    return Layer(Inner(weight.half(), out_dtype))


@dataclass(eq=False)
class Attention:
    """The parts of exllamav3's Attention that are read."""

    q_proj: fused.Linear = field(default_factory=lambda: layer(HIDDEN, QUERIES, 1))
    k_proj: fused.Linear = field(default_factory=lambda: layer(HIDDEN, KEYS, 2))
    v_proj: fused.Linear | None = field(default_factory=lambda: layer(HIDDEN, KEYS, 3))
    g_proj: fused.Linear | None = None
    interleaved_gate: bool = False
    multi_qkv: object | None = None
    multi_kv: object | None = None

    def finish_qkv(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, bsz: int, q_len: int, params: Mapping[str, object]
    ) -> tuple[Tensor | None, ...]:
        del params
        return q.view(bsz, q_len, -1), k.view(bsz, q_len, -1), v.view(bsz, q_len, -1), g


@dataclass(eq=False)
class GatedMlp:
    """The parts of exllamav3's GatedMLP that are read."""

    gates: Sequence[fused.Linear]
    ups: Sequence[fused.Linear]
    downs: Sequence[fused.Linear]
    interm_dtype: torch.dtype
    num_slices: int = 1
    interm_div: float = 1.0
    act_limit: float = 0.0
    out_dtype: torch.dtype | None = torch.float
    tp_reduce: bool = False
    bc: object | None = None
    multi_gu: Sequence[object | None] = (None,)
    activation_fn_call: Callable[[Tensor, Tensor, Tensor, float], None] = field(default_factory=lambda: activations.silu_mul)


def mlp(interm_dtype: torch.dtype = torch.float) -> GatedMlp:
    gate, up = (layer(HIDDEN, INNER, seed, interm_dtype) for seed in (1, 2))
    return GatedMlp([gate], [up], [layer(INNER, HIDDEN, 3, torch.float)], interm_dtype)


def one_by_one_qkv(self: fused.Attention, x: Tensor, params: Mapping[str, object]) -> tuple[Tensor | None, ...]:
    assert self.v_proj is not None
    return (*(each.forward(x, params) for each in (self.q_proj, self.k_proj, self.v_proj)), None)


def one_by_one_mlp(self: fused.GatedMlp, x: Tensor, params: Mapping[str, object], out_dtype: torch.dtype | None = None) -> Tensor:
    g, u = self.gates[0].forward(x, params), self.ups[0].forward(x, params)
    a = torch.empty_like(u, dtype=torch.half)
    self.activation_fn_call(g, u, a, self.act_limit)
    return self.downs[0].forward(a, params).to(out_dtype or self.out_dtype)


def refused(*_arguments: object) -> Tensor:
    raise AssertionError("the layers were not joined")


def refused_qkv(*_arguments: object) -> tuple[Tensor | None, ...]:
    raise AssertionError("the layers were not joined")


def inputs(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, HIDDEN, generator=torch.Generator().manual_seed(9)).half()


def pad(owner: fused.Linear, used_inputs: int, used_outputs: int) -> None:
    owner.inner.weight[used_inputs:] = 0
    owner.inner.weight[:, used_outputs:] = 0


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 1), (8, 1), (1, 40)])
@pytest.mark.parametrize("padded", [False, True])
def test_joined_projections_equal_those_one_by_one(batch: int, length: int, padded: bool) -> None:
    owner, x = Attention(), inputs(batch, length)
    assert owner.v_proj is not None
    if padded:
        pad(owner.q_proj, 56, 80)
        pad(owner.v_proj, 48, 24)
    found = fused.joined_qkv(refused_qkv)(owner, x, {})
    wanted = one_by_one_qkv(owner, x, {})
    assert found[3] is None
    for out, other in zip(found[:3], wanted[:3], strict=True):
        assert out is not None
        assert other is not None
        assert out.dtype == torch.half
        assert out.is_contiguous()
        assert torch.allclose(out.float(), other.float(), atol=4e-3)


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 1), (8, 1), (1, 40)])
@pytest.mark.parametrize("interm_dtype", [torch.half, torch.float])
def test_joined_mlp_equals_its_layers_one_by_one(batch: int, length: int, interm_dtype: torch.dtype) -> None:
    owner, x = mlp(interm_dtype), inputs(batch, length)
    for each in (owner.gates[0], owner.ups[0]):
        pad(each, HIDDEN, 150)
    out = fused.joined_mlp(refused)(owner, x, {}, None)
    assert out.dtype == torch.float
    assert torch.allclose(out, one_by_one_mlp(owner, x, {}), atol=4e-3)
    assert fused.joined_mlp(refused)(owner, x, {}, torch.half).dtype == torch.half


def own_way_qkv(owner: Attention, x: Tensor) -> bool:
    """Whether a layer's own projections were asked."""
    asked: list[object] = []

    def project(self: fused.Attention, x: Tensor, params: Mapping[str, object]) -> tuple[Tensor | None, ...]:
        asked.append(self)
        return one_by_one_qkv(self, x, params)

    fused.joined_qkv(project)(owner, x, {})
    return asked == [owner]


def test_layers_with_anything_beside_a_weight_go_their_own_way() -> None:
    x = inputs(1, 1)
    assert not own_way_qkv(Attention(), x)
    biased, adapted, scaled, quantised, gated, joined = (Attention() for _ in range(6))
    biased.k_proj.inner.bias = torch.ones(KEYS).half()
    adapted.q_proj.lora_a_tensors = {"adapter": torch.ones(HIDDEN, 2).half()}
    scaled.q_proj.post_scale = 0.5
    quantised.q_proj.quant_type = "exl3"
    gated.g_proj = layer(HIDDEN, QUERIES, 7)
    joined.multi_qkv = object()
    for owner in (biased, adapted, scaled, quantised, gated, joined):
        assert own_way_qkv(owner, x)


def test_an_adapter_given_later_is_noticed() -> None:
    owner, x, project = Attention(), inputs(1, 1), fused.joined_qkv(refused_qkv)
    project(owner, x, {})
    owner.q_proj.lora_a_tensors = {"adapter": torch.ones(HIDDEN, 2).half()}
    with pytest.raises(AssertionError, match="not joined"):
        project(owner, x, {})


def test_mlp_in_slices_or_with_a_kernel_of_its_own_goes_its_own_way() -> None:
    sliced, captured, joined = mlp(), mlp(), mlp()
    sliced.num_slices, captured.bc, joined.multi_gu = 2, object(), (object(),)
    for owner in (sliced, captured, joined):
        with pytest.raises(AssertionError, match="not joined"):
            fused.joined_mlp(refused)(owner, inputs(1, 1), {}, None)


def test_weights_of_a_model_loaded_again_are_read_anew() -> None:
    owner, x, project = Attention(), inputs(1, 1), fused.joined_qkv(refused_qkv)
    project(owner, x, {})
    owner.k_proj = layer(HIDDEN, KEYS, 11)
    found = project(owner, x, {})[1]
    assert found is not None
    assert torch.allclose(found.float(), owner.k_proj.forward(x, {}).float(), atol=4e-3)
