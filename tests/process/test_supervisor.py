"""The supervisor with real processes, seen from its ports: whom it tells what, in which order, and what it writes down."""

# ruff: noqa: ARG002 - what stands at a port takes what the port gives
import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from daemon.core.incidents import IncidentClosed, IncidentGrew, IncidentOpened, IncidentRecord
from daemon.core.settings import EngineSettings
from daemon.core.supervision_events import RestartAsked, StartAsked, StopAsked
from daemon.core.supervision_values import Backoff, Failed, FailedKind, Policy, Ready
from daemon.core.wire import Configure, Fatal, Hello, Step, Submit, TokenSpan
from daemon.host.engine_process import process_state
from daemon.host.link import CommandSink
from daemon.host.recovery import RecoveryFigures
from daemon.host.supervisor import Supervisor
from daemon.host.vacancy import SLACK_MIB, UsedMemory, Vacancy
from daemon.host.workforce import Fall
from tests.process.house import FAKE, POLICY, until

HASTY = replace(POLICY, step_stall=1.5, term=0.3)


@dataclass
class Crew:
    """A workforce that writes down what it is told, in order. `heard` is shared with other ports."""

    heard: list[str]
    sink: CommandSink | None = None
    falls: list[Fall] = field(default_factory=list[Fall])
    tokens: int = 0
    busy: bool = False

    def outstanding(self, engine: int) -> bool:
        return self.busy

    def engine_up(self, engine: int, sink: CommandSink, hello: Hello) -> None:
        self.heard.append("up")
        self.sink = sink

    def engine_down(self, engine: int, why: str) -> None:
        self.heard.append("down")
        self.sink, self.busy = None, False

    def engine_fell(self, engine: int, fall: Fall) -> None:
        self.heard.append("fell")
        self.falls.append(fall)

    def engine_coming(self, engine: int) -> None:
        self.heard.append("coming")

    def give_up(self, engine: int, why: str) -> None:
        self.heard.append("give up")

    def step(self, engine: int, step: Step) -> None:
        self.tokens += len(step.events)

    def submit(self, number: int) -> None:
        """Give the engine something to do for a long time."""
        assert self.sink is not None
        self.busy = True
        self.sink.send(Submit(number, 1, [TokenSpan([65, number])], 2, 1_000_000))


@dataclass
class Book:
    """Incidents that are only remembered."""

    heard: list[str]
    began: list[IncidentOpened] = field(default_factory=list[IncidentOpened])
    more: list[IncidentGrew] = field(default_factory=list[IncidentGrew])
    ends: list[tuple[int, IncidentClosed]] = field(default_factory=list[tuple[int, IncidentClosed]])
    writable: asyncio.Event = field(default_factory=asyncio.Event)

    async def opened(self, incident: IncidentOpened) -> int:
        self.heard.append(f"incident {incident.label}")
        await self.writable.wait()
        self.began.append(incident)
        self.heard.append("written")
        return len(self.began)

    async def grew(self, number: int, more: IncidentGrew) -> None:
        self.more.append(more)

    async def closed(self, number: int, end: IncidentClosed) -> None:
        self.ends.append((number, end))

    async def recent(self, limit: int) -> list[IncidentRecord]:
        return []

    def counts(self) -> Mapping[str, int]:
        return {}


@dataclass
class Gauge:
    """GPU memory as the test likes; every reading is a new one."""

    used: int = 500

    def used_mib(self) -> UsedMemory:
        return UsedMemory(time.monotonic(), {0: self.used})

    def read_soon(self) -> None:
        pass


@dataclass
class Observer:
    """A witness that writes down what it sees."""

    heard: list[str]

    def spawned(self, engine: int, boot: int, pid: int) -> None:
        self.heard.append(f"spawned {boot}")

    def own_kill(self, engine: int, boot: int) -> None:
        self.heard.append(f"own kill {boot}")

    def fatal(self, engine: int, boot: int, fatal: Fatal) -> None:
        self.heard.append(f"fatal {boot}")

    def hung(self, engine: int, boot: int, phase: str, seconds: float) -> None:
        self.heard.append(f"hung {boot}")

    def gone(self, engine: int, boot: int, pid: int, code: int) -> None:
        self.heard.append(f"gone {boot} {code}")


@dataclass
class Stage:
    """A supervisor between recording ports."""

    supervisor: Supervisor
    crew: Crew
    book: Book
    gauge: Gauge
    heard: list[str]

    async def serving(self, boot: int) -> None:
        """Wait for an engine, and the number of this one."""
        await until(lambda: self.boot == boot and isinstance(self.supervisor.view().mode, Ready), f"engine {boot}")

    @property
    def boot(self) -> int | None:
        """The engine that serves."""
        mode = self.supervisor.view().mode
        return mode.boot if isinstance(mode, Ready) else None

    async def busy(self, *numbers: int) -> None:
        """Have requests running."""
        for number in numbers:
            self.crew.submit(number)
        await until(lambda: self.crew.tokens > 3 * len(numbers), "tokens")

    @property
    def pid(self) -> int:
        """The engine's process."""
        pid = self.supervisor.view().pid
        assert pid is not None
        return pid


@asynccontextmanager
async def stage(*flags: str, policy: Policy = POLICY, engine: EngineSettings | None = None) -> AsyncGenerator[Stage]:
    """A running supervisor; it is stopped at the end."""
    heard: list[str] = []
    crew, book, gauge = Crew(heard), Book(heard), Gauge()
    book.writable.set()
    supervisor = Supervisor(
        engine=0,
        argv=(*FAKE, *flags),
        configure=Configure("/nowhere", 4096, engine or EngineSettings(), "/nowhere"),
        policy=policy,
        workforce=crew,
        on_change=lambda _: None,
        incidents=book,
        vacancy=Vacancy(gauge),
        witness=Observer(heard),
        recovery=lambda _: RecoveryFigures(interrupted=2, waiting=0, waited=(0.5, 0.75), reprefilled=300),
    )
    running = asyncio.create_task(supervisor.run())
    supervisor.post(StartAsked(time.monotonic()))
    try:
        yield Stage(supervisor, crew, book, gauge, heard)
    finally:
        book.writable.set()
        supervisor.post(StopAsked(time.monotonic(), 0))
        await asyncio.wait_for(supervisor.stopped(), 30)
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize(("number", "accuses"), [(signal.SIGSEGV, True), (signal.SIGKILL, False), (signal.SIGTERM, False)])
async def test_signal_that_ended_an_engine_decides_whether_its_requests_are_suspects(
    number: signal.Signals, accuses: bool, tmp_path: Path
) -> None:
    """The fake ends itself in the middle of a step; who was in flight stands on the page it left."""
    flags = ("--crash-after", "20", "--crash-signal", str(int(number)), "--once", str(tmp_path / "crashed"))
    async with stage(*flags, "--step-seconds", "0.01") as s:
        await s.serving(1)
        s.crew.submit(7)
        s.crew.submit(9)
        await s.serving(2)
        (fall,) = s.crew.falls
        assert fall.accuses is accuses
        assert fall.in_flight == (7, 9)
        assert fall.prefilling is None
        assert number.name in fall.why
        told = [word for word in s.heard if word in {"down", "fell", "up"}]
        assert told == ["up", "down", "fell", "up"]


async def test_hung_engine_accuses_and_restart_on_request_does_not(tmp_path: Path) -> None:
    async with stage("--hang", "5", "--once", str(tmp_path / "hung"), policy=HASTY) as s:
        await s.serving(1)
        s.crew.submit(7)
        await s.serving(2)
        assert [fall.accuses for fall in s.crew.falls] == [True]
        assert "hung 1" in s.heard
        assert s.heard.index("hung 1") < s.heard.index("own kill 1") < s.heard.index("gone 1 -15")
        await s.busy(8)
        s.supervisor.post(RestartAsked(time.monotonic(), "a person asked"))
        await s.serving(3)
        assert [fall.accuses for fall in s.crew.falls] == [True, False]
        assert len(s.book.began) == 1


async def test_death_is_written_down_before_anything_is_done_and_closed_with_what_it_cost() -> None:
    async with stage("--step-seconds", "0.01") as s:
        await s.serving(1)
        await s.busy(7)
        s.book.writable.clear()
        os.kill(s.pid, signal.SIGKILL)
        await until(lambda: "incident engine_dead" in s.heard, "the incident")
        assert "spawned 2" not in s.heard
        assert "down" not in s.heard
        s.book.writable.set()
        await s.serving(2)
        assert s.heard.index("written") < s.heard.index("down") < s.heard.index("spawned 2")
        await until(lambda: bool(s.book.ends), "its end")
        (began,) = s.book.began
        assert (began.engine, began.boot, began.remedy) == (0, 1, "process_restart")
        assert "1 requests in flight" in began.seen[-1]
        (number, end) = s.book.ends[0]
        assert (number, end.waited, end.reprefilled) == (1, (0.5, 0.75), 300)
        assert any("SIGKILL" in seen for more in s.book.more for seen in more.seen)


async def test_disk_that_does_not_answer_holds_nobody_up() -> None:
    async with stage("--step-seconds", "0.01") as s:
        await s.serving(1)
        s.book.writable.clear()
        os.kill(s.pid, signal.SIGKILL)
        await s.serving(2)
        assert s.book.began == []
        s.book.writable.set()
        await until(lambda: bool(s.book.ends), "what was begun is still written")
        assert [number for number, _ in s.book.ends] == [1]


async def test_next_engine_waits_until_the_memory_is_back() -> None:
    async with stage("--step-seconds", "0.01", policy=replace(POLICY, vram_wait=60)) as s:
        await s.serving(1)
        s.gauge.used = 500 + SLACK_MIB + 1
        os.kill(s.pid, signal.SIGKILL)
        await until(lambda: isinstance(s.supervisor.view().mode, Backoff), "the wait")
        looks = s.supervisor.view().t
        await until(lambda: s.supervisor.view().t > looks, "another look")
        assert "spawned 2" not in s.heard
        assert "GPU memory is free" in s.supervisor.view().words
        s.gauge.used = 500 + SLACK_MIB
        await s.serving(2)


async def test_memory_that_never_comes_back_delays_the_next_engine_and_is_told() -> None:
    async with stage("--step-seconds", "0.01", policy=replace(POLICY, vram_wait=0.2)) as s:
        await s.serving(1)
        s.gauge.used = 9000
        os.kill(s.pid, signal.SIGKILL)
        await s.serving(2)
        await until(lambda: bool(s.book.ends), "its end")
        told = [seen for more in s.book.more for seen in more.seen]
        assert any("did not come back" in seen for seen in told)
        assert any("9000 MiB used, 500 before" in seen for seen in told)


def test_state_of_a_process_is_the_kernels_letter() -> None:
    assert process_state(os.getpid()) == "R"
    assert process_state(2**22 + 1) == "?"


async def test_engine_that_finds_no_memory_is_told_to_take_smaller_chunks() -> None:
    async with stage("--most-chunk", "512", engine=EngineSettings(chunk_tokens=2048)) as s:
        await s.serving(3)
        assert "built with engine.chunk_tokens 512 instead of 2048" in s.supervisor.view().words
        assert [incident.label for incident in s.book.began] == ["cuda_oom", "cuda_oom"]


async def test_engine_that_fits_at_no_size_ends_with_words() -> None:
    async with stage("--most-chunk", "1", engine=EngineSettings(chunk_tokens=512, cache_tokens=512)) as s:
        await until(lambda: isinstance(s.supervisor.view().mode, Failed), "giving up")
        mode = s.supervisor.view().mode
        assert isinstance(mode, Failed)
        assert mode.kind is FailedKind.MEMORY
        assert "engine.cache_tokens" in mode.why
        await until(lambda: bool(s.book.ends), "the incident's end")
        assert s.book.ends[0][1].outcome.startswith("given up: no memory for chunks of 512 tokens")
