"""What to do about an engine: `decide(state, event, policy) -> (state, effects)`.

Pure: time arrives inside events (CLOCK_MONOTONIC seconds), randomness too. One task in `host/supervisor.py` owns the state,
carries effects out and feeds what comes of them back as events. The states:

    Stopped -> Starting -> Ready -> Draining -> Stopping -> Stopped
    a fault leads from any of them to Stopping -> Backoff -> Starting, or to Failed where a person must act

1. A new engine is spawned only after the last one was seen to be gone (`Exited`) and its GPU memory back, so that there are
   never two. The wait for the memory is bounded.
2. An engine that lost its link or announced its own end gets a moment to exit by itself, because its exit code says why.
3. Then it is asked, terminated and killed in that order; a hung one is not asked. One that outlives SIGKILL is stuck in the
   kernel: nothing is started until it goes.
4. A death counts against the budget of restarts in a window. The wait before a restart grows with deaths in a row; the row
   ends when an engine has generated tokens for a while, not when it has merely been up.
5. An engine that found too little memory is built smaller, within a budget of its own.
6. A configuration error, a driver that does not fit and code that lacks this GPU's kernels never restart.
7. A hang is: work outstanding and nothing on the progress page moved for as long as the phase allows.
8. Whatever ends an engine that nobody asked to end is one incident, written down first; it ends when an engine serves again.
9. Requests of an engine that is gone are told of its end when the next one serves, or before it where another engine could take
   them: at once where the end accuses nobody, else after a moment for evidence that says it was not their doing.

The moves stand in `supervision_moves.py`, the watchdog's verdicts in `supervision_verdicts.py`.
"""

from dataclasses import replace

from daemon.core.faults_values import Label, Remedy, Verdict
from daemon.core.remedies import DEVICE_WIDE, Course, command, course
from daemon.core.supervision_events import (
    Condemned,
    Decision,
    EngineEvent,
    Event,
    Exited,
    Greeted,
    Interrupt,
    Judged,
    LinkLost,
    Observed,
    Progressed,
    Rejected,
    RestartAsked,
    Serve,
    SpawnFailed,
    StartAsked,
    StopAsked,
    Ticked,
    Vacated,
)
from daemon.core.supervision_memory import Awaits, Cause
from daemon.core.supervision_moves import (
    advised,
    after_exit,
    alarmed,
    ask,
    begin,
    buried,
    died,
    finish,
    fresh,
    harder,
    heard,
    let_exit,
    noted,
    settled,
    spawn,
    terminate,
    told,
    waited,
)
from daemon.core.supervision_reading import (
    a_person_must_act,
    awaits_memory,
    boot_of,
    deadline,
    describe,
    describe_all,
    exit_words,
    patience,
    takes_work,
)
from daemon.core.supervision_values import (
    After,
    Backoff,
    Draining,
    Failed,
    FailedKind,
    Machine,
    Policy,
    Ready,
    Starting,
    Stopped,
    Stopping,
    ThenFail,
    ThenRebuild,
    ThenRestart,
    ThenStop,
)
from daemon.core.supervision_verdicts import doubted, judged
from daemon.core.wire import FatalClass, Phase

__all__ = [
    "a_person_must_act", "awaits_memory", "boot_of", "deadline", "decide", "describe", "describe_all", "exit_words", "patience",
    "takes_work",
]  # fmt: skip


def decide(machine: Machine, event: Event, policy: Policy) -> Decision:
    """The next state and what to do now. Events about an engine that is not the present one change nothing."""
    machine, effects = _decided(machine, event, policy)
    machine, tale = heard(machine, event.t, policy)
    return machine, (*effects, *tale)


def _decided(machine: Machine, event: Event, policy: Policy) -> Decision:
    match event:
        case StartAsked(t):
            return _start_asked(machine, t, policy)
        case StopAsked():
            return _stop_asked(machine, event, policy)
        case RestartAsked():
            return _restart_asked(machine, event, policy)
        case Judged():
            return judged(machine, event, policy)
        case Vacated(t):
            return spawn(machine, t) if awaits_memory(machine.mode) else (machine, ())
        case Ticked(t):
            return _ticked(machine, t, policy)
        case SpawnFailed() | Progressed() | Greeted() | Condemned() | Rejected() | LinkLost() | Exited() | Observed():
            if boot_of(machine.mode) != event.boot:
                return machine, ()
            return _about_engine(machine, event, policy)


def _about_engine(machine: Machine, event: EngineEvent, policy: Policy) -> Decision:
    match event:
        case SpawnFailed():
            return _spawn_failed(machine, event, policy)
        case Progressed():
            return _progressed(machine, event)
        case Greeted():
            return _greeted(machine, event)
        case Condemned():
            return _condemned(machine, event, policy)
        case Rejected():
            return _rejected(machine, event, policy)
        case LinkLost():
            return _link_lost(machine, event, policy)
        case Exited():
            return _exited(machine, event, policy)
        case Observed():
            return _observed(machine, event, policy)


# --- what people want -----------------------------------------------------------------------------------------------


def _start_asked(machine: Machine, t: float, policy: Policy) -> Decision:
    match machine.mode:
        case Stopped() | Failed():
            return begin(replace(machine, history=fresh(machine.history)), "a start was asked for", t, policy)
        case Stopping(after=ThenStop() | ThenFail()):
            mode = replace(machine.mode, after=ThenRestart("a start was asked for", counted=False))
            return replace(machine, mode=mode), ()
        case Starting() | Ready() | Draining() | Stopping() | Backoff():
            return machine, ()


def _stop_asked(machine: Machine, event: StopAsked, policy: Policy) -> Decision:
    match machine.mode:
        case Stopped() | Backoff() | Failed():
            return finish(machine)
        case Starting(boot=boot):
            return terminate(machine, boot, ThenStop(), event.t, policy, Cause.ASKED)
        case Ready(boot=boot) if event.drain > 0:
            return replace(machine, mode=Draining(boot, event.t + event.drain)), ()
        case Draining(boot, until) if event.drain > 0:
            return replace(machine, mode=Draining(boot, min(until, event.t + event.drain))), ()
        case Ready(boot=boot) | Draining(boot=boot):
            return ask(machine, boot, ThenStop(), event.t, policy)
        case Stopping():
            return replace(machine, mode=replace(machine.mode, after=ThenStop())), ()


def _restart_asked(machine: Machine, event: RestartAsked, policy: Policy) -> Decision:
    after = ThenRestart(event.why, counted=False)
    match machine.mode:
        case Backoff(awaits=Awaits.MEMORY):
            return replace(machine, history=fresh(machine.history)), ()
        case Stopped() | Backoff() | Failed():
            return begin(replace(machine, history=fresh(machine.history)), event.why, event.t, policy)
        case Starting(boot=boot):
            return terminate(machine, boot, after, event.t, policy, Cause.ASKED)
        case Ready(boot=boot):
            machine, effects = terminate(machine, boot, after, event.t, policy, Cause.ASKED)
            return machine, (Interrupt(event.why), *effects)
        case Draining() | Stopping():
            return machine, ()


# --- how an engine comes up -----------------------------------------------------------------------------------------


def _spawn_failed(machine: Machine, event: SpawnFailed, policy: Policy) -> Decision:
    match machine.mode:
        case Starting():
            why = f"the process could not be started: {event.detail}"
            return _died_unasked(machine, event.t, event.luck, why, policy)
        case Stopping(after=after):
            return after_exit(machine, after, Exited(event.t, event.boot, 1, event.luck), policy)
        case Stopped() | Ready() | Draining() | Backoff() | Failed():
            return machine, ()


def _died_unasked(machine: Machine, t: float, luck: float, why: str, policy: Policy) -> Decision:
    machine, opened = alarmed(machine, t, Label.ENGINE_DEAD, Remedy.PROCESS_RESTART, why, _REPLACED)
    machine, effects = died(machine, why, t, luck, policy)
    return machine, (*opened, *effects)


def _progressed(machine: Machine, event: Progressed) -> Decision:
    match machine.mode:
        case Starting():
            mode = replace(machine.mode, advanced=event.t, stage=event.stage, done=event.done, total=event.total)
            return replace(machine, mode=mode), ()
        case Stopped() | Ready() | Draining() | Stopping() | Backoff() | Failed():
            return machine, ()


def _greeted(machine: Machine, event: Greeted) -> Decision:
    match machine.mode:
        case Starting(boot=boot, since=since):
            history = machine.history
            advice = history.advice
            if advice is not None and advice.t <= since:  # a whole load since then proves that the device works
                history = replace(history, advice=None)
            machine = Machine(Ready(boot, since=event.t, advanced=event.t, observed=event.t), replace(history, room=event.room))
            machine, tale = told(machine)
            machine, notes = settled(machine, f"engine {boot} serves")
            return machine, (*tale, Serve(boot), *notes)
        case Stopped() | Ready() | Draining() | Stopping() | Backoff() | Failed():
            return machine, ()


def _rejected(machine: Machine, event: Rejected, policy: Policy) -> Decision:
    match machine.mode:
        case Starting(boot=boot):
            machine, opened = alarmed(machine, event.t, Label.CONFIG, Remedy.ENGINE_REBUILD, event.detail, "no other is started")
            machine, effects = terminate(machine, boot, ThenFail(event.detail), event.t, policy, Cause.REFUSED)
            return machine, (*opened, *effects)
        case Stopped() | Ready() | Draining() | Stopping() | Backoff() | Failed():
            return machine, ()


# --- how an engine goes down ----------------------------------------------------------------------------------------

_REPLACED = "a new engine is started, as far as the budget of restarts goes"


def _condemned(machine: Machine, event: Condemned, policy: Policy) -> Decision:
    after = _after_fatal(machine, event)
    match machine.mode:
        case Starting() | Ready() | Draining():
            if isinstance(machine.mode, Draining):
                after = ThenStop()
            remedy, label = _named(event)
            machine, opened = alarmed(machine, event.t, label, remedy, event.detail, _plan(after))
            machine = _suspect(machine, event)
            machine, effects = let_exit(machine, event.boot, after, event.t, policy, Cause.ANNOUNCED, why=event.detail)
            return machine, (*opened, *effects)
        case Stopping(after=ThenRestart(why=None)):
            machine = _suspect(machine, event)
            mode = replace(machine.mode, after=after, cause=Cause.ANNOUNCED)
            return replace(machine, mode=mode), noted(machine, event.detail)
        case Stopped() | Stopping() | Backoff() | Failed():
            return machine, ()


def _named(event: Condemned) -> tuple[Remedy, Label]:
    """What an incident about a fatal report is called."""
    if not event.verdict.quiet:
        return event.verdict.remedy, event.verdict.label
    match event.kind:
        case FatalClass.CONFIG:
            return Remedy.ENGINE_REBUILD, Label.CONFIG
        case FatalClass.MEMORY:
            return Remedy.ENGINE_REBUILD, Label.CUDA_OOM
        case FatalClass.DEVICE:
            return Remedy.PROCESS_RESTART, Label.CUDA_UNKNOWN
        case FatalClass.INTERNAL:
            return Remedy.PROCESS_RESTART, Label.ENGINE_DEAD


def _after_fatal(machine: Machine, event: Condemned) -> After:
    """What follows an engine that announced its end."""
    match event.kind:
        case FatalClass.CONFIG:
            return ThenFail(event.detail)
        case FatalClass.MEMORY:
            return ThenRebuild(event.detail)
        case FatalClass.DEVICE | FatalClass.INTERNAL:
            return _after_verdict(machine, event.detail, event.verdict)


def _after_verdict(machine: Machine, detail: str, verdict: Verdict) -> After:
    """An engine that never served and cannot for a lasting reason is not tried again; one that served gets one more try."""
    loading = isinstance(machine.mode, Starting)
    match course(verdict.remedy, verdict.label):
        case Course.REFUSE if loading:
            return ThenFail(f"{detail}. The installation does not fit this GPU or driver: restarting does not help")
        case Course.ADVISE if loading:
            return ThenFail(f"{detail}. A person must act: {command(verdict.remedy, verdict.label)}", FailedKind.DEVICE)
        case Course.SMALLER:
            return ThenRebuild(detail)
        case Course.NOTHING | Course.RESTART | Course.REFUSE | Course.ADVISE:
            return ThenRestart(detail)


def _suspect(machine: Machine, event: Condemned) -> Machine:
    """Remember what a fatal report says about the whole device."""
    verdict, history = event.verdict, machine.history
    if verdict.label in DEVICE_WIDE:
        history = replace(history, suspected=event.t)
    if course(verdict.remedy, verdict.label) is Course.ADVISE:
        history = advised(history, event.t, verdict.remedy, verdict.label, event.detail)
    return replace(machine, history=history)


def _plan(after: After) -> str:
    match after:
        case ThenStop():
            return "nothing: the daemon stops"
        case ThenRestart():
            return _REPLACED
        case ThenRebuild():
            return "an engine that needs less memory is started, as far as the budget of rebuilds goes"
        case ThenFail(why):
            return f"no other is started: {why}"


def _link_lost(machine: Machine, event: LinkLost, policy: Policy) -> Decision:
    why = event.detail or "the engine died"
    match machine.mode:
        case Starting() | Ready() | Draining():
            after = ThenStop() if isinstance(machine.mode, Draining) else ThenRestart(event.detail)
            seen = event.detail or "its link ended"
            machine, opened = alarmed(machine, event.t, Label.ENGINE_DEAD, Remedy.PROCESS_RESTART, seen, _plan(after))
            machine, effects = let_exit(machine, event.boot, after, event.t, policy, Cause.DIED, why=why)
            return machine, (*opened, *effects)
        case Stopped() | Stopping() | Backoff() | Failed():
            return machine, ()


def _exited(machine: Machine, event: Exited, policy: Policy) -> Decision:
    words = exit_words(event.code)
    match machine.mode:
        case Starting() | Ready() | Draining():
            after = ThenStop() if isinstance(machine.mode, Draining) else ThenRestart(None)
            interrupts = () if isinstance(machine.mode, Starting) else (Interrupt(words),)
            machine, opened = alarmed(machine, event.t, Label.ENGINE_DEAD, Remedy.PROCESS_RESTART, words, _plan(after))
            machine, effects = _after(buried(machine, event, Cause.DIED, policy), after, event, policy)
            return machine, (*opened, *interrupts, *effects)
        case Stopping(after=after, cause=cause):
            notes = noted(machine, words)
            machine, effects = _after(buried(machine, event, cause, policy), after, event, policy)
            return machine, (*notes, *effects)
        case Stopped() | Backoff() | Failed():
            return machine, ()


def _after(machine: Machine, after: After, event: Exited, policy: Policy) -> Decision:
    """Requests that can go on elsewhere do not wait for the next process."""
    machine, tale = heard(machine, event.t, policy)
    machine, effects = after_exit(machine, after, event, policy)
    return machine, (*tale, *effects)


# --- looks and the clock --------------------------------------------------------------------------------------------


def _observed(machine: Machine, event: Observed, policy: Policy) -> Decision:
    match machine.mode:
        case Starting():
            mode = machine.mode
            mode = replace(
                mode, advanced=_advanced(mode, event, policy, idle=False), observed=event.t, mark=event.mark or mode.mark
            )
            return _unless_hung(replace(machine, mode=mode), mode, event.t, policy)
        case Ready():
            return _looked_at_ready(machine, machine.mode, event, policy)
        case Draining(boot=boot):
            return (machine, ()) if event.outstanding else ask(machine, boot, ThenStop(), event.t, policy)
        case Stopped() | Stopping() | Backoff() | Failed():
            return machine, ()


def _advanced(mode: Starting | Ready, event: Observed, policy: Policy, *, idle: bool) -> float:
    """When it last made progress, or could not have. Looks too far apart prove nothing: the observer itself did not run."""
    moved = event.mark is not None and event.mark != mode.mark
    blind = event.t - mode.observed > policy.blind
    return event.t if moved or blind or idle else mode.advanced


def _looked_at_ready(machine: Machine, before: Ready, event: Observed, policy: Policy) -> Decision:
    mark = event.mark or before.mark
    gap = event.t - before.observed
    served = before.served + (gap if gap <= policy.blind and mark.generated_tokens > before.mark.generated_tokens else 0.0)
    advanced = _advanced(before, event, policy, idle=not event.outstanding)
    mode = replace(before, advanced=advanced, observed=event.t, mark=mark, served=served)
    history = machine.history if served < policy.calm else replace(machine.history, row=0, tight=None)
    machine = Machine(mode, history)
    idle = not event.outstanding
    return doubted(machine, mode, before.mark, event.t, policy, idle=idle) or _unless_hung(machine, mode, event.t, policy)


def _unless_hung(machine: Machine, mode: Starting | Ready, t: float, policy: Policy) -> Decision:
    limit = patience(machine, policy)
    silence = t - mode.advanced
    if limit is None or silence <= limit:
        return machine, ()
    doing = f"in phase {mode.mark.phase.value}"
    if isinstance(mode, Starting):
        doing = mode.stage or ("building" if mode.mark.phase is Phase.BUILDING else "loading")
    why = f"no progress for {silence:.0f} s while {doing}: the engine hangs"
    machine, opened = alarmed(machine, t, Label.ENGINE_HANG, Remedy.PROCESS_RESTART, why, f"it is ended; {_REPLACED}")
    interrupts = (Interrupt(why),) if isinstance(mode, Ready) else ()
    machine, effects = terminate(machine, mode.boot, ThenRestart(why), t, policy, Cause.HUNG)
    return machine, (*opened, *interrupts, *effects)


def _ticked(machine: Machine, t: float, policy: Policy) -> Decision:
    mode = machine.mode
    match mode:
        case Backoff(until=until) if t >= until:
            return waited(machine, mode, t, policy)
        case Draining(boot, until) if t >= until:
            return ask(machine, boot, ThenStop(), t, policy)
        case Stopping(until=until) if t >= until:
            return harder(machine, mode, t, policy)
        case Stopped() | Starting() | Ready() | Draining() | Stopping() | Backoff() | Failed():
            return machine, ()
