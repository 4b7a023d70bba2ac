"""The probe as a real process, with a driver that does as it is told."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.core.faults import Probed, ProbeOutcome
from daemon.engine.probe import probe
from daemon.host.gpu_probe import PROBE_ARGV, GpuProbe, kill_group


def script(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a driver library made for tests."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a fake driver library needs a C compiler (cc)")
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    source = Path(__file__).parent / "fake_cuda.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(source)], check=True)
    return str(library)


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ("", {"outcome": "works", "code": None, "call": ""}),
        ("cuInit=100", {"outcome": "no_device", "code": 100, "call": "cuInit"}),
        ("cuInit=999", {"outcome": "failed", "code": 999, "call": "cuInit"}),
        ("cuCtxCreate_v2=46", {"outcome": "failed", "code": 46, "call": "cuCtxCreate_v2"}),
        ("cuMemAlloc_v2=2", {"outcome": "no_memory", "code": 2, "call": "cuMemAlloc_v2"}),
        ("cuModuleLoadData=222", {"outcome": "works", "code": None, "call": ""}),
        ("cuModuleLoadData=999", {"outcome": "failed", "code": 999, "call": "cuModuleLoadData"}),
        ("cuLaunchKernel=719", {"outcome": "failed", "code": 719, "call": "cuLaunchKernel"}),
        ("cuCtxSynchronize=700", {"outcome": "failed", "code": 700, "call": "cuCtxSynchronize"}),
        ("wrong", {"outcome": "failed", "code": None, "call": "the result on GPU 0"}),
    ],
)
def test_probe_says_what_the_driver_did(
    driver: str, orders: str, expected: dict[str, str | int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUDA", orders)
    assert probe(driver) == expected


def test_driver_without_a_gpu_has_no_device(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NONE", "1")
    assert probe(driver) == {"outcome": "no_device", "code": 100, "call": "cuDeviceGetCount"}


async def test_machine_without_a_driver_has_no_device(tmp_path: Path) -> None:
    argv = (*PROBE_ARGV, "--library", str(tmp_path / "libcuda.so.1"))
    assert await GpuProbe(60, argv=argv).probe() == Probed(ProbeOutcome.NO_DEVICE, 100)


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ("", Probed(ProbeOutcome.WORKS)),
        ("cuInit=803", Probed(ProbeOutcome.FAILED, 803)),
        ("cuInit=crash", Probed(ProbeOutcome.FAILED)),
    ],
)
async def test_outcome_comes_over_from_the_process(
    driver: str, orders: str, expected: Probed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUDA", orders)
    assert await GpuProbe(60, argv=(*PROBE_ARGV, "--library", driver)).probe() == expected


async def test_hung_driver_is_killed_at_the_deadline_and_we_say_so_first(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA", "cuCtxSynchronize=hang")
    killed: list[str] = []

    def kill(pid: int) -> None:
        killed.append("killed")
        kill_group(pid)

    prober = GpuProbe(1.0, argv=(*PROBE_ARGV, "--library", driver), on_kill=lambda: killed.append("said"), kill=kill)
    assert await prober.probe() == Probed(ProbeOutcome.TIMED_OUT)
    assert killed == ["said", "killed"]


async def test_probe_that_outlives_its_kill_is_unkillable_and_no_second_one_is_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    argv = ("sh", "-c", f"echo $$ >> '{started}'; exec sleep 600")  # a Python might not have begun before the deadline
    pids: list[int] = []
    prober = GpuProbe(1.0, argv=argv, reap=0.05, kill=pids.append)
    assert await prober.probe() == Probed(ProbeOutcome.UNKILLABLE)
    assert await prober.probe() is None
    assert await asyncio.to_thread(started.read_text) == f"{pids[0]}\n"
    kill_group(pids[0])
    stuck = prober._stuck  # pyright: ignore[reportPrivateUsage] - reaped here, or asyncio complains in somebody else's test
    assert stuck is not None
    await stuck.communicate()


async def test_two_who_ask_at_once_share_one_probe(tmp_path: Path) -> None:
    started = tmp_path / "started"
    argv = script(f'open({str(started)!r}, \'a\').write(\'x\'); print(\'{{"outcome": "works", "code": null, "call": ""}}\')')
    prober = GpuProbe(60, argv=argv)
    assert await asyncio.gather(prober.probe(), prober.probe()) == [Probed(ProbeOutcome.WORKS)] * 2
    assert await asyncio.to_thread(started.read_text) == "x"
    await prober.probe()
    assert await asyncio.to_thread(started.read_text) == "xx"


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(3)",
        "import nothing_of_that_name",
        "print('CUDA error: unknown error')",
        'print(\'{"outcome": "exploded", "code": null, "call": ""}\')',
        "import os; os.write(1, bytes(range(256)))",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
async def test_process_that_gives_no_answer_proves_nothing(code: str) -> None:
    assert await GpuProbe(60, argv=script(code)).probe() is None


async def test_program_that_cannot_be_started_proves_nothing(tmp_path: Path) -> None:
    assert await GpuProbe(60, argv=(str(tmp_path / "nothing"),)).probe() is None


async def test_close_ends_a_running_probe(tmp_path: Path) -> None:
    started = tmp_path / "started"
    argv = script(f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    prober = GpuProbe(600, argv=argv)
    asking = asyncio.create_task(prober.probe())
    deadline = time.monotonic() + 60
    while not (started.exists() and await asyncio.to_thread(started.read_text)):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    await prober.close()
    await asyncio.wait([asking])
    assert asking.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(int(await asyncio.to_thread(started.read_text)), 0)
