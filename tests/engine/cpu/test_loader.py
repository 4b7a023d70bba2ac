"""Reading tensors from files into memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from daemon.engine.cpu import loader

BF16, CUDA = 1, 4


@pytest.fixture
def handles(tmp_path: Path) -> Iterator[list[int]]:
    """A file of 64 bytes of 7, then 8 bf16 values from 0 on."""
    path = tmp_path / "weights"
    path.write_bytes(b"\x07" * 64 + torch.arange(8).bfloat16().view(torch.uint8).numpy().tobytes())
    opened = loader.stloader_open_file(str(path))
    yield opened
    loader.stloader_close_file(opened)


def test_reads_at_an_offset(handles: list[int]) -> None:
    target = torch.zeros(8, dtype=torch.bfloat16)
    loader.stloader_read(handles, 64, 16, target)
    assert target.float().numpy().tolist() == list(range(8))


def test_batch_reads_and_converts(handles: list[int]) -> None:
    plain, converted = torch.zeros(4, dtype=torch.uint8), torch.zeros(8, dtype=torch.half)
    loads = torch.tensor(
        [[0, 0, 4, plain.data_ptr(), 4, 0, -1], [0, 64, 16, converted.data_ptr(), 16, BF16, -1], [0, 0, 0, 0, 0, 0, -1]]
    )
    loader.stloader_deferred_batch([handles], loads, 1 << 20)
    assert plain.numpy().tolist() == [7] * 4
    assert converted.numpy().tolist() == list(range(8))


def test_a_short_file_is_an_error(handles: list[int]) -> None:
    with pytest.raises(EOFError, match="4 bytes before"):
        loader.stloader_read(handles, 76, 8, torch.zeros(8, dtype=torch.uint8))


@pytest.mark.parametrize(("room", "flags"), [(2, 0), (4, CUDA)])
def test_loads_that_do_not_belong_here_are_refused(handles: list[int], room: int, flags: int) -> None:
    target = torch.zeros(4, dtype=torch.uint8)
    with pytest.raises(ValueError, match="not a load for a CPU"):
        loader.stloader_deferred_batch([handles], torch.tensor([[0, 0, 4, target.data_ptr(), room, flags, -1]]), 1 << 20)
    with pytest.raises(ValueError, match="do not fit"):
        loader.stloader_read(handles, 0, 8, target)
