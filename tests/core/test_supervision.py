"""The rules of supervision, one by one. Incidents have tests of their own, and so have arbitrary sequences of events."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from daemon.core.exit_codes import ExitCode
from daemon.core.settings import SupervisorSettings
from daemon.core.supervision import boot_of, deadline, decide, describe, exit_words, takes_work
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
)
from daemon.core.supervision_values import (
    Backoff,
    Draining,
    Failed,
    FailedKind,
    Machine,
    Mark,
    Policy,
    Ready,
    Rung,
    Starting,
    Stopped,
    Stopping,
    ThenRestart,
)
from daemon.core.wire import FatalClass, Phase

POLICY = Policy(
    load_stall=180, step_stall=60, term=5, kill=20, restarts=3, window=600, backoff=1, backoff_limit=60, calm=120, blind=5
)


def play(events: Sequence[Event], machine: Machine | None = None) -> tuple[Machine, list[Effect]]:
    """The state after `events` and what was done on the way, without what was written down and told about it."""
    machine = machine or Machine()
    effects: list[Effect] = []
    for event in events:
        machine, now = decide(machine, event, POLICY)
        effects += [effect for effect in now if not isinstance(effect, OpenIncident | GrowIncident | CloseIncident | Fell)]
    return machine, effects


def ready(t: float = 0) -> Machine:
    """An engine that has said hello."""
    return play([StartAsked(t), Greeted(t, 1)])[0]


def test_start_asked_spawns_one_engine() -> None:
    machine, effects = play([StartAsked(0), StartAsked(1)])
    assert effects == [Spawn(1)]
    assert machine.mode == Starting(1, 0, 0, 0)


def test_hello_lets_requests_in() -> None:
    machine, effects = play([StartAsked(0), Progressed(1, 1, "loading", 3, 10), Greeted(2, 1)])
    assert effects == [Spawn(1), Serve(1)]
    assert isinstance(machine.mode, Ready)
    assert takes_work(machine.mode)


def test_loading_progress_is_described() -> None:
    machine, _ = play([StartAsked(0), Progressed(1, 1, "loading layers", 3, 10)])
    assert describe(machine.mode) == "loading layers 3 of 10"


@pytest.mark.parametrize(("stage", "words"), [("importing", "importing"), ("", "a new process starts")])
def test_stage_without_parts_is_described_without_figures(stage: str, words: str) -> None:
    machine, _ = play([StartAsked(0), Progressed(1, 1, stage, 0, 1)])
    assert describe(machine.mode) == words


def test_crash_interrupts_once_and_restarts_at_once() -> None:
    machine, effects = play([LinkLost(10, 1), Exited(10.1, 1, -9)], ready())
    assert [type(effect) for effect in effects] == [Interrupt, Spawn]
    assert boot_of(machine.mode) == 2


def test_exit_seen_before_link_end_interrupts_once() -> None:
    machine, effects = play([Exited(10, 1, -11), LinkLost(10.1, 1)], ready())
    assert [type(effect) for effect in effects] == [Interrupt, Spawn]
    assert boot_of(machine.mode) == 2


def test_second_death_in_a_row_waits_and_waits_double() -> None:
    machine = ready()
    waits: list[float] = []
    t = 1.0
    for _ in range(3):
        machine, _ = play([Exited(t, machine.history.boots, -9)], machine)
        if isinstance(machine.mode, Backoff):
            waits.append(machine.mode.until - t)
            machine, _ = play([Ticked(machine.mode.until)], machine)
        t += 30
        machine, _ = play([Greeted(t, machine.history.boots)], machine)
    assert waits == [1, 2]


def test_jitter_spreads_the_wait_around_the_backoff() -> None:
    waits: list[float] = []
    for luck in (0.0, 1.0):
        machine, _ = play([Exited(1, 1, -9), Exited(2, 2, -9, luck)], ready())
        assert isinstance(machine.mode, Backoff)
        waits.append(machine.mode.until - 2)
    assert waits == [0.75, 1.25]


def test_budget_spent_fails_with_the_reason() -> None:
    machine, effects = ready(), list[Effect]()
    for boot in range(1, 5):
        machine, now = play([Exited(float(boot), boot, -9), Ticked(boot + 0.99), Greeted(boot + 0.99, boot + 1)], machine)
        effects += now
        if isinstance(machine.mode, Backoff):
            machine, now = play([Ticked(machine.mode.until), Greeted(machine.mode.until, boot + 1)], machine)
            effects += now
    assert isinstance(machine.mode, Failed)
    assert machine.mode.kind is FailedKind.BUDGET
    assert "4 times within 10 minutes" in machine.mode.why
    assert "SIGKILL" in machine.mode.why
    assert sum(isinstance(effect, Spawn) for effect in effects) == 3
    assert sum(isinstance(effect, GiveUp) for effect in effects) == 1


def test_restarts_older_than_the_window_are_forgiven() -> None:
    machine = ready()
    t = 0.0
    for boot in range(1, 12):
        t += POLICY.window / POLICY.restarts + 1
        machine, _ = play([Exited(t, boot, -9)], machine)
        if isinstance(machine.mode, Backoff):
            t = machine.mode.until
            machine, _ = play([Ticked(t)], machine)
        machine, _ = play([Greeted(t, boot + 1)], machine)
        assert isinstance(machine.mode, Ready)


def test_served_tokens_for_a_while_end_the_row_of_deaths() -> None:
    machine, _ = play([Exited(1, 1, -9), Greeted(2, 2)], ready())
    assert machine.history.row == 1
    machine, _ = play([Observed(2.0 + second, 2, Mark(second, 0, second), outstanding=True) for second in range(1, 125)], machine)
    assert machine.history.row == 0


def test_uptime_without_tokens_does_not_end_the_row_of_deaths() -> None:
    machine, _ = play([Exited(1, 1, -9), Greeted(2, 2)], ready())
    idle = [Observed(2.0 + second, 2, Mark(7, 7, 7), outstanding=False) for second in range(1, 600)]
    answer = [Observed(602.0 + second, 2, Mark(7, 7, 7 + second), outstanding=True) for second in range(1, 20)]
    machine, _ = play([*idle, *answer], machine)
    assert machine.history.row == 1


@pytest.mark.parametrize("death", [Exited(3, 1, ExitCode.CONFIG), SpawnFailed(3, 1, "no such file")])
def test_configuration_error_never_restarts(death: Exited | SpawnFailed) -> None:
    machine, effects = play([StartAsked(0), Condemned(2, 1, FatalClass.CONFIG, "no such layer"), LinkLost(2.1, 1)])
    assert not any(isinstance(effect, Interrupt) for effect in effects)
    machine, effects = play([Exited(3, 1, 1)], machine)
    assert machine.mode == Failed(FailedKind.CONFIG, "no such layer")
    assert effects == [GiveUp("no such layer", FailedKind.CONFIG)]
    machine, effects = play([StartAsked(0), death])
    assert isinstance(machine.mode, Failed) == isinstance(death, Exited)


def test_hello_that_cannot_be_accepted_ends_the_engine_for_good() -> None:
    machine, effects = play([StartAsked(0), Rejected(1, 1, "protocol 2"), Exited(2, 1, -15)])
    assert effects == [Spawn(1), Terminate(1), GiveUp("protocol 2", FailedKind.CONFIG)]
    assert machine.mode == Failed(FailedKind.CONFIG, "protocol 2")


def test_fatal_after_link_loss_still_gives_the_reason() -> None:
    machine, _ = play([LinkLost(1, 1), Condemned(1.1, 1, FatalClass.DEVICE, "illegal address")], ready())
    assert isinstance(machine.mode, Stopping)
    assert machine.mode.after == ThenRestart("illegal address")


def test_stall_with_work_outstanding_terminates_then_kills() -> None:
    mark = Mark(5, 5, 5)
    looks = [Observed(float(t), 1, mark, outstanding=True) for t in range(1, 70)]
    machine, effects = play(looks, ready())
    assert [type(effect) for effect in effects] == [Interrupt, Terminate]
    assert isinstance(machine.mode, Stopping)
    assert machine.mode.rung is Rung.TERMINATED
    machine, effects = play([Ticked(machine.mode.until)], machine)
    assert effects == [Kill(1)]
    machine, effects = play([Exited(90, 1, -9)], machine)
    assert effects == [Spawn(2)]


def test_idle_engine_is_no_stall() -> None:
    machine, effects = play([Observed(float(t), 1, Mark(5, 5, 5), outstanding=False) for t in range(1, 1000)], ready())
    assert effects == []
    assert isinstance(machine.mode, Ready)


@pytest.mark.parametrize("field", ["step", "prompt_tokens", "generated_tokens", "prefilling", "phase"])
def test_anything_on_the_page_that_moves_is_progress(field: str) -> None:
    phases = list(Phase)
    looks = [
        Observed(float(t), 1, replace(Mark(), **{field: phases[t % 4] if field == "phase" else t}), outstanding=True)
        for t in range(1, 300)
    ]
    machine, effects = play(looks, ready())
    assert effects == []
    assert isinstance(machine.mode, Ready)


def test_observer_that_did_not_run_blames_nobody() -> None:
    """After the daemon itself was stopped for an hour, the engine gets its full time again."""
    machine, effects = play([Observed(1, 1, Mark(5), outstanding=True), Observed(3601, 1, Mark(5), outstanding=True)], ready())
    assert effects == []
    machine, effects = play([Observed(3601.0 + t, 1, Mark(5), outstanding=True) for t in range(1, 62)], machine)
    assert [type(effect) for effect in effects] == [Interrupt, Terminate]


def test_load_without_progress_is_a_hang() -> None:
    machine, _ = play([StartAsked(0)])
    looks = [Observed(float(t), 1, Mark(phase=Phase.LOADING), outstanding=False) for t in range(1, 183)]
    machine, effects = play(looks, machine)
    assert [type(effect) for effect in effects] == [Terminate]
    assert isinstance(machine.mode, Stopping)


def silence_until(machine: Machine, mark: Mark) -> int:
    """Seconds that an engine which shows `mark` and never moves again is given."""
    for t in range(1, 4000):
        machine, effects = play([Observed(float(t), 1, mark, outstanding=True)], machine)
        if effects:
            return t - 1
    raise AssertionError("never ended")


def test_each_phase_has_its_own_patience() -> None:
    """The policy's chunk is 2048 tokens, twice the 1024 that the limit of a prefill step is about."""
    loading, _ = play([StartAsked(0)])
    assert silence_until(loading, Mark(phase=Phase.LOADING)) == POLICY.load_stall + 1
    assert silence_until(loading, Mark(phase=Phase.BUILDING)) == POLICY.build_stall + 1
    assert silence_until(ready(), Mark(5, phase=Phase.DECODE)) == POLICY.step_stall + 1
    assert silence_until(ready(), Mark(5, phase=Phase.DECODE, prefilling=7)) == 2 * POLICY.prefill_stall + 1


def test_process_that_outlives_kill_is_stuck_and_nothing_is_spawned() -> None:
    machine, _ = play([Observed(float(t), 1, Mark(5), outstanding=True) for t in range(1, 70)], ready())
    effects: list[Effect] = []
    for _ in range(5):
        due = deadline(machine.mode)
        if due is None:
            break
        machine, now = play([Ticked(due)], machine)
        effects += now
    assert effects == [Kill(1), Stuck(1)]
    assert isinstance(machine.mode, Stopping)
    assert machine.mode.rung is Rung.STUCK
    assert "wsl --shutdown" in describe(machine.mode)
    machine, effects = play([Ticked(10_000), Exited(10_001, 1, -9)], machine)
    assert effects == [Spawn(2)]


def test_stop_drains_then_asks_then_finishes() -> None:
    machine, effects = play([StopAsked(10, 30), Observed(11, 1, Mark(1), outstanding=True)], ready())
    assert isinstance(machine.mode, Draining)
    assert effects == []
    machine, effects = play([Observed(12, 1, Mark(2), outstanding=False)], machine)
    assert effects == [Interrupt("the engine is being stopped"), Ask(1)]
    machine, effects = play([Exited(13, 1, 0)], machine)
    assert (machine.mode, effects) == (Stopped(), [Finish()])


def test_start_asked_for_while_an_engine_is_being_stopped_finds_its_requests_taken_back() -> None:
    """Else they would wait for reports of an engine that nobody listens to any more."""
    machine, effects = play([StopAsked(10, 0)], ready())
    assert effects == [Interrupt("the engine is being stopped"), Ask(1)]
    machine, effects = play([StartAsked(11)], machine)
    assert isinstance(machine.mode, Stopping)
    assert isinstance(machine.mode.after, ThenRestart)
    assert effects == []


def test_stop_whose_drain_runs_out_asks_terminates_and_kills_in_that_order() -> None:
    machine, effects = play([StopAsked(10, 30)], ready())
    seen: list[Effect] = []
    while (due := deadline(machine.mode)) is not None:
        machine, effects = play([Ticked(due)], machine)
        seen += effects
    assert seen == [Interrupt("the engine is being stopped"), Ask(1), Terminate(1), Kill(1), Stuck(1)]


def test_engine_that_dies_while_draining_is_not_replaced() -> None:
    machine, effects = play([StopAsked(10, 30), LinkLost(11, 1), Exited(11, 1, -9)], ready())
    assert machine.mode == Stopped()
    assert [type(effect) for effect in effects] == [Interrupt, Finish]


@pytest.mark.parametrize("machine", [Machine(), Machine(Backoff(5, "x")), Machine(Failed(FailedKind.BUDGET, "x"))])
def test_stop_without_engine_finishes_at_once(machine: Machine) -> None:
    assert play([StopAsked(1, 30)], machine) == (replace(machine, mode=Stopped()), [Finish()])


def test_restart_asked_by_a_person_costs_no_budget() -> None:
    machine = ready()
    for boot in range(1, 20):
        t = boot * 10.0
        machine, effects = play([RestartAsked(t, "asked"), Exited(t + 1, boot, -15), Greeted(t + 2, boot + 1)], machine)
        assert [type(effect) for effect in effects] == [Interrupt, Terminate, Spawn, Serve]


def test_failed_engine_starts_again_when_asked() -> None:
    machine, effects = play([RestartAsked(5, "asked")], Machine(Failed(FailedKind.BUDGET, "x")))
    assert effects == [Spawn(1)]
    assert isinstance(machine.mode, Starting)


def test_news_of_an_earlier_engine_changes_nothing() -> None:
    machine, _ = play([Exited(1, 1, -9), Greeted(2, 2)], ready())
    late = [
        Exited(3, 1, -9),
        LinkLost(3, 1),
        Greeted(3, 1),
        Condemned(3, 1, FatalClass.CONFIG, "x"),
        Observed(3, 1, Mark(), outstanding=True),
    ]
    assert play(late, machine) == (machine, [])


def test_exit_codes_have_words() -> None:
    assert "SIGSEGV" in exit_words(-11)
    assert "78" in exit_words(ExitCode.CONFIG)
    assert "70" in exit_words(ExitCode.DEVICE)
    assert "71" in exit_words(ExitCode.NO_MEMORY)
    assert exit_words(3).endswith("exit code 3")


def test_policy_takes_its_numbers_from_the_settings() -> None:
    policy = Policy.of(SupervisorSettings(restarts=7, restart_window_minutes=2, term_seconds=9))
    assert (policy.restarts, policy.window, policy.term) == (7, 120, 9)
