"""The watchdog as a whole: sequences that made others restart healthy engines, and those that call for exactly one thing."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from daemon.core.degraded import ENOUGH
from daemon.core.faults import KernelLines, NvmlFailed, Platform, Probed, ProbeOutcome
from daemon.core.faults_values import Label, Remedy
from daemon.core.incidents import IncidentClosed, IncidentGrew, IncidentOpened, IncidentRecord, Incidents
from daemon.core.senses import Sense, SenseState
from daemon.core.settings import WatchdogSettings
from daemon.core.supervision_events import Judged
from daemon.core.wire import Durations, Fatal, FatalClass, Phase, Pool, Step
from daemon.host import watchdog as module
from daemon.host.kernel_log import KernelGroup
from daemon.host.kin import Surroundings, relatives, surroundings
from daemon.host.vacancy import MemoryGauge
from daemon.host.watchdog import PROBE_PAUSE, Sources, Watchdog
from daemon.host.witness import Witness
from tests.host.fake_nvml import FakeNvml

BOOT_BLOCK = (
    "misc dxg: dxgk: dxgkio_is_feature_enabled: Ioctl failed: -22",
    *("misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -22",) * 4,
    *("misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -2",) * 2,
)
MAKE_RESIDENT = "misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12"
TRIPLE = (
    "misc dxg: dxgk: dxgvmb_send_sync_msg: vmbus_sendpacket failed: fffffff5",
    "misc dxg: dxgk: create_existing_sysmem: failed set existing pages: fffffff5",
    "misc dxg: dxgk: dxgkio_create_allocation: Ioctl failed: -11",
)
KILLED_WAITER = "misc dxg: dxgk: dxgvmb_send_sync_msg: wait_for_completion failed: fffffe00"
NO_PROCESS = "misc dxg: dxgk: dxgvmb_send_create_process: create_process failed -75"
LOST = "misc dxg: dxgk: dxgkio_submit_command: Ioctl failed: -19"
NOT_READY = Fatal(FatalClass.DEVICE, "AcceleratorError: CUDA error: device not ready")
ILLEGAL = Fatal(FatalClass.DEVICE, "AcceleratorError: CUDA error: an illegal memory access was encountered")
QUIET = WatchdogSettings(nvml=False)


def xid(number: int, pid: int | None, rest: str = "Ch 0000000b") -> str:
    who = "pid='<unknown>', name=<unknown>" if pid is None else f"pid={pid}, name=python"
    return f"NVRM: Xid (PCI:0000:01:00): {number}, {who}, {rest}"


class Silent:
    """A follower of the kernel that hears nothing: tests speak themselves."""

    def __init__(self, hand_on: Callable[[KernelGroup], None]) -> None:
        self.hand_on = hand_on

    async def run(self) -> None:
        await asyncio.Event().wait()

    def sense(self) -> Sense:
        return Sense("kernel log", SenseState.WORKING, "a test")


class Broken(Silent):
    """A follower with a fault of its own."""

    async def run(self) -> None:
        raise LookupError("nobody thought of this")


class FakeProber:
    """Probes that end as they are told."""

    def __init__(self, outcome: Probed | None = None) -> None:
        self.outcome = outcome
        self.probes = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def probe(self) -> Probed | None:
        self.probes += 1
        await self.gate.wait()
        return self.outcome

    async def close(self) -> None:
        self.gate.set()


class Notes:
    """Incidents in a list."""

    def __init__(self) -> None:
        self.opened_: list[IncidentOpened] = []
        self.closed_: dict[int, IncidentClosed] = {}

    async def opened(self, incident: IncidentOpened) -> int:
        await asyncio.sleep(0)
        self.opened_.append(incident)
        return len(self.opened_)

    async def grew(self, number: int, more: IncidentGrew) -> None:
        raise AssertionError(f"incident {number} grew: {more}")

    async def closed(self, number: int, end: IncidentClosed) -> None:
        await asyncio.sleep(0)
        self.closed_[number] = end

    async def recent(self, limit: int) -> list[IncidentRecord]:
        raise AssertionError(f"nobody asks for {limit}")

    def counts(self) -> Mapping[str, int]:
        return {}


class Dog:
    """A watchdog, its clock, and what it said."""

    def __init__(
        self,
        settings: WatchdogSettings = QUIET,
        *,
        kernel: Callable[[Callable[[KernelGroup], None]], Silent] = Silent,
        nvml: FakeNvml | None = None,
        ask: Callable[[], Awaitable[object]] | None = None,
        platform: Platform = Platform.WSL,
        gpu: bool = True,
        gpu_nodes: bool = True,
    ) -> None:
        self.now = 1000.0
        self.said: list[tuple[int | None, Judged]] = []
        self.prober = FakeProber()
        self.notes = Notes()
        incidents: Incidents = self.notes
        self.watchdog = Watchdog(
            settings,
            verdicts=lambda engine, judged: self.said.append((engine, judged)),
            incidents=incidents,
            gpu=gpu,
            ask=ask,
            sources=Sources(kernel, nvml, self.prober, lambda: Surroundings(platform, kernel_pids=True, gpu_nodes=gpu_nodes)),
            clock=lambda: self.now,
            wall=lambda: 5.0,
        )
        self.witness: Witness = self.watchdog

    def kernel(self, *lines: str, after: float = 1.0) -> None:
        """The kernel prints lines together."""
        self.now += after
        self.watchdog.kernel_said(KernelGroup(self.now, KernelLines(lines)))

    async def heard(self) -> list[tuple[Remedy, Label]]:
        """Everything said so far, shown to be everything by a bark at a line that must always be barked at."""
        self.now += 10_000
        known = len(self.said)
        self.kernel(LOST)
        await until(lambda: any(judged.t == self.now for _, judged in self.said[known:]))
        last = self.said.pop()[1]
        assert (last.remedy, last.label) == (Remedy.WSL_SHUTDOWN, Label.DXGKRNL_GPU_LOST)
        return [(judged.remedy, judged.label) for _, judged in self.said]


async def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


@asynccontextmanager
async def watching(dog: Dog) -> AsyncGenerator[Dog]:
    task = asyncio.create_task(dog.watchdog.run())
    try:
        yield dog
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()


# --- the sequences --------------------------------------------------------------------------------------------------


async def test_twenty_boot_blocks_call_for_nothing() -> None:
    async with watching(Dog()) as dog:
        for _ in range(20):
            dog.kernel(*BOOT_BLOCK, after=60)
        assert await dog.heard() == []


async def test_make_resident_alone_calls_for_nothing_however_often() -> None:
    async with watching(Dog()) as dog:
        for _ in range(200):
            dog.kernel(MAKE_RESIDENT)
        assert await dog.heard() == []


async def test_make_resident_before_an_exception_calls_once_for_a_smaller_engine() -> None:
    async with watching(Dog()) as dog:
        dog.witness.spawned(0, 4, os.getpid())
        dog.kernel(MAKE_RESIDENT)
        dog.kernel(*BOOT_BLOCK)
        await until(lambda: dog.watchdog._folded.hints != ())  # pyright: ignore[reportPrivateUsage] - a hint shows nowhere else
        dog.now += 1
        dog.witness.fatal(0, 4, NOT_READY)
        assert await dog.heard() == [(Remedy.ENGINE_REBUILD, Label.CUDA_DEVICE_NOT_READY)]
        [(engine, judged)] = dog.said
        assert (engine, judged.boot) == (0, 4)
        assert "make_resident" in judged.words


async def test_make_resident_after_an_exception_calls_once_for_a_smaller_engine() -> None:
    async with watching(Dog()) as dog:
        dog.witness.fatal(0, 4, NOT_READY)
        dog.kernel(MAKE_RESIDENT, MAKE_RESIDENT)
        assert await dog.heard() == [(Remedy.ENGINE_REBUILD, Label.CUDA_DEVICE_NOT_READY)]


async def test_vmbus_triple_is_one_verdict_about_the_machine() -> None:
    async with watching(Dog()) as dog:
        dog.kernel(*TRIPLE)
        assert await dog.heard() == [(Remedy.PROCESS_RESTART, Label.DXGKRNL_VMBUS)]
        assert [(engine, judged.boot) for engine, judged in dog.said] == [(None, None)]


async def test_echoes_of_our_own_kill_call_for_nothing() -> None:
    async with watching(Dog()) as dog:
        dog.witness.spawned(0, 1, os.getpid())
        dog.witness.hung(0, 1, "decode", 61)
        dog.witness.own_kill(0, 1)
        dog.kernel(KILLED_WAITER, xid(45, os.getpid()), after=0.2)
        dog.kernel(xid(43, os.getpid()))
        dog.witness.gone(0, 1, os.getpid(), -9)
        dog.kernel(xid(43, os.getpid(), "channel 0x00000030"))
        assert await dog.heard() == []


async def test_prompt_that_quotes_errors_calls_for_nothing() -> None:
    async with watching(Dog()) as dog:
        dog.witness.fatal(0, 1, Fatal(FatalClass.INTERNAL, "ValueError: prompt said 'CUDA error: unknown error'"))
        dog.witness.fatal(0, 1, Fatal(FatalClass.CONFIG, "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus"))
        dog.kernel("python[7]: CUDA error: unknown error", "audit: NVRM: Xid (PCI:0000:01:00): 79, pid=1, name=x")
        assert await dog.heard() == []


async def test_burst_of_a_loud_line_is_one_verdict() -> None:
    async with watching(Dog()) as dog:
        for _ in range(50):
            dog.kernel(NO_PROCESS, after=4)
        assert await dog.heard() == [(Remedy.WSL_SHUTDOWN, Label.DXGKRNL_VMBUS)]


async def test_fault_of_our_process_names_its_engine_and_that_of_others_is_left_alone() -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=subprocess.PIPE)
    async with watching(Dog()) as dog:
        dog.witness.spawned(0, 7, child.pid)
        dog.kernel(xid(31, 1), after=100)
        dog.kernel("Out of memory: Killed process 1 (init) total-vm:1kB, anon-rss:1kB", after=100)
        dog.kernel(xid(31, child.pid), after=100)
        assert await dog.heard() == [(Remedy.PROCESS_RESTART, Label.XID_APP_FAULT)]
        [(engine, judged)] = dog.said
        assert (engine, judged.boot) == (0, 7)
    await child.communicate(b"\n")


async def test_xid_that_states_its_own_action_silences_the_others() -> None:
    async with watching(Dog()) as dog:
        action = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
        dog.kernel(xid(48, None), xid(154, None, action))
        assert await dog.heard() == [(Remedy.HOST_REBOOT, Label.XID_RECOVERY_ACTION)]


async def test_exception_that_a_supervisor_told_of_is_not_told_back() -> None:
    async with watching(Dog()) as dog:
        dog.witness.fatal(0, 1, ILLEGAL)
        assert await dog.heard() == []


@pytest.mark.parametrize(
    ("detail", "remedy", "label"),
    [
        ("AcceleratorError: CUDA error: uncorrectable ECC error encountered", Remedy.HOST_REBOOT, Label.CUDA_ECC),
        (
            "the device failed while loading: RuntimeError: No CUDA GPUs are available",
            Remedy.DRIVER_ACTION,
            Label.NO_DEVICE,
        ),
        (
            "AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            Remedy.PROCESS_RESTART,
            Label.CUDA_DEVICES_UNAVAILABLE,
        ),
    ],
)
async def test_exception_that_speaks_of_the_device_is_told_to_the_supervisor(detail: str, remedy: Remedy, label: Label) -> None:
    async with watching(Dog()) as dog:
        dog.witness.fatal(1, 3, Fatal(FatalClass.DEVICE, detail))
        assert await dog.heard() == [(remedy, label)]
        assert dog.said[0][0] == 1


async def test_exception_followed_by_the_end_of_the_card_escalates_once() -> None:
    async with watching(Dog()) as dog:
        dog.witness.fatal(0, 1, Fatal(FatalClass.DEVICE, "AcceleratorError: CUDA error: unknown error"))
        dog.kernel(xid(79, None, "GPU has fallen off the bus."))
        assert await dog.heard() == [(Remedy.HOST_REBOOT, Label.GPU_FELL_OFF_BUS)]


# --- suspicion ------------------------------------------------------------------------------------------------------


async def test_hung_engine_is_followed_by_a_probe_whose_failure_is_a_verdict() -> None:
    async with watching(Dog()) as dog:
        dog.prober.outcome = Probed(ProbeOutcome.TIMED_OUT)
        dog.witness.hung(0, 1, "decode", 61)
        assert dog.prober.probes == 0
        dog.witness.own_kill(0, 1)
        dog.witness.gone(0, 1, 77, -9)
        await until(lambda: len(dog.said) == 1)
        assert await dog.heard() == [(Remedy.WSL_SHUTDOWN, Label.PROBE_FAILED)]


async def test_probe_that_works_calls_for_nothing() -> None:
    async with watching(Dog()) as dog:
        dog.prober.outcome = Probed(ProbeOutcome.WORKS)
        dog.watchdog.nvml_hangs(3.0)
        await until(lambda: dog.prober.probes == 1)
        assert await dog.heard() == []


async def test_slow_probe_beside_an_engine_that_generates_proves_nothing() -> None:
    async with watching(Dog()) as dog:
        dog.witness.spawned(0, 1, os.getpid())
        dog.prober.outcome = Probed(ProbeOutcome.TIMED_OUT)
        dog.prober.gate.clear()
        dog.watchdog.nvml_hangs(3.0)
        await until(lambda: dog.prober.probes == 1)
        dog.watchdog.stepped(0, step(1, 0.03))
        dog.prober.gate.set()
        assert await dog.heard() == []


async def test_suspicions_in_a_row_make_few_probes() -> None:
    async with watching(Dog()) as dog:
        for _ in range(20):
            dog.watchdog.nvml_hangs(3.0)
            dog.now += 1
        await until(lambda: dog.prober.probes == 1)
        for _ in range(50):
            dog.now += PROBE_PAUSE
            dog.watchdog.nvml_hangs(3.0)
            await asyncio.sleep(0)
        await until(lambda: dog.prober.probes == 6)
        assert await dog.heard() == []


async def test_nvml_that_answers_unknown_error_is_probed_and_restarts_nothing() -> None:
    async with watching(Dog()) as dog:
        dog.prober.outcome = Probed(ProbeOutcome.WORKS)
        dog.watchdog.nvml_failed(NvmlFailed("nvmlInit", 999))
        await until(lambda: dog.prober.probes == 1)
        assert await dog.heard() == []


async def test_lost_gpu_in_nvml_is_a_verdict() -> None:
    async with watching(Dog()) as dog:
        dog.watchdog.nvml_failed(NvmlFailed("nvmlDeviceGetMemoryInfo", 15))
        assert await dog.heard() == [(Remedy.HOST_REBOOT, Label.GPU_FELL_OFF_BUS)]


async def test_second_device_error_within_minutes_is_probed() -> None:
    async with watching(Dog()) as dog:
        for boot in (1, 2):
            dog.witness.spawned(0, boot, os.getpid())
            dog.witness.fatal(0, boot, ILLEGAL)
            dog.witness.gone(0, boot, os.getpid(), 70)
            assert dog.prober.probes == 0
            dog.now += 60
            await asyncio.sleep(0)
        await until(lambda: dog.prober.probes == 1)


async def test_doubt_about_the_machine_asks_idle_engines_for_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_SECONDS", 0.0)
    asked: list[str] = []

    async def ask() -> None:
        asked.append("asked")

    async with watching(Dog(ask=ask)) as dog:
        dog.kernel(*TRIPLE)
        await until(lambda: asked == ["asked"])
        dog.kernel(NO_PROCESS)
        await dog.heard()
        assert asked == ["asked"]


# --- the pace -------------------------------------------------------------------------------------------------------


def step(n: int, seconds: float, t: float | None = None) -> Step:
    pool = Pool(pages=100, referenced=40, slots=4, running=1, pending=0)
    return Step(n, n * seconds if t is None else t, Phase.DECODE, pool, Durations(decode=seconds, decode_tokens=1))


def run_steps(dog: Dog, count: int, seconds: float) -> None:
    for n in range(count):
        dog.now += seconds
        dog.watchdog.stepped(0, step(n, seconds, dog.now))


async def test_slow_engine_with_full_memory_is_an_incident_and_no_verdict() -> None:
    nvml = FakeNvml()
    nvml.used = 15_800
    async with watching(Dog(WatchdogSettings(nvml_seconds=0.005), nvml=nvml)) as dog:
        await until(lambda: dog.watchdog.readings() != ())
        dog.witness.spawned(0, 2, os.getpid())
        run_steps(dog, ENOUGH, 0.03)
        for _ in range(20):  # readings stay fresh while the clock of the test moves on
            run_steps(dog, 20, 0.15)
            before = nvml.calls.count("memory")
            await until(lambda: nvml.calls.count("memory") > before + 3)  # noqa: B023 - used at once
        await until(lambda: len(dog.notes.opened_) == 1)
        assert dog.notes.opened_[0].label == "degraded"
        assert (dog.notes.opened_[0].engine, dog.notes.opened_[0].boot) == (0, 2)
        dog.witness.gone(0, 2, os.getpid(), 0)
        await until(lambda: dog.notes.closed_ == {1: IncidentClosed(5.0, "the engine ended")})
        assert await dog.heard() == []


async def test_slow_engine_with_memory_to_spare_is_nothing() -> None:
    async with watching(Dog()) as dog:
        dog.witness.spawned(0, 2, os.getpid())
        run_steps(dog, ENOUGH, 0.03)
        run_steps(dog, 1000, 0.3)
        assert dog.notes.opened_ == []


# --- its own life ---------------------------------------------------------------------------------------------------


async def test_source_that_breaks_is_said_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(Dog(kernel=Broken)) as dog:
        await until(lambda: "goes on without its kernel log" in caplog.text)
        kernel = dog.watchdog.senses()[0]
        assert (kernel.name, kernel.state) == ("kernel log", SenseState.STALE)
        assert "broken" in kernel.words
        assert await dog.heard() == []


async def test_flood_of_groups_is_bounded_and_said(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(Dog()) as dog:
        for _ in range(3000):
            dog.kernel(*BOOT_BLOCK, after=0)
        assert caplog.text.count("more than can be judged") == 1
        await until(dog.watchdog._groups.empty)  # pyright: ignore[reportPrivateUsage] - else the bark is left out too
        assert await dog.heard() == []


async def test_senses_say_what_is_off() -> None:
    off = Dog(WatchdogSettings(kernel_log=False, nvml=False, probe=False)).watchdog
    assert [sense.state for sense in off.senses()] == [SenseState.OFF] * 3
    assert off.gauge is None
    assert off.readings() == ()


async def test_gauge_reads_the_memory_of_each_gpu() -> None:
    async with watching(Dog(WatchdogSettings(), nvml=FakeNvml())) as dog:
        gauge: MemoryGauge | None = dog.watchdog.gauge
        assert gauge is not None
        await until(lambda: gauge.used_mib() is not None)
        reading = gauge.used_mib()
        assert reading is not None
        assert reading.mib == {0: 4000, 1: 4001}


async def test_relatives_are_found_and_a_gone_process_has_none() -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=subprocess.PIPE)
    found = await asyncio.to_thread(relatives, os.getpid())
    assert {os.getpid(), child.pid} <= found
    await child.communicate(b"\n")
    assert await asyncio.to_thread(relatives, child.pid) == frozenset()


async def test_surroundings_are_read_from_the_kernel(tmp_path: Path) -> None:
    proc, dev = tmp_path / "proc", tmp_path / "dev"
    await asyncio.to_thread((proc / "sys/kernel").mkdir, parents=True)
    await asyncio.to_thread(dev.mkdir)
    release = proc / "sys/kernel/osrelease"
    await asyncio.to_thread(release.write_text, "6.8.0-31-generic\n")
    assert await asyncio.to_thread(surroundings, proc, dev) == Surroundings(Platform.NATIVE, kernel_pids=False, gpu_nodes=False)
    await asyncio.to_thread((dev / "nvidiactl").touch)
    assert (await asyncio.to_thread(surroundings, proc, dev)).gpu_nodes
    await asyncio.to_thread(release.write_text, "6.6.87.2-microsoft-standard-WSL2\n")
    assert (await asyncio.to_thread(surroundings, proc, dev)).platform is Platform.WSL


async def test_engine_on_a_cpu_is_not_bothered_by_somebody_elses_card() -> None:
    dog = Dog(gpu=False)
    async with watching(dog):
        dog.kernel(xid(79, None, "GPU has fallen off the bus."), LOST, NO_PROCESS)
        dog.witness.hung(0, 1, "decode", 61)
        dog.witness.gone(0, 1, 77, -9)
        dog.now += 100
        dog.kernel("BUG: unable to handle page fault for address: 0000000000000000")
        await until(lambda: dog.said != [])
        assert [(judged.remedy, judged.label) for _, judged in dog.said] == [(Remedy.WSL_SHUTDOWN, Label.GUEST_KERNEL_CRASH)]
        assert dog.prober.probes == 0


async def test_crash_of_a_real_machines_kernel_is_cured_by_its_reboot() -> None:
    async with watching(Dog(platform=Platform.NATIVE)) as dog:
        dog.kernel("BUG: unable to handle page fault for address: 0000000000000000")
        await until(lambda: dog.said != [])
        assert [(judged.remedy, judged.label) for _, judged in dog.said] == [(Remedy.HOST_REBOOT, Label.GUEST_KERNEL_CRASH)]


async def test_machine_without_a_card_is_never_probed_for_one() -> None:
    async with watching(Dog(gpu_nodes=False)) as dog:
        dog.prober.outcome = Probed(ProbeOutcome.NO_DEVICE, 100)
        dog.witness.hung(0, 1, "decode", 61)
        dog.witness.gone(0, 1, 77, -9)
        assert await dog.heard() == []
        assert dog.prober.probes == 0
