"""The probe on a real driver."""

import pytest

from daemon.core.faults import Probed, ProbeOutcome
from daemon.host.gpu_probe import GpuProbe


@pytest.mark.gpu
async def test_fresh_process_computes_on_every_gpu() -> None:
    assert await GpuProbe(60).probe() == Probed(ProbeOutcome.WORKS)
