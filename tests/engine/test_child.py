"""The engine as a process: its link, its progress page, its ways to end. Real children, the null model where that is enough."""

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from daemon.core.exit_codes import ExitCode
from daemon.core.settings import BackendKind, EngineSettings
from daemon.core.wire import (
    PROTOCOL,
    Cancel,
    Configure,
    Drain,
    Failed,
    FailureClass,
    Fatal,
    FatalClass,
    Finished,
    Phase,
    Probe,
    Probed,
    Quote,
    Quoted,
    Report,
    Statistics,
    Stats,
    TokenSpan,
)
from daemon.engine.backend import LoadStage
from daemon.engine.null.profile import Fault, FaultKind, FaultPlace, NullProfile, Point
from tests.engine.checkpoints import Architecture, write_tokenizer
from tests.engine.child import DEADLINE, EngineChild, ids_of
from tests.engine.conftest import ModelPath
from tests.engine.workbench import ask, text

Configured = Callable[[NullProfile], Configure]


@pytest.fixture
def null(tmp_path: Path) -> Configured:
    """What to load for a null engine with a profile."""
    return partial(_null, tmp_path)


def _null(directory: Path, profile: NullProfile) -> Configure:
    write_tokenizer(directory)
    path = directory / "profile.json"
    path.write_bytes(msgspec.json.encode(profile))
    settings = EngineSettings(
        backend=BackendKind.NULL, cache_tokens=32768, max_batch=8, chunk_tokens=512, threads=1, null_profile=str(path)
    )
    return Configure(model=str(directory), context=8192, engine=settings, state_dir=str(directory))


@pytest.fixture
def child() -> Iterator[EngineChild]:
    """A child that is ended with the test."""
    with EngineChild() as started:
        yield started


@pytest.fixture(scope="module")
def willing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineChild]:
    """One engine without faults, for all who leave it idle."""
    with EngineChild() as started:
        started.start(_null(tmp_path_factory.mktemp("null"), NullProfile()))
        yield started


def _wait(child: EngineChild) -> int:
    return child.process.wait(DEADLINE)


def _poll(what: Callable[[], bool]) -> None:
    limit = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.01)


def test_the_real_library_serves_several_requests_in_a_child(child: EngineChild, model_path: ModelPath) -> None:
    """From Configure over each stage of loading to Drain, on a tiny hybrid."""
    settings = EngineSettings(backend=BackendKind.CPU, cache_tokens=8192, max_batch=4, chunk_tokens=512, threads=1)
    model = str(model_path(Architecture.QWEN3_5))
    hello = child.start(Configure(model=model, context=4096, engine=settings, state_dir=model))
    assert hello.protocol == PROTOCOL
    assert hello.pid == child.process.pid
    assert hello.backend == "exl3 on cpu"
    assert hello.architecture == "Qwen3_5ForCausalLM"
    assert (hello.limits.page, hello.limits.pages, hello.limits.slots) == (256, 32, 4)
    assert hello.limits.interval > 0
    stages = [LoadStage(loading.stage) for loading in child.loadings]
    assert stages[:2] == [LoadStage.IMPORTING, LoadStage.EXTENSION]
    assert set(stages) == set(LoadStage)
    modules = [loading for loading in child.loadings if loading.stage == LoadStage.LOADING.value]
    assert modules[-1].done == modules[-1].total > 3
    child.send(*[ask(number, text(100 * number, seed=number), 8) for number in range(1, 5)])
    events = child.until_ended(1, 2, 3, 4)
    assert all(len(ids_of(events[number])) == 8 for number in range(1, 5))
    assert child.steps[-1].pool.referenced == 0
    numbers = [step.n for step in child.steps]
    assert numbers == list(range(1, len(numbers) + 1))
    child.send(Drain())
    assert _wait(child) == ExitCode.OK


def test_questions_are_answered_while_idle(willing: EngineChild) -> None:
    """Quote, Stats and Probe."""
    willing.send(Quote(5, [TokenSpan(text(600))], 50))
    assert willing.answer() == Quoted(5, 3, 0)
    before = _generated(willing)
    willing.send(ask(1, text(20), 3))
    willing.until_ended(1)
    assert _generated(willing) == before + 3
    willing.send(Probe(7))
    assert willing.answer() == Probed(7)


def _generated(child: EngineChild) -> int:
    child.send(Stats(6))
    answer = child.answer()
    assert isinstance(answer, Statistics)
    return answer.generated_tokens


def test_an_idle_engine_uses_no_processor_time(willing: EngineChild) -> None:
    """It waits on its link; a command wakes it at once."""
    willing.send(ask(1, text(20), 3))
    willing.until_ended(1)
    _poll(lambda: _phase(willing) is Phase.IDLE)
    before = _cpu(willing)
    willing.link.settimeout(0.5)
    with pytest.raises(TimeoutError):
        willing.link.recv(1)
    assert _cpu(willing) - before <= 0.05
    willing.send(ask(2, text(20), 3))
    willing.until_ended(2)


def _phase(child: EngineChild) -> Phase | None:
    progress = child.progress()
    return None if progress is None else progress.phase


def _cpu(child: EngineChild) -> float:
    """Seconds of processor time of all the child's threads."""
    tasks = Path(f"/proc/{child.process.pid}/task")
    return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks.iterdir()) / 1e9


def test_a_cancelled_request_is_silent_and_its_pages_are_free_within_two_steps(child: EngineChild, null: Configured) -> None:
    """Counted in steps after the one in which the command was read."""
    child.start(null(NullProfile(decode=[Point(at=1, seconds=0.02)])))
    child.send(ask(1, text(600), 2000), ask(2, text(20), 60))
    child.until(lambda step: any(event.id == 2 for event in step.events))
    child.send(Cancel(1))
    seen = child.until(lambda step: step.pool.running == 1)
    assert seen[-1].pool.referenced == 1
    rest = child.until_ended(2)
    assert 1 not in rest
    assert len(seen) <= 4


@pytest.mark.parametrize("busy", [False, True])
def test_an_engine_whose_front_leaves_ends_promptly(child: EngineChild, null: Configured, busy: bool) -> None:
    """End of file is enough."""
    child.start(null(NullProfile(decode=[Point(at=1, seconds=0.01)])))
    if busy:
        child.send(ask(1, text(20), 5000))
        child.step()
    child.link.close()
    assert _wait(child) == ExitCode.OK


def test_an_engine_that_hangs_in_a_step_still_ends_with_its_front(child: EngineChild, null: Configured) -> None:
    """The reader thread does not need the loop for that; the page shows the step that hangs and whose it is."""
    child.start(null(NullProfile(faults=[Fault(kind=FaultKind.HANG, step=3)])))
    child.send(ask(41, text(20), 50), ask(42, text(20), 50))
    child.until(lambda step: step.n == 2)
    _poll(lambda: (progress := child.progress()) is not None and progress.step == 3)
    progress = child.progress()
    assert progress is not None
    assert progress.in_flight == (41, 42)
    assert progress.prefilling is None
    child.link.close()
    assert _wait(child) == ExitCode.OK


def test_a_prefill_that_hangs_names_its_request_on_the_page(child: EngineChild, null: Configured) -> None:
    """Others in flight are not accused."""
    child.start(null(NullProfile(faults=[Fault(kind=FaultKind.HANG, place=FaultPlace.PREFILL, step=2)])))
    child.send(ask(41, text(20), 500))
    child.until(lambda step: bool(step.durations.decode_tokens))
    child.send(ask(42, text(300, seed=2), 5))
    _poll(lambda: (progress := child.progress()) is not None and progress.prefilling == 42)


def test_a_crash_leaves_the_names_of_those_in_flight_behind(child: EngineChild, null: Configured) -> None:
    """The page outlives the process."""
    child.start(null(NullProfile(faults=[Fault(kind=FaultKind.EXIT, step=4)])))
    child.send(ask(7, text(20), 50))
    with pytest.raises(EOFError):
        child.until_ended(7)
    progress = child.progress()
    assert progress is not None
    assert progress.in_flight == (7,)
    assert progress.step == 4
    assert progress.generated_tokens == 3


def test_a_sticky_device_error_is_reported_once_and_ends_the_process(child: EngineChild, null: Configured) -> None:
    """With the code that says that a new process may help."""
    child.start(null(NullProfile(faults=[Fault(kind=FaultKind.DEVICE, step=2)])))
    child.send(ask(1, text(20), 50))
    reports = _until_fatal(child)
    fatal = reports[-1]
    assert isinstance(fatal, Fatal)
    assert fatal.kind is FatalClass.DEVICE
    assert "illegal memory access" in fatal.detail
    assert "Traceback" in fatal.trace
    assert _wait(child) == ExitCode.DEVICE


def _until_fatal(child: EngineChild) -> list[Report]:
    seen = [child.receive()]
    while not isinstance(seen[-1], Fatal):
        seen.append(child.receive())
    return seen


def test_a_contained_fault_is_no_end_of_the_process(child: EngineChild, null: Configured) -> None:
    """Memory in the middle of a stream."""
    child.start(null(NullProfile(faults=[Fault(kind=FaultKind.MEMORY, step=5), Fault(kind=FaultKind.RAISE, step=15)])))
    child.send(ask(1, text(20), 40), ask(2, text(20, seed=2), 40))
    events = child.until_ended(1, 2)
    assert all(isinstance(events[number][-1], Finished) for number in (1, 2))
    assert child.process.poll() is None


def test_a_draining_engine_finishes_what_runs_and_refuses_the_rest(child: EngineChild, null: Configured) -> None:
    """Then it ends with 0."""
    child.start(null(NullProfile(decode=[Point(at=1, seconds=0.005)])))
    child.send(ask(1, text(20), 40))
    child.step()
    child.send(Drain(), ask(2, text(20), 5))
    events = child.until_ended(1, 2)
    assert isinstance(events[1][-1], Finished)
    refused = events[2][-1]
    assert isinstance(refused, Failed)
    assert refused.kind is FailureClass.INTERNAL
    assert child.steps[-1].phase is Phase.DRAINING
    assert _wait(child) == ExitCode.OK


def test_a_front_that_does_not_read_stops_no_step(willing: EngineChild) -> None:
    """The counters on the page go on; when it reads again, nothing is missing."""
    before, steps = _tokens(willing), len(willing.steps)
    willing.send(*[ask(number, text(20, seed=number), 3000) for number in range(1, 8)])
    _poll(lambda: _tokens(willing) >= before + 21_000)
    events = willing.until_ended(*range(1, 8))
    assert all(len(ids_of(events[number])) == 3000 for number in range(1, 8))
    assert len(willing.steps) - steps < 3000


def _tokens(child: EngineChild) -> int:
    progress = child.progress()
    return 0 if progress is None else progress.generated_tokens


def test_garbage_on_the_link_ends_the_engine(child: EngineChild, null: Configured) -> None:
    """A broken invariant of ours: it does not guess."""
    child.start(null(NullProfile()))
    child.link.sendall(struct.pack("<I", 3) + b"\xc1\xc1\xc1")
    assert _wait(child) == ExitCode.FAILED


def test_a_first_command_other_than_configure_is_refused(child: EngineChild) -> None:
    """The link has one beginning."""
    child.send(Drain())
    fatal = _until_fatal(child)[-1]
    assert isinstance(fatal, Fatal)
    assert fatal.kind is FatalClass.INTERNAL


def test_a_front_that_leaves_before_anything_ends_the_engine(child: EngineChild) -> None:
    """Nothing to load, nobody to serve."""
    child.link.close()
    assert _wait(child) == ExitCode.OK


def test_a_model_that_cannot_be_loaded_is_explained_and_forbids_a_restart(child: EngineChild, tmp_path: Path) -> None:
    """The words are in tests/engine/test_loading.py; here is the code."""
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchForCausalLM"]}', encoding="utf-8")
    child.send(Configure(str(tmp_path), 1024, EngineSettings(backend=BackendKind.CPU, threads=1), str(tmp_path)))
    fatal = _until_fatal(child)[-1]
    assert isinstance(fatal, Fatal)
    assert fatal.kind is FatalClass.CONFIG
    assert "NoSuchForCausalLM" in fatal.detail
    assert _wait(child) == ExitCode.CONFIG


def test_an_engine_dies_with_its_parent() -> None:
    """Even when the link stays open elsewhere: the kernel sees to it."""
    script = (
        "import os, sys, time\n"
        "from tests.engine.child import EngineChild\n"
        "child = EngineChild()\n"
        "print(child.process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    _poll(lambda: "daemon.engine" in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace"))
    parent.send_signal(signal.SIGKILL)
    parent.wait(DEADLINE)
    parent.stdout.close()
    _poll(lambda: not _alive(pid))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
