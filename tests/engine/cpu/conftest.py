"""The CPU operations are in place before any test imports exllamav3, and torch keeps to one thread."""

from collections.abc import Iterator

import pytest
import torch

from daemon.engine.cpu.install import install

install()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads would fight over the machine, and rounding would depend on their number; tests need no gradients."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)
