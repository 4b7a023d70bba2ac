"""Supervision under any sequence of events: a world that carries effects out as Hypothesis likes."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from daemon.core.exit_codes import ExitCode
from daemon.core.faults_values import Label, Remedy, Verdict
from daemon.core.settings import EngineSettings
from daemon.core.supervision import awaits_memory, boot_of, deadline, decide, describe_all, takes_work
from daemon.core.supervision_events import (
    Ask,
    CloseIncident,
    Condemned,
    Effect,
    Event,
    Exited,
    Fell,
    Finish,
    GiveUp,
    Greeted,
    GrowIncident,
    Interrupt,
    Judged,
    Kill,
    LinkLost,
    Observed,
    OpenIncident,
    Progressed,
    Rejected,
    RestartAsked,
    Serve,
    Spawn,
    SpawnFailed,
    StartAsked,
    StopAsked,
    Stuck,
    Terminate,
    Ticked,
    Vacated,
)
from daemon.core.supervision_values import Backoff, Draining, Failed, Machine, Mark, Policy, Rung, Stopped, Stopping, ThenStop
from daemon.core.wire import FatalClass, Phase

POLICY = Policy(
    load_stall=180,
    step_stall=60,
    term=5,
    restarts=3,
    window=600,
    backoff=1,
    backoff_limit=60,
    rebuilds=2,
    vram_wait=30,
    engine=EngineSettings(chunk_tokens=1024, cache_tokens=10240),
)
VERDICTS = [
    Verdict(Remedy.NONE, Label.BENIGN_NOISE),
    Verdict(Remedy.NONE, Label.XID_APP_FAULT),
    Verdict(Remedy.PROCESS_RESTART, Label.XID_APP_FAULT),
    Verdict(Remedy.ENGINE_REBUILD, Label.CUDA_OOM),
    Verdict(Remedy.ENGINE_REBUILD, Label.CONFIG),
    Verdict(Remedy.WSL_SHUTDOWN, Label.DXGKRNL_GPU_LOST),
    Verdict(Remedy.HOST_REBOOT, Label.XID_ECC),
]


class _World(RuleBasedStateMachine):
    """Processes exist, die, hang and outlive SIGKILL; memory stays used after them; people and a watchdog interfere."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine()
        self.t = 0.0
        self.alive: set[int] = set()
        self.memory_due: float | None = None
        """When a dead engine's memory must have been waited for long enough."""
        self.serving: int | None = None
        self.fallen: int | None = None
        """An engine that served and is gone, until its end was told."""
        self.incident = False
        self.spawned: list[float] = []
        self.asked = 0

    def feed(self, event: Event) -> None:
        self.machine, effects = decide(self.machine, event, POLICY)
        openings = [number for number, effect in enumerate(effects) if isinstance(effect, OpenIncident)]
        acts = [number for number, effect in enumerate(effects) if isinstance(effect, Spawn | Terminate | Kill | GiveUp)]
        assert not openings or not acts or openings[0] < acts[0], "acted before it was written down"
        for effect in effects:
            self.carry_out(effect)

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Spawn(boot):
                assert not self.alive, "two engines at once"
                assert self.memory_due is None or self.t >= self.memory_due, "the memory was not waited for"
                self.memory_due = None
                self.alive.add(boot)
                self.spawned.append(self.t)
            case Serve(boot):
                assert boot in self.alive
                assert self.fallen is None, "the end of the last engine was not told"
                self.serving = boot
            case Interrupt():
                assert self.serving is not None, "nothing to interrupt"
                self.fallen, self.serving = self.serving, None
            case Fell(boot):
                assert boot == self.fallen
                assert boot not in self.alive
                self.fallen = None
            case Ask(boot) | Terminate(boot) | Kill(boot) | Stuck(boot):
                assert boot in self.alive, "signal to a process that is gone"
            case GiveUp():
                assert not self.alive
                assert self.serving is None
                assert self.fallen is None
            case Finish():
                assert not self.alive
                self.fallen = None
            case OpenIncident() | GrowIncident() | CloseIncident():
                self.write_down(effect)

    def write_down(self, note: OpenIncident | GrowIncident | CloseIncident) -> None:
        match note:
            case OpenIncident():
                assert not self.incident, "two incidents at once"
                self.incident = True
            case GrowIncident():
                assert self.incident
            case CloseIncident():
                assert self.incident
                self.incident = False

    @initialize()
    def begin(self) -> None:
        self.feed(StartAsked(self.t))

    @rule(seconds=st.floats(0, 400))
    def time_passes(self, seconds: float) -> None:
        end = self.t + seconds
        while (due := deadline(self.machine.mode)) is not None and due <= end:
            self.t = max(self.t, due)
            self.feed(Ticked(self.t))
        self.t = end
        self.feed(Ticked(self.t))

    @precondition(lambda self: bool(self.alive))
    @rule(
        code=st.sampled_from([0, 1, -9, -11, ExitCode.DEVICE, ExitCode.NO_MEMORY, ExitCode.CONFIG]),
        luck=st.floats(0, 1),
        link_first=st.booleans(),
    )
    def engine_dies(self, code: int, luck: float, link_first: bool) -> None:
        boot = self.alive.pop()
        if link_first:
            self.feed(LinkLost(self.t, boot))
        self.memory_due = self.t + POLICY.vram_wait
        self.feed(Exited(self.t, boot, code, luck))
        if not link_first:
            self.feed(LinkLost(self.t, boot))

    @precondition(lambda self: awaits_memory(self.machine.mode))
    @rule()
    def memory_comes_back(self) -> None:
        self.memory_due = None
        self.feed(Vacated(self.t))

    @precondition(lambda self: bool(self.alive))
    @rule(data=st.data(), verdict=st.sampled_from(VERDICTS), kind=st.sampled_from(FatalClass))
    def engine_reports(self, data: st.DataObject, verdict: Verdict, kind: FatalClass) -> None:
        boot = min(self.alive)
        event = data.draw(
            st.sampled_from(
                [
                    Progressed(self.t, boot, "loading", 1, 2),
                    Greeted(self.t, boot, 10240),
                    Greeted(self.t, boot, 10240),
                    Condemned(self.t, boot, kind, "its words", verdict),
                    LinkLost(self.t, boot, "garbage"),
                    Rejected(self.t, boot, "another protocol"),
                ]
            )
        )
        self.feed(event)

    @precondition(lambda self: isinstance(self.machine.mode, Stopping | Backoff) or bool(self.alive))
    @rule(verdict=st.sampled_from(VERDICTS), ago=st.floats(0, 20), named=st.booleans())
    def watchdog_judges(self, verdict: Verdict, ago: float, named: bool) -> None:
        boot = self.machine.history.boots if named else None
        self.feed(Judged(max(0.0, self.t - ago), boot, verdict.remedy, verdict.label, "seen"))

    @precondition(lambda self: bool(self.alive) and self.spawned[-1] == self.t)
    @rule(luck=st.floats(0, 1))
    def process_cannot_be_started(self, luck: float) -> None:
        boot = self.machine.history.boots
        if boot in self.alive and self.serving is None and self.fallen is None:
            self.alive.discard(boot)
            self.memory_due = self.t + POLICY.vram_wait
            self.feed(SpawnFailed(self.t, boot, "no such file", luck))

    @precondition(lambda self: bool(self.alive))
    @rule(counter=st.integers(0, 3), outstanding=st.booleans(), seconds=st.floats(0, 5), times=st.integers(1, 30))
    def supervisor_looks(self, counter: int, outstanding: bool, seconds: float, times: int) -> None:
        for _ in range(times):
            self.t += seconds
            if self.alive:
                self.feed(Observed(self.t, min(self.alive), Mark(counter, 0, counter, Phase.DECODE), outstanding))

    @rule()
    def person_restarts(self) -> None:
        self.asked += 1
        self.feed(RestartAsked(self.t, "asked"))

    @rule(drain=st.floats(0, 60))
    def daemon_stops_and_starts(self, drain: float) -> None:
        self.asked += 1
        self.feed(StopAsked(self.t, drain))
        self.feed(StartAsked(self.t))

    @invariant()
    def the_state_knows_the_living(self) -> None:
        boot = boot_of(self.machine.mode)
        assert self.alive == (set() if boot is None else {boot})

    @invariant()
    def only_a_ready_engine_serves(self) -> None:
        assert (self.serving is not None) == takes_work(self.machine.mode)

    @invariant()
    def budgets_are_kept(self) -> None:
        """Between two actions of people no window holds more starts than both budgets allow, and the first."""
        window = [t for t in self.spawned if self.t - t < POLICY.window]
        assert len(window) <= (POLICY.restarts + POLICY.rebuilds + 1) * (self.asked + 1)
        assert len(self.machine.history.rebuilds) <= POLICY.rebuilds

    @invariant()
    def an_engine_in_trouble_always_gets_a_next_step(self) -> None:
        mode = self.machine.mode
        due = deadline(mode)
        if isinstance(mode, Backoff | Draining) or (isinstance(mode, Stopping) and mode.rung is not Rung.STUCK):
            assert due is not None
        if isinstance(mode, Backoff):
            assert due is not None
            assert due - self.t <= max(POLICY.vram_wait, 1.25 * POLICY.backoff_limit)
        if isinstance(mode, Stopping) and isinstance(mode.after, ThenStop):
            assert self.serving is None

    @invariant()
    def an_incident_is_open_exactly_while_something_is_being_done_about_it(self) -> None:
        assert self.incident == (self.machine.history.trouble is not None)
        if isinstance(self.machine.mode, Stopped | Failed) or takes_work(self.machine.mode):
            assert not self.incident

    @invariant()
    def people_always_get_words(self) -> None:
        assert describe_all(self.machine)

    def teardown(self) -> None:
        """Left alone, it comes to rest: an engine is there, or a person is told why not."""
        if self.alive and isinstance(self.machine.mode, Stopping):
            boot = self.alive.pop()
            self.feed(Exited(self.t, boot, -9))
        for _ in range(200):
            due = deadline(self.machine.mode)
            if due is None:
                break
            self.t = max(self.t, due)
            self.memory_due = None if self.memory_due is not None and self.t >= self.memory_due else self.memory_due
            if isinstance(self.machine.mode, Stopping):
                boot = self.alive.pop()
                self.feed(Exited(self.t, boot, -9))
                continue
            self.feed(Ticked(self.t))
        mode = self.machine.mode
        assert isinstance(mode, Stopped | Failed) or self.alive


TestWorld = _World.TestCase
TestWorld.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_engine_that_always_dies_ends_in_failure_with_bounded_starts() -> None:
    """No storm: whatever kills each engine, the number of starts in a window is known beforehand."""
    for code in (1, -11, ExitCode.DEVICE, ExitCode.NO_MEMORY):
        machine, _ = decide(Machine(), StartAsked(0), replace(POLICY, vram_wait=0))
        starts, t = 1, 0.0
        while not isinstance(machine.mode, Failed):
            t += 0.1
            boot = boot_of(machine.mode)
            event = Ticked(deadline(machine.mode) or t) if boot is None else Exited(t, boot, code)
            machine, effects = decide(machine, event, replace(POLICY, vram_wait=0))
            starts += sum(isinstance(effect, Spawn) for effect in effects)
            t = max(t, event.t)
        assert starts == 1 + (POLICY.rebuilds if code == ExitCode.NO_MEMORY else POLICY.restarts)
