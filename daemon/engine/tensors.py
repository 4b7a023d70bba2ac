"""Tensors as lists of a known type. torch's own `tolist` says nothing about what is in the list."""

from typing import cast

import torch


def integers(tensor: torch.Tensor) -> list[int]:
    """The values of an integer tensor of any shape, in order."""
    return cast("list[int]", tensor.reshape(-1).tolist())  # pyright: ignore[reportUnknownMemberType]  # untyped in torch


def floats(tensor: torch.Tensor) -> list[float]:
    """The values of a floating-point tensor of any shape, in order."""
    return cast("list[float]", tensor.reshape(-1).tolist())  # pyright: ignore[reportUnknownMemberType]  # untyped in torch


def flags(tensor: torch.Tensor) -> list[bool]:
    """The values of a boolean tensor of any shape, in order."""
    return cast("list[bool]", tensor.reshape(-1).tolist())  # pyright: ignore[reportUnknownMemberType]  # untyped in torch
