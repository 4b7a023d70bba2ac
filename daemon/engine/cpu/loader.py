"""Reading safetensors into memory that is already there: the `stloader_*` operations."""

import ctypes
import os
from collections.abc import Sequence
from enum import IntFlag

import torch
from torch import Tensor

_READ_AT_ONCE = 1 << 30
"""Bytes. Linux moves at most 2 GiB in one read."""


class _Flag(IntFlag):
    """Flags of a row of `stloader_deferred_batch`, as in exllamav3's stloader.h."""

    BF16_TO_FP16 = 1
    FP32_TO_FP16 = 2
    CUDA = 4


def stloader_open_file(filename: str) -> list[int]:
    """Handles for one file; a single descriptor serves, since reads carry their own offset."""
    return [os.open(filename, os.O_RDONLY)]


def stloader_close_file(handles: Sequence[int]) -> None:
    """Close what `stloader_open_file` opened."""
    for handle in handles:
        os.close(handle)


def _read(handle: int, offset: int, size: int, address: int) -> None:
    """Fill `size` bytes at `address`. Raises EOFError when the file is shorter."""
    target = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
    done = 0
    while done < size:
        got = os.preadv(handle, [target[done : done + _READ_AT_ONCE]], offset + done)
        if got == 0:
            raise EOFError(f"the file ends {size - done} bytes before the tensor at offset {offset} does")
        done += got


def stloader_read(handles: Sequence[int], offset: int, size: int, target: Tensor) -> None:
    """Fill `target` (contiguous, on the CPU) with `size` bytes from `offset`."""
    if target.device.type != "cpu" or not target.is_contiguous() or target.nbytes < size:
        raise ValueError(f"stloader_read: {size} bytes do not fit {tuple(target.shape)} on {target.device}")
    if size:
        _read(handles[0], offset, size, target.data_ptr())


def stloader_deferred_batch(file_handles: Sequence[Sequence[int]], loads: Tensor, max_chunk_size: int) -> None:
    """Carry out a whole module's reads. `loads` int64 (n, 7): file, offset, size, address, room there, flags, device."""
    del max_chunk_size  # a CPU read needs no staging slots
    rows: list[list[int]] = loads.numpy().tolist()
    for file, offset, size, address, room, flags, _device in rows:
        if size > room or flags & _Flag.CUDA:
            raise ValueError(f"stloader_deferred_batch: {size} bytes for {room}, flags {flags}: not a load for a CPU")
        if not size:
            continue
        _read(file_handles[file][0], offset, size, address)
        if flags & _Flag.BF16_TO_FP16:
            loaded = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.bfloat16)
            loaded.view(torch.half).copy_(loaded.to(torch.half))
        # FP32_TO_FP16 needs nothing here: exllamav3 reads such tensors into an fp32 staging tensor and casts on the copy
