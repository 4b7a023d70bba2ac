"""How an engine's end is told, what the next one waits for, and what is written down."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from daemon.core.exit_codes import ExitCode
from daemon.core.faults_values import Label, Remedy, Verdict
from daemon.core.settings import EngineSettings
from daemon.core.supervision import a_person_must_act, deadline, decide, describe, describe_all
from daemon.core.supervision_events import (
    QUIET,
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
    LinkLost,
    Observed,
    OpenIncident,
    RestartAsked,
    Serve,
    Spawn,
    SpawnFailed,
    StartAsked,
    StopAsked,
    Terminate,
    Ticked,
    Vacated,
)
from daemon.core.supervision_memory import Awaits
from daemon.core.supervision_values import (
    Backoff,
    Failed,
    FailedKind,
    Machine,
    Mark,
    Policy,
    Ready,
    Starting,
    Stopped,
    Stopping,
    ThenRebuild,
)
from daemon.core.wire import FatalClass, Phase

ENGINE = EngineSettings(chunk_tokens=1024, cache_tokens=10240)
POLICY = Policy(
    load_stall=180, step_stall=60, term=5, restarts=3, window=600, backoff=1, backoff_limit=60, engine=ENGINE, rebuilds=3
)
WAITING = replace(POLICY, vram_wait=30)
"""A policy where somebody can tell how much GPU memory is used."""


def play(events: Sequence[Event], machine: Machine | None = None, policy: Policy = POLICY) -> tuple[Machine, list[Effect]]:
    """The state after `events` and all effects on the way."""
    machine = machine or Machine()
    effects: list[Effect] = []
    for event in events:
        machine, now = decide(machine, event, policy)
        effects += now
    return machine, effects


def ready(policy: Policy = POLICY) -> Machine:
    """An engine that has said hello."""
    return play([StartAsked(0), Greeted(1, 1)], policy=policy)[0]


def falls(effects: Sequence[Effect]) -> list[Fell]:
    """What was told about the ends of engines."""
    return [effect for effect in effects if isinstance(effect, Fell)]


HANG = [Observed(float(t), 1, Mark(5, phase=Phase.DECODE), outstanding=True) for t in range(2, 70)]
SMALL = Verdict(Remedy.ENGINE_REBUILD, Label.CUDA_OOM)
ILLEGAL = Verdict(Remedy.PROCESS_RESTART, Label.CUDA_ILLEGAL_ADDRESS)
NO_KERNEL = Verdict(Remedy.ENGINE_REBUILD, Label.CONFIG)
MISMATCH = Verdict(Remedy.DRIVER_ACTION, Label.DRIVER_MISMATCH)
OFF_BUS = Verdict(Remedy.HOST_REBOOT, Label.GPU_FELL_OFF_BUS)


# --- whom an end accuses ---


@pytest.mark.parametrize(
    ("events", "accuses"),
    [
        ([LinkLost(9, 1), Exited(9, 1, -9)], False),
        ([LinkLost(9, 1), Exited(9, 1, -11)], True),
        ([Exited(9, 1, 1)], True),
        ([Exited(9, 1, -15)], False),
        ([Condemned(9, 1, FatalClass.INTERNAL, "x"), Exited(9, 1, 1)], True),
        ([Condemned(9, 1, FatalClass.DEVICE, "illegal", ILLEGAL), Exited(9, 1, 70)], True),
        ([Condemned(9, 1, FatalClass.DEVICE, "gone", OFF_BUS), Exited(9, 1, 70)], False),
        ([*HANG, Exited(80, 1, -9)], True),
        ([RestartAsked(9, "asked"), Exited(9, 1, -9)], False),
        ([RestartAsked(9, "asked"), LinkLost(9, 1), Exited(9, 1, -11)], False),
        ([Judged(5, None, Remedy.WSL_SHUTDOWN, Label.DXGKRNL_GPU_LOST, "-19"), Exited(9, 1, -11)], False),
        ([Judged(5, 1, Remedy.NONE, Label.XID_APP_FAULT, "Xid 31"), Exited(9, 1, -11)], True),
        ([LinkLost(9, 1), Exited(9, 1, -11), Judged(9.5, 1, Remedy.HOST_REBOOT, Label.XID_ECC, "Xid 48")], False),
        ([LinkLost(9, 1), Exited(9, 1, -11), Judged(9.5, 7, Remedy.HOST_REBOOT, Label.XID_ECC, "Xid 48")], True),
    ],
)
def test_end_is_told_once_before_the_next_engine_serves(events: list[Event], accuses: bool) -> None:
    machine, before = play(events, ready())
    assert falls(before) == []
    machine, effects = play([Greeted(100, 2)], machine)
    told, serve = effects[:2]
    assert isinstance(told, Fell)
    assert (told.boot, told.accuses) == (1, accuses)
    assert serve == Serve(2)
    machine, effects = play([RestartAsked(101, "asked"), Exited(102, 2, -15), Greeted(103, 3)], machine)
    assert [told.boot for told in falls(effects)] == [2]


def test_engine_that_never_had_requests_accuses_nobody() -> None:
    _, effects = play([StartAsked(0), Exited(1, 1, -11), Greeted(2, 2), StopAsked(3, 0), Exited(4, 2, 0)])
    assert falls(effects) == []


def test_old_suspicion_of_the_device_excuses_no_new_death() -> None:
    hint = Judged(2, None, Remedy.HOST_REBOOT, Label.XID_ECC, "Xid 48")
    _, effects = play([hint, Exited(2 + POLICY.suspicion + 1, 1, -11), Greeted(100, 2)], ready())
    assert [fall.accuses for fall in falls(effects)] == [True]


def test_giving_up_tells_the_end_first() -> None:
    _, effects = play([Exited(2, 1, -11)], ready(), replace(POLICY, restarts=0))
    kinds = [type(effect) for effect in effects]
    assert kinds.index(Fell) < kinds.index(GiveUp)


# --- where requests can go on in another engine ---

PLURAL = replace(POLICY, hearing=2.0)


def test_end_that_accuses_nobody_is_told_before_the_next_engine_is_started() -> None:
    _, effects = play([LinkLost(9, 1), Exited(9, 1, -9)], ready(PLURAL), PLURAL)
    kinds = [type(effect) for effect in effects]
    assert kinds.index(Interrupt) < kinds.index(Fell) < kinds.index(Spawn)


def test_end_that_accuses_is_told_after_a_moment_and_once() -> None:
    machine, effects = play([Exited(9, 1, -11), Ticked(10.9)], ready(PLURAL), PLURAL)
    assert falls(effects) == []
    machine, effects = play([Ticked(11)], machine, PLURAL)
    assert [(fall.boot, fall.accuses) for fall in falls(effects)] == [(1, True)]
    _, effects = play([Ticked(12), Greeted(13, 2)], machine, PLURAL)
    assert falls(effects) == []


def test_evidence_that_clears_requests_has_them_told_at_once() -> None:
    events = [Exited(9, 1, -11), Judged(9.5, 1, Remedy.HOST_REBOOT, Label.XID_ECC, "Xid 48")]
    _, effects = play(events, ready(PLURAL), PLURAL)
    assert [fall.accuses for fall in falls(effects)] == [False]


def test_engine_that_is_back_within_the_moment_is_told_before_it_serves() -> None:
    _, effects = play([Exited(9, 1, -11), Greeted(10, 2)], ready(PLURAL), PLURAL)
    kinds = [type(effect) for effect in effects]
    assert kinds.index(Fell) < kinds.index(Serve)


# --- the memory of the dead ---


def test_next_engine_waits_for_the_last_ones_memory() -> None:
    machine, effects = play([LinkLost(10, 1), Exited(10, 1, -9)], ready(WAITING), WAITING)
    assert not any(isinstance(effect, Spawn) for effect in effects)
    assert machine.mode == Backoff(40, "the engine process was ended by signal 9 (SIGKILL)", Awaits.MEMORY)
    assert "memory" in describe(machine.mode)
    machine, effects = play([Ticked(11), Vacated(12)], machine, WAITING)
    assert effects == [Spawn(2)]
    assert isinstance(machine.mode, Starting)


def test_wait_for_memory_is_bounded_and_its_end_is_written_down() -> None:
    machine, _ = play([LinkLost(10, 1), Exited(10, 1, -9)], ready(WAITING), WAITING)
    due = deadline(machine.mode)
    assert due == 40
    machine, effects = play([Ticked(due)], machine, WAITING)
    assert effects == [GrowIncident("GPU memory did not come back within 30 s; the next engine starts anyway"), Spawn(2)]


def test_first_engine_waits_for_nothing() -> None:
    _, effects = play([StartAsked(0)], policy=WAITING)
    assert effects == [Spawn(1)]


def test_wait_after_deaths_in_a_row_comes_before_the_wait_for_memory() -> None:
    events = [Exited(10, 1, -9), Vacated(10.5), Exited(11, 2, -9)]
    machine, _ = play(events, ready(WAITING), WAITING)
    assert isinstance(machine.mode, Backoff)
    assert machine.mode.awaits is Awaits.TIME
    assert play([Vacated(11.1)], machine, WAITING) == (machine, [])
    machine, effects = play([Ticked(machine.mode.until)], machine, WAITING)
    assert effects == []
    assert isinstance(machine.mode, Backoff)
    assert machine.mode.awaits is Awaits.MEMORY
    assert play([Vacated(13)], machine, WAITING)[1] == [Spawn(3)]


def test_person_cannot_hurry_the_wait_for_memory() -> None:
    machine, _ = play([RestartAsked(10, "asked"), Exited(11, 1, -15)], ready(WAITING), WAITING)
    assert play([StartAsked(12), RestartAsked(13, "again")], machine, WAITING)[1] == []
    assert play([StopAsked(14, 0)], machine, WAITING) == (Machine(Stopped(), machine.history.__class__(boots=1)), [Finish()])


# --- smaller engines ---


def rebuilt(kind: FatalClass = FatalClass.MEMORY) -> list[Event]:
    """Engines that find too little memory, one after the other."""
    return [
        event
        for boot in range(1, 6)
        for event in (
            Condemned(boot * 10.0, boot, kind, "CUDA out of memory", SMALL),
            Exited(boot * 10 + 1, boot, ExitCode.NO_MEMORY),
            Ticked(boot * 10 + 9),
        )
    ]


@pytest.mark.parametrize("kind", [FatalClass.MEMORY, FatalClass.DEVICE])
def test_engine_without_memory_is_built_smaller_until_the_budget_is_spent(kind: FatalClass) -> None:
    machine, effects = play([StartAsked(0), *rebuilt(kind)])
    told = [effect.smaller for effect in effects if isinstance(effect, Spawn)]
    sizes = [(engine.chunk_tokens, engine.cache_tokens) for engine in told[1:] if engine is not None]
    assert told[0] is None
    assert sizes == [(512, 10240), (512, 8192), (512, 6400)]
    assert isinstance(machine.mode, Failed)
    assert machine.mode.kind is FailedKind.MEMORY
    assert "CUDA out of memory. It was tried with engine.chunk_tokens 512 instead of 1024" in machine.mode.why
    assert "engine.cache_tokens 6400 instead of 10240" in machine.mode.why
    assert "Set engine.cache_tokens" in machine.mode.why
    assert machine.history.restarts == ()


def test_exit_code_alone_says_that_memory_lacks() -> None:
    _, effects = play([StartAsked(0), Exited(1, 1, ExitCode.NO_MEMORY)])
    assert [effect.smaller is None for effect in effects if isinstance(effect, Spawn)] == [True, False]


def test_smaller_engine_says_so_while_it_serves_and_a_person_gets_the_configured_size_back() -> None:
    machine, _ = play([StartAsked(0), *rebuilt()[:2], Greeted(20, 2, room=10240)])
    assert isinstance(machine.mode, Ready)
    assert describe_all(machine) == (
        "requests are served; built with engine.chunk_tokens 512 instead of 1024, because the configured size did not fit"
    )
    machine, effects = play([RestartAsked(30, "asked"), Exited(31, 2, -15)], machine)
    assert effects[-1] == Spawn(3)
    assert describe_all(machine) == "a new process starts"


def test_nothing_smaller_left_fails_at_once() -> None:
    policy = replace(POLICY, engine=EngineSettings(chunk_tokens=512, cache_tokens=512))
    machine, _ = play([StartAsked(0), *rebuilt()[:2]], policy=policy)
    assert isinstance(machine.mode, Failed)
    assert machine.mode.kind is FailedKind.MEMORY


# --- what never restarts ---


@pytest.mark.parametrize(
    ("verdict", "kind", "words"),
    [
        (NO_KERNEL, FailedKind.CONFIG, "does not fit this GPU"),
        (MISMATCH, FailedKind.DEVICE, "sudo reboot"),
        (Verdict(Remedy.DRIVER_ACTION, Label.NO_DEVICE), FailedKind.DEVICE, "nvidia-smi"),
        (Verdict(Remedy.WSL_SHUTDOWN, Label.DXGKRNL_GPU_LOST), FailedKind.DEVICE, "wsl.exe --shutdown"),
    ],
)
def test_engine_that_cannot_come_up_for_a_lasting_reason_is_not_tried_again(
    verdict: Verdict, kind: FailedKind, words: str
) -> None:
    machine, effects = play([StartAsked(0), Condemned(1, 1, FatalClass.DEVICE, "CUDA error", verdict), Exited(2, 1, 70)])
    assert isinstance(machine.mode, Failed)
    assert machine.mode.kind is kind
    assert words in machine.mode.why
    assert a_person_must_act(machine.mode.kind)
    assert sum(isinstance(effect, Spawn) for effect in effects) == 1


def test_engine_that_served_gets_one_more_try_and_then_the_words() -> None:
    """The device may have come back; if it has not, nobody loops."""
    gone = Condemned(10, 1, FatalClass.DEVICE, "CUDA error: device removed", Verdict(Remedy.WSL_SHUTDOWN, Label.DXGKRNL_GPU_LOST))
    machine, effects = play([gone, Exited(11, 1, 70), Exited(12, 2, 1)], ready())
    assert sum(isinstance(effect, Spawn) for effect in effects) == 1
    assert isinstance(machine.mode, Failed)
    assert machine.mode.kind is FailedKind.DEVICE
    assert "wsl.exe --shutdown" in machine.mode.why


def test_error_that_a_new_process_cures_is_just_restarted() -> None:
    events = [Condemned(10, 1, FatalClass.DEVICE, "CUDA error: illegal", ILLEGAL), Exited(11, 1, 70), Greeted(12, 2)]
    machine, _ = play(events, ready())
    assert isinstance(machine.mode, Ready)
    machine, _ = play([Condemned(10, 1, FatalClass.INTERNAL, "bug", QUIET), Exited(11, 1, 1), Greeted(12, 2)], ready())
    assert isinstance(machine.mode, Ready)


# --- what the watchdog says ---


def looks(begin: int, end: int, *, moving: bool) -> list[Event]:
    """An engine with requests, looked at each second."""
    return [Observed(float(t), 1, Mark(t if moving else 1, 0, t if moving else 1), outstanding=True) for t in range(begin, end)]


XID = Judged(10, 1, Remedy.PROCESS_RESTART, Label.XID_APP_FAULT, "Xid 31 of our process")


def test_verdict_against_an_engine_that_goes_on_generating_is_disproved() -> None:
    machine, effects = play([*looks(2, 10, moving=True), XID, *looks(10, 60, moving=True)], ready())
    assert effects == []
    assert isinstance(machine.mode, Ready)
    assert machine.mode.doubt is None


def test_verdict_against_an_idle_engine_waits_for_the_next_request() -> None:
    """Nobody is hurt meanwhile, and a restart for nothing costs a load."""
    idle = [Observed(float(t), 1, Mark(1), outstanding=False) for t in range(2, 600)]
    machine, effects = play([*idle[:8], XID, *idle[8:]], ready())
    assert effects == []
    assert "Xid 31 of our process" in describe_all(machine)
    asked = [Observed(600.0 + t, 1, Mark(1), outstanding=True) for t in range(12)]
    _, effects = play(asked, machine)
    assert [type(effect) for effect in effects] == [OpenIncident, Interrupt, Terminate]
    answered = [Observed(600.0 + t, 1, Mark(t, 256 * t), outstanding=True) for t in range(12)]
    machine, effects = play(answered, machine)
    assert effects == []
    assert isinstance(machine.mode, Ready)
    assert machine.mode.doubt is None


def test_verdict_against_an_engine_that_computes_nothing_ends_it_sooner_than_its_patience() -> None:
    still = [Observed(float(t), 1, Mark(1), outstanding=True) for t in range(2, 22)]
    machine, effects = play([*still[:8], XID, *still[8:]], ready())
    assert [type(effect) for effect in effects] == [OpenIncident, Interrupt, Terminate]
    assert isinstance(machine.mode, Stopping)
    machine, effects = play([Exited(30, 1, -15), Greeted(40, 2)], machine)
    assert machine.history.restarts == (30,)
    assert [fall.accuses for fall in falls(effects)] == [True]


def test_verdict_about_memory_makes_the_next_engine_smaller() -> None:
    tight = Judged(10, 1, Remedy.ENGINE_REBUILD, Label.CUDA_DEVICE_NOT_READY, "make_resident -12")
    dying = [LinkLost(9, 1), Condemned(9, 1, FatalClass.DEVICE, "device not ready")]
    in_time, _ = play([*dying, tight], ready())
    assert isinstance(in_time.mode, Stopping)
    assert in_time.mode.after == ThenRebuild("make_resident -12")
    waiting, _ = play([*dying, Exited(9.5, 1, 70), tight, Vacated(11)], ready(WAITING), WAITING)
    assert waiting.history.smaller is not None
    late, effects = play([*dying, Exited(9.5, 1, 70), tight, Exited(15, 2, -6), Ticked(17)], ready())
    spawned = [effect.smaller for effect in effects if isinstance(effect, Spawn)]
    assert spawned[0] is None
    assert spawned[1] is not None
    assert late.history.tight is None


def test_want_of_memory_is_forgotten_once_an_engine_has_generated_for_a_while() -> None:
    tight = Judged(10, 1, Remedy.ENGINE_REBUILD, Label.CUDA_DEVICE_NOT_READY, "make_resident -12")
    machine, _ = play([Exited(9.5, 1, 70), tight, Greeted(12, 2)], ready())
    assert machine.history.tight is not None
    busy = [Observed(12.0 + t, 2, Mark(t, 0, t), outstanding=True) for t in range(1, 125)]
    machine, _ = play(busy, machine)
    assert machine.history.tight is None


def test_verdict_that_is_older_than_the_engine_says_nothing_about_it() -> None:
    stale = replace(XID, t=5, boot=None)
    machine, _ = play([Exited(4, 1, -9), Greeted(6, 2), stale], ready())
    assert isinstance(machine.mode, Ready)
    assert machine.mode.doubt is None


@pytest.mark.parametrize(
    ("remedy", "label", "words"),
    [
        (Remedy.WSL_SHUTDOWN, Label.DXGKRNL_VMBUS, "wsl.exe --shutdown"),
        (Remedy.DRIVER_ACTION, Label.DRIVER_MISMATCH, "sudo reboot"),
        (Remedy.HOST_REBOOT, Label.XID_GSP_TIMEOUT, "sudo reboot"),
    ],
)
def test_what_only_a_person_can_do_is_told_and_never_done(remedy: Remedy, label: Label, words: str) -> None:
    verdict = Judged(10, None, remedy, label, "seen")
    machine, effects = play([verdict, replace(verdict, t=11)], ready())
    assert [type(effect) for effect in effects] == [OpenIncident, CloseIncident]
    assert isinstance(machine.mode, Ready)
    assert words in describe_all(machine)
    machine, _ = play([Exited(20, 1, -11)], machine)
    assert isinstance(machine.mode, Starting)
    served, _ = play([Greeted(30, 2)], machine)
    assert words not in describe_all(served)
    failed, _ = play([Exited(30, 2, 1)], machine)
    assert isinstance(failed.mode, Failed)
    assert failed.mode.kind is FailedKind.DEVICE
    assert words in failed.mode.why


def test_advice_after_giving_up_replaces_the_reason() -> None:
    machine, _ = play([Exited(2, 1, -11)], ready(), replace(POLICY, restarts=0))
    machine, _ = play([Judged(3, None, Remedy.WSL_SHUTDOWN, Label.PROBE_FAILED, "probe: failed")], machine)
    assert isinstance(machine.mode, Failed)
    assert machine.mode.kind is FailedKind.DEVICE
    assert "wsl.exe --shutdown" in describe(machine.mode)


def test_quiet_verdicts_change_nothing() -> None:
    machine = ready()
    assert play([Judged(10, None, Remedy.NONE, Label.BENIGN_NOISE, "routine")], machine) == (machine, [])


# --- what is written down ---


def notes(effects: Sequence[Effect]) -> list[OpenIncident | GrowIncident | CloseIncident]:
    """What was written down."""
    return [effect for effect in effects if isinstance(effect, OpenIncident | GrowIncident | CloseIncident)]


@pytest.mark.parametrize(
    ("events", "label"),
    [
        ([LinkLost(9, 1), Exited(9, 1, -9)], Label.ENGINE_DEAD),
        ([Exited(9, 1, -11)], Label.ENGINE_DEAD),
        ([*HANG, Exited(80, 1, -9)], Label.ENGINE_HANG),
        ([Condemned(9, 1, FatalClass.MEMORY, "x"), Exited(9, 1, 71)], Label.CUDA_OOM),
        ([Condemned(9, 1, FatalClass.DEVICE, "x", ILLEGAL), Exited(9, 1, 70)], Label.CUDA_ILLEGAL_ADDRESS),
    ],
)
def test_end_nobody_asked_for_is_one_incident_from_before_the_first_act_to_service(events: list[Event], label: Label) -> None:
    machine, effects = play(events, ready())
    first = effects[0]
    assert isinstance(first, OpenIncident)
    assert (first.boot, first.label) == (1, label)
    assert machine.history.trouble is not None
    machine, last = play([Greeted(100, 2)], machine)
    written = notes([*effects, *last])
    assert [type(note) for note in written].count(OpenIncident) == 1
    assert written[-1] == CloseIncident("engine 2 serves")
    assert machine.history.trouble is None


@pytest.mark.parametrize(
    "events",
    [[RestartAsked(9, "asked"), Exited(9, 1, -15), Greeted(10, 2)], [StopAsked(9, 10), StopAsked(10, 0), Exited(11, 1, 0)]],
)
def test_what_people_ask_for_is_no_incident(events: list[Event]) -> None:
    assert notes(play(events, ready())[1]) == []


def test_second_death_before_service_is_an_incident_of_its_own() -> None:
    _, effects = play([Exited(9, 1, -11), Exited(10, 2, 1), Ticked(12), Greeted(20, 3)], ready())
    kinds = [type(note) for note in notes(effects)]
    assert kinds == [OpenIncident, CloseIncident, OpenIncident, CloseIncident]


def test_giving_up_closes_the_incident_with_its_reason() -> None:
    machine, effects = play([StartAsked(0), SpawnFailed(1, 1, "no such file")], policy=replace(POLICY, restarts=0))
    assert isinstance(machine.mode, Failed)
    last = notes(effects)[-1]
    assert isinstance(last, CloseIncident)
    assert "no such file" in last.outcome


def test_process_stuck_in_the_kernel_is_an_incident_with_the_command_that_helps() -> None:
    machine, _ = play(HANG, ready())
    effects: list[Effect] = []
    while (due := deadline(machine.mode)) is not None:
        machine, now = play([Ticked(due)], machine)
        effects += now
    opened = [note for note in notes(effects) if isinstance(note, OpenIncident)]
    assert [note.label for note in opened] == [Label.PROCESS_DSTATE]
    assert "wsl.exe --shutdown" in opened[0].decided
    assert play([StartAsked(500), RestartAsked(501, "please"), Ticked(900)], machine) == (machine, [])
