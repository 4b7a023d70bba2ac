"""Half linear layers against float64 products."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from daemon.engine.cpu import linear


@dataclass
class HalfLayer:
    """The parts of exllamav3's LinearFP16 that are read."""

    weight: Tensor
    bias: Tensor | None
    bc: linear.BC_LinearFP16
    out_dtype: torch.dtype | None
    out_features: int


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half()


def layer(weight: Tensor, bias: Tensor | None = None, out_dtype: torch.dtype | None = None) -> HalfLayer:
    return HalfLayer(weight, bias, linear.BC_LinearFP16(weight, bias), out_dtype, weight.shape[1])


@pytest.mark.parametrize("bias", [None, values(96, seed=3)])
def test_forward_equals_product(bias: Tensor | None) -> None:
    x, weight = values(2, 3, 64), values(64, 96, seed=1)
    out = linear.half_linear_forward(layer(weight, bias), x, {}, torch.float)
    wanted = x.double() @ weight.double() + (0 if bias is None else bias.double())
    assert torch.allclose(out.double(), wanted, rtol=1e-5, atol=1e-4)


def test_type_of_the_result_is_the_callers_then_the_layers_then_half() -> None:
    x, weight = values(1, 64), values(64, 96, seed=1)
    assert linear.half_linear_forward(layer(weight), x, {}).dtype == torch.half
    assert linear.half_linear_forward(layer(weight, out_dtype=torch.float), x, {}).dtype == torch.float
    assert linear.half_linear_forward(layer(weight, out_dtype=torch.float), x, {}, torch.bfloat16).dtype == torch.bfloat16


def test_zero_padding_is_skipped_without_changing_the_result() -> None:
    x, weight = values(4, 128), values(128, 256, seed=1)
    weight[100:] = 0
    weight[:, 200:] = 0
    out = linear.half_linear_forward(layer(weight), x, {}, torch.float)
    assert out.shape == (4, 256)
    assert torch.allclose(out.double(), x.double() @ weight.double(), rtol=1e-5, atol=1e-4)
    assert not out[:, 200:].any()


def test_all_zero_weight_gives_zeros() -> None:
    out = linear.half_linear_forward(layer(torch.zeros(64, 32, dtype=torch.half)), values(2, 64), {}, torch.float)
    assert out.shape == (2, 32)
    assert not out.any()


def test_a_replaced_weight_is_noticed() -> None:
    x, half = values(1, 64), layer(values(64, 96, seed=1))
    linear.half_linear_forward(half, x, {})
    half.weight = values(64, 96, seed=2)
    wanted = x.double() @ half.weight.double()
    assert torch.allclose(linear.half_linear_forward(half, x, {}, torch.float).double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("multiply", [linear.hgemm, linear.hgemm_recon])
def test_plain_product_goes_into_the_output_given(multiply: object) -> None:
    x, w, y = values(3, 64), values(64, 32, seed=1), torch.empty(3, 32)
    assert callable(multiply)
    multiply(x, w, y)
    assert torch.allclose(y.double(), x.double() @ w.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 9, 40])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 160), (160, 64), (96, 96)])
@pytest.mark.parametrize("dtype", [torch.half, torch.float])
def test_every_number_of_rows_gives_the_product(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    """Each has its own layout of the weight and its own call; one layer is asked for them in turn."""
    half = layer(values(inputs, outputs, seed=1))
    x = values(1, rows, inputs)
    out = linear.half_linear_forward(half, x, {}, dtype)
    assert out.dtype == dtype
    assert out.is_contiguous()
    wanted = x.double() @ half.weight.double()
    assert torch.allclose(
        out.double(), wanted, rtol=1e-3 if dtype == torch.half else 1e-5, atol=1e-2 if dtype == torch.half else 1e-4
    )


@pytest.mark.parametrize("rows", [1, 2])
def test_few_half_rows_are_summed_in_fp32(rows: int) -> None:
    """A sum in half would stop growing at 2,048."""
    x, weight = torch.ones(1, rows, 4096, dtype=torch.half), torch.ones(4096, 128, dtype=torch.half)
    assert torch.equal(linear.half_linear_forward(layer(weight), x, {}), torch.full((1, rows, 128), 4096.0).half())


@pytest.mark.parametrize("rows", [1, 3])
def test_a_result_beyond_half_stays_finite_in_fp32(rows: int) -> None:
    x, weight = torch.full((1, rows, 64), 100.0).half(), torch.full((64, 96), 100.0).half()
    assert torch.equal(linear.half_linear_forward(layer(weight), x, {}, torch.float), torch.full((1, rows, 96), 640000.0))
