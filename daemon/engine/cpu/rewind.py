"""Taking rejected draft tokens back out of the recurrent layers: exllamav3's batched kernels for it, in torch.

exllamav3 describes each layer's work by addresses. Here they are turned back into tensors over the same memory, which the
layer's state owns and which outlives the call.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from daemon.engine.cpu.delta_net import delta_rule_steps

GATED_DELTA_NET = 0
"""The kind of layer that has a CPU version."""


@dataclass(frozen=True, slots=True)
class ConvRewindJob:
    """Copy a window of `cdim` columns of `dim` channels, `stride` elements apart, from address `src` to `dst`; bfloat16."""

    src: int
    dst: int
    dim: int
    cdim: int
    stride: int


@dataclass(frozen=True, slots=True)
class ScanReplayJob:
    """Run the rule again over the first `prefix` tokens of a pass: inputs at `qkv`, `g` and `beta`, `tstride` rows from token to
    token, from the state at `base` into that at `scratch`.
    """

    qkv: int
    g: int
    beta: int
    base: int
    scratch: int
    skip: int
    prefix: int
    tstride: int


def _at(address: int, elements: int, dtype: torch.dtype) -> Tensor:
    """A tensor over memory that somebody else owns."""
    memory = (ctypes.c_uint8 * (elements * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype)


def batched_conv_rewind(jobs: Sequence[ConvRewindJob], device_index: int | None) -> None:
    """Put the window that ends before the rejected tokens where the next pass looks for it."""
    del device_index
    for job in jobs:
        length = (job.dim - 1) * job.stride + job.cdim
        shape, strides = (job.dim, job.cdim), (job.stride, 1)
        window = _at(job.src, length, torch.bfloat16).as_strided(shape, strides).clone()
        _at(job.dst, length, torch.bfloat16).as_strided(shape, strides).copy_(window)


def batched_scan_replay(
    jobs: Sequence[ScanReplayJob],
    device_index: int | None,
    kind: int,
    num_k_heads: int,
    num_v_heads: int,
    k_head_dim: int,
    v_head_dim: int,
    state_half: bool,
) -> None:
    """The state after the accepted tokens, computed again from the state before the pass."""
    del device_index
    if kind != GATED_DELTA_NET:
        raise NotImplementedError("batched_scan_replay: only GatedDeltaNet has a CPU version")
    keys, values = num_k_heads * k_head_dim, num_v_heads * v_head_dim
    for job in jobs:
        qkv = _rows(job.qkv, job, 2 * keys + values, torch.bfloat16)
        g = _rows(job.g, job, num_v_heads, torch.float)
        beta = _rows(job.beta, job, num_v_heads, torch.bfloat16)
        shape = (1, num_v_heads, k_head_dim, v_head_dim)
        dtype = torch.half if state_half else torch.float
        elements = num_v_heads * k_head_dim * v_head_dim
        before = _at(job.base, elements, dtype).view(shape)
        q, k, v = qkv[:, :keys], qkv[:, keys : 2 * keys], qkv[:, 2 * keys :]
        heads = (1, job.prefix, -1)
        _, after = delta_rule_steps(
            q.reshape(*heads, k_head_dim),
            k.reshape(*heads, k_head_dim),
            v.reshape(*heads, v_head_dim),
            g.unsqueeze(0),
            beta.unsqueeze(0),
            before.float(),
        )
        _at(job.scratch, elements, dtype).view(shape).copy_(after)


def _rows(address: int, job: ScanReplayJob, width: int, dtype: torch.dtype) -> Tensor:
    """The inputs of a job's tokens, shape (prefix, width)."""
    length = ((job.prefix - 1) * job.tstride + 1) * width
    return _at(address, length, dtype).as_strided((job.prefix, width), (job.tstride * width, 1))
