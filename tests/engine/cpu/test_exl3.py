"""EXL3 weights against a decoder of a different make."""

import numpy as np
import pytest
import torch

from daemon.engine.cpu import exl3
from tests.engine.cpu import reference_exl3

INTEGER_RATES = [1, 2, 3, 4, 5, 6, 7, 8]
CODEBOOKS = [(False, False), (True, False), (False, True)]


def packed(k: int, n: int, rate: float) -> torch.Tensor:
    return torch.randint(
        -(1 << 15),
        1 << 15,
        (k // 16, n // 16, int(16 * rate)),
        dtype=torch.int16,
        generator=torch.Generator().manual_seed(int(rate * 2)),
    )


def scales(size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).half()


@pytest.mark.parametrize(("mcg", "mul1"), CODEBOOKS)
def test_codebook_equals_every_entry_of_the_reference(mcg: bool, mul1: bool) -> None:
    expected = [reference_exl3.codebook_value(index, mcg, mul1) for index in range(1 << 16)]
    assert exl3.codebook(mcg, mul1).double().numpy().tolist() == expected


@pytest.mark.parametrize(("mcg", "mul1"), CODEBOOKS)
@pytest.mark.parametrize("rate", INTEGER_RATES)
def test_trellis_at_integer_rates_equals_reference(rate: int, mcg: bool, mul1: bool) -> None:
    trellis = packed(32, 48, rate)
    expected = reference_exl3.decode(trellis.numpy(), mcg, mul1)
    assert np.array_equal(exl3.decode_trellis(trellis, mcg, mul1).double().numpy(), expected)


@pytest.mark.parametrize("rate", [1.5, 2.5, 3.5])
def test_trellis_at_half_integer_rates_equals_reference(rate: float) -> None:
    trellis = packed(32, 48, rate)
    expected = reference_exl3.decode(trellis.numpy(), mcg=False, mul1=True)
    assert np.array_equal(exl3.decode_trellis(trellis, mcg=False, mul1=True).double().numpy(), expected)


@pytest.mark.parametrize("rate", [2, 2.5, 4])
def test_weight_in_the_basis_of_activations_equals_reference(rate: float) -> None:
    trellis, suh, svh = packed(128, 256, rate), scales(128, 1), scales(256, 2)
    expected = reference_exl3.weight(trellis.numpy(), suh.double().numpy(), svh.double().numpy(), mcg=False, mul1=True)
    found = exl3.decode_weight(trellis, suh, svh, mcg=False, mul1=True).double().numpy()
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_slices_are_columns_of_the_whole() -> None:
    trellis, suh, svh = packed(128, 384, 3), scales(128, 1), scales(384, 2)
    inner, weight = (
        exl3.decode_trellis(trellis, mcg=False, mul1=False),
        exl3.decode_weight(trellis, suh, svh, mcg=False, mul1=False),
    )
    part = torch.empty(128, 128, dtype=torch.half)
    exl3.reconstruct_slice(part, trellis, 3, mcg=False, mul1=False, n_offset=128)
    assert torch.equal(part, inner[:, 128:256])
    exl3.reconstruct_had_slice(part, trellis, suh, svh[128:], 3, mcg=False, mul1=False, n_offset=128)
    assert torch.equal(part, weight[:, 128:256].half())


def test_rotating_the_activations_equals_multiplying_by_the_rotated_weight() -> None:
    """The GPU's other order: x is rotated, multiplied by the inner weight, rotated back."""
    trellis, suh, svh = packed(128, 256, 4), scales(128, 1), scales(256, 2)
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(3)).half()
    turned, out = torch.empty(5, 128), torch.empty(5, 256)
    exl3.had_r_128(x, turned, suh, None, 1.0)
    product = turned @ exl3.decode_trellis(trellis, mcg=False, mul1=True).float()
    exl3.had_r_128(product, out, None, svh, 1.0)
    direct = x.float() @ exl3.decode_weight(trellis, suh, svh, mcg=False, mul1=True)
    assert torch.allclose(out, direct, rtol=1e-4, atol=1e-3)


def test_linear_layer_multiplies_by_the_decoded_weight_and_adds_its_bias() -> None:
    trellis, suh, svh, bias = packed(128, 256, 2.5), scales(128, 1), scales(256, 2), scales(256, 4)
    layer = exl3.BC_LinearEXL3(trellis, suh, svh, 2.5, bias, mcg=False, mul1=True, xh=None)
    x = torch.randn(2, 3, 128, generator=torch.Generator().manual_seed(3)).half()
    weight = torch.tensor(
        reference_exl3.weight(trellis.numpy(), suh.double().numpy(), svh.double().numpy(), mcg=False, mul1=True)
    )
    expected = x.double() @ weight + bias.double()
    found = layer.run_alloc(x, 256, fp32=True)
    assert found.shape == (2, 3, 256)
    assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-3)
