"""Reading GPUs: a driver that hangs, fails or knows little costs nobody anything."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pynvml
import pytest

from daemon.core.faults import NvmlFailed
from daemon.core.gpu import GpuProcess, GpuReading
from daemon.core.senses import SenseState
from daemon.host.gpu_telemetry import GpuTelemetry
from daemon.host.nvml import NvmlError, PyNvml
from tests.host.fake_nvml import CARDS, FakeNvml

NOT_SUPPORTED, NOT_LOADED, LOST, BLOCKED, UNKNOWN = 3, 9, 15, 17, 999


class Bench:
    """A telemetry over a fake driver, and what it told."""

    def __init__(self, *, deadline: float = 5.0) -> None:
        self.nvml = FakeNvml()
        self.failures: list[NvmlFailed] = []
        self.hangs: list[float] = []
        self.telemetry = GpuTelemetry(
            self.nvml,
            period=600,
            deadline=deadline,
            on_failure=self.failures.append,
            on_hang=self.hangs.append,
        )

    @property
    def state(self) -> SenseState:
        return self.telemetry.sense().state

    async def read(self) -> None:
        """Ask for a reading and wait until one was made."""
        before = self.nvml.calls.count("memory")
        self.telemetry.read_soon()
        await until(lambda: self.nvml.calls.count("memory") > before)


async def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


@asynccontextmanager
async def running(bench: Bench) -> AsyncGenerator[Bench]:
    task = asyncio.create_task(bench.telemetry.run())
    try:
        yield bench
    finally:
        bench.nvml.gate.set()
        task.cancel()
        await asyncio.wait([task])


async def test_gpus_are_read_with_everything_the_driver_tells() -> None:
    async with running(Bench()) as bench:
        await until(lambda: bench.state is SenseState.WORKING)
        processes = (GpuProcess(7, 3900), GpuProcess(8, None))
        assert bench.telemetry.readings() == tuple(
            GpuReading(card.name, card.uuid, card.pci, 4000 + n, 16000, 61, 0.5, 212.5, processes) for n, card in enumerate(CARDS)
        )
        used = bench.telemetry.used_mib()
        assert used is not None
        assert used.mib == {0: 4000, 1: 4001}
    assert bench.failures == []
    assert threading.get_ident() not in bench.nvml.threads


async def test_reading_that_somebody_waits_for_comes_before_the_period_is_over() -> None:
    async with running(Bench()) as bench:
        await until(lambda: bench.state is SenseState.WORKING)
        asked = time.monotonic()
        bench.nvml.used = 300
        bench.telemetry.read_soon()
        await until(lambda: bench.telemetry.readings()[0].used_mib == 300)
        used = bench.telemetry.used_mib()
        assert used is not None
        assert used.t >= asked


async def test_what_the_driver_does_not_know_is_asked_for_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.nvml.fails = {"processes": NOT_SUPPORTED, "power 1": UNKNOWN, "temperature": 13}
    with caplog.at_level(logging.INFO, "exl3d.watchdog"):
        async with running(bench):
            await until(lambda: bench.state is SenseState.WORKING)
            for _ in range(3):
                await bench.read()
            await until(lambda: bench.state is SenseState.WORKING)
    first, second = bench.telemetry.readings()
    assert (first.power_watts, first.processes, first.temperature) == (212.5, None, None)
    assert (second.power_watts, second.used_mib) == (None, 4001)
    assert bench.nvml.calls.count("processes") == 2
    assert bench.failures == []
    assert sum("no power" in record.getMessage() for record in caplog.records) == 1


async def test_passing_failure_of_a_metric_keeps_its_last_value() -> None:
    async with running(Bench()) as bench:
        await until(lambda: bench.state is SenseState.WORKING)
        bench.nvml.fails = {"temperature": 10}
        bench.nvml.used = 4100
        bench.telemetry.read_soon()
        await until(lambda: bench.telemetry.readings()[0].used_mib == 4100)
        assert bench.telemetry.readings()[0].temperature == 61
    assert bench.failures == []


async def test_machine_without_a_driver_has_no_telemetry_and_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    for code in (12, NOT_LOADED):
        bench = Bench()
        bench.nvml.fails = {"start": code}
        with caplog.at_level(logging.INFO, "exl3d.watchdog"):
            await asyncio.wait_for(bench.telemetry.run(), 20)
        assert bench.state is SenseState.ABSENT
        assert bench.telemetry.used_mib() is None
        assert bench.failures == []
        assert bench.nvml.calls == ["start"]


async def test_lost_gpu_is_evidence_once_and_again_after_it_was_well() -> None:
    async with running(Bench()) as bench:
        await until(lambda: bench.state is SenseState.WORKING)
        bench.nvml.fails = {"memory 1": LOST}
        for _ in range(3):
            await bench.read()
            await until(lambda: bench.state is SenseState.STALE)
        assert bench.failures == [NvmlFailed("memory", LOST)]
        assert [reading.used_mib for reading in bench.telemetry.readings()] == [4000, 4001]
        bench.nvml.fails = {}
        bench.telemetry.read_soon()
        await until(lambda: bench.state is SenseState.WORKING)
        assert bench.nvml.calls.count("start") >= 3
        bench.nvml.fails = {"memory 1": LOST}
        bench.telemetry.read_soon()
        await until(lambda: len(bench.failures) == 2)


@pytest.mark.parametrize("code", [BLOCKED, 18, UNKNOWN])
async def test_driver_that_refuses_at_the_start_is_evidence(code: int) -> None:
    bench = Bench()
    bench.nvml.fails = {"start": code}
    async with running(bench):
        await until(lambda: bench.failures == [NvmlFailed("start", code)])
        assert bench.state is SenseState.STALE


async def test_driver_that_goes_away_later_is_evidence() -> None:
    async with running(Bench()) as bench:
        await until(lambda: bench.state is SenseState.WORKING)
        bench.nvml.fails = {"memory": 1}
        await bench.read()
        bench.nvml.fails = {"start": NOT_LOADED}
        bench.telemetry.read_soon()
        await until(lambda: bench.failures == [NvmlFailed("start", NOT_LOADED)])
        assert bench.state is SenseState.STALE


async def test_hung_call_keeps_the_last_values_and_never_piles_up() -> None:
    async with running(Bench(deadline=0.05)) as bench:
        await until(lambda: bench.state is SenseState.WORKING)
        calls = len(bench.nvml.calls)
        bench.nvml.gate.clear()
        for _ in range(5):
            bench.telemetry.read_soon()
            await until(lambda: bench.state is SenseState.STALE)
            await asyncio.sleep(0)
        assert len(bench.hangs) == 1
        assert len(bench.nvml.calls) == calls + 1
        assert bench.telemetry.readings()[1].used_mib == 4001
        assert len(bench.nvml.threads) == 1
        bench.nvml.used = 5000
        bench.nvml.gate.set()
        await until(lambda: bench.telemetry.readings()[0].used_mib == 5000)
    assert bench.failures == []


async def test_error_that_nobody_expects_leaves_the_reader_running(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()

    def broken(gpu: int) -> tuple[int, int]:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, f"GPU {gpu}")

    async with running(bench):
        await until(lambda: bench.state is SenseState.WORKING)
        good = bench.nvml.memory
        bench.nvml.memory = broken
        bench.telemetry.read_soon()
        await until(lambda: bench.state is SenseState.STALE)
        assert "UnicodeDecodeError" in bench.telemetry.sense().words
        bench.nvml.memory = good
        bench.telemetry.read_soon()
        await until(lambda: bench.state is SenseState.WORKING)
    assert "could not be read" in caplog.text


def test_library_that_is_missing_fails_in_the_words_of_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError(12)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    with pytest.raises(NvmlError, match=r"nvmlInit: .*\(12\)") as caught:
        PyNvml().start()
    assert caught.value.code == 12


def test_real_library_gives_readings_or_its_own_errors() -> None:
    """The adapter and the real driver agree: what comes back has the types that the port promises."""
    nvml = PyNvml()
    try:
        nvml.start()
    except NvmlError as problem:
        pytest.skip(f"no NVIDIA driver here ({problem})")
    for gpu in range(nvml.count()):
        card = nvml.identity(gpu)
        used, total = nvml.memory(gpu)
        assert 0 <= used <= total
        assert card.pci.count(":") == 2
        for measure in (nvml.temperature, nvml.utilisation, nvml.power, nvml.processes):
            with contextlib.suppress(NvmlError):  # a driver need not know it, but must say so in the port's words
                assert measure(gpu) is not None
    nvml.stop()
