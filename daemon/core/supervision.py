"""What to do about an engine: `decide(state, event, policy) -> (state, effects)`.

Pure: time arrives inside events (CLOCK_MONOTONIC seconds), randomness too. One task in `host/supervisor.py` owns the state,
carries effects out and feeds what comes of them back as events. The states:

    Stopped -> Starting -> Ready -> Draining -> Stopping -> Stopped
    a fault leads from any of them to Stopping -> Backoff -> Starting, or to Failed where a person must act

1. A new engine is spawned only after the last one was seen to be gone (`Exited`), so there are never two.
2. An engine that lost its link or announced its own end gets a moment to exit by itself, because its exit code says why.
3. Then it is asked, terminated and killed in that order; a hung one is not asked. One that outlives SIGKILL is stuck in the
   kernel: nothing is started until it goes.
4. A death counts against the budget of restarts in a window. The wait before a restart grows with deaths in a row; the row
   ends when an engine has served tokens for a while, not when it has merely been up.
5. A configuration error never restarts.
"""

from dataclasses import replace

from daemon.core.exit_codes import ExitCode
from daemon.core.supervision_values import (
    After,
    Ask,
    Backoff,
    Condemned,
    Decision,
    Draining,
    EngineEvent,
    Event,
    Exited,
    Failed,
    FailedKind,
    Finish,
    GiveUp,
    Greeted,
    History,
    Interrupt,
    Kill,
    LinkLost,
    Machine,
    Mark,
    Mode,
    Observed,
    Policy,
    Progressed,
    Ready,
    Rejected,
    RestartAsked,
    Rung,
    Serve,
    Spawn,
    SpawnFailed,
    StartAsked,
    Starting,
    StopAsked,
    Stopped,
    Stopping,
    Terminate,
    ThenFail,
    ThenRestart,
    ThenStop,
    Ticked,
)
from daemon.core.wire import FatalClass

# --- reading a state ------------------------------------------------------------------------------------------------


def boot_of(mode: Mode) -> int | None:
    """The engine that exists in this mode."""
    match mode:
        case Starting(boot=boot) | Ready(boot=boot) | Draining(boot=boot) | Stopping(boot=boot):
            return boot
        case Stopped() | Backoff() | Failed():
            return None


def takes_work(mode: Mode) -> bool:
    """Whether what an engine reports about requests counts in this mode."""
    match mode:
        case Ready() | Draining():
            return True
        case Stopped() | Starting() | Stopping() | Backoff() | Failed():
            return False


def deadline(mode: Mode) -> float | None:
    """When `Ticked` is due at the latest."""
    match mode:
        case Draining(until=until) | Backoff(until=until):
            return until
        case Stopping(rung=rung, until=until):
            return None if rung is Rung.STUCK else until
        case Stopped() | Starting() | Ready() | Failed():
            return None


def describe(mode: Mode) -> str:
    """One sentence for people."""
    match mode:
        case Stopped():
            return "no engine is running"
        case Starting(stage=stage, done=done, total=total):
            return f"{stage or 'loading'} {done} of {total}" if total > 1 else stage or "a new process starts"
        case Ready():
            return "requests are served"
        case Draining():
            return "running requests may finish, then the engine stops"
        case Stopping():
            return _describe_stopping(mode)
        case Backoff(why=why):
            return f"a new engine starts soon: {why}"
        case Failed(why=why):
            return why


def _describe_stopping(mode: Stopping) -> str:
    if mode.rung is Rung.STUCK:
        return (
            "the engine process does not end after SIGKILL: it hangs in the kernel, usually in the GPU driver."
            " Nothing is started until it goes; restarting Windows' WSL (wsl --shutdown) or the machine frees it"
        )
    match mode.after:
        case ThenStop():
            return "the engine stops"
        case ThenRestart(why):
            return f"the engine is being replaced: {why or 'it died'}"
        case ThenFail(why):
            return why


# --- decisions ------------------------------------------------------------------------------------------------------


def decide(machine: Machine, event: Event, policy: Policy) -> Decision:
    """The next state and what to do now. Events about an engine that is not the present one change nothing."""
    match event:
        case StartAsked(t):
            return _start_asked(machine, t)
        case StopAsked():
            return _stop_asked(machine, event, policy)
        case RestartAsked():
            return _restart_asked(machine, event, policy)
        case Ticked(t):
            return _ticked(machine, t, policy)
        case SpawnFailed() | Progressed() | Greeted() | Condemned() | Rejected() | LinkLost() | Exited() | Observed():
            if boot_of(machine.mode) != event.boot:
                return machine, ()
            return _about_engine(machine, event, policy)


def _about_engine(machine: Machine, event: EngineEvent, policy: Policy) -> Decision:
    match event:
        case SpawnFailed(t, _, detail, luck):
            return _died(machine, f"the process could not be started: {detail}", t, luck, policy)
        case Progressed():
            return _progressed(machine, event)
        case Greeted(t):
            return _greeted(machine, t)
        case Condemned():
            return _condemned(machine, event, policy)
        case Rejected():
            return _rejected(machine, event, policy)
        case LinkLost(t, _, detail):
            return _link_lost(machine, t, detail, policy)
        case Exited():
            return _exited(machine, event, policy)
        case Observed():
            return _observed(machine, event, policy)


def _spawn(machine: Machine, t: float) -> Decision:
    boot = machine.history.boots + 1
    return Machine(Starting(boot, t, t, t), replace(machine.history, boots=boot)), (Spawn(boot),)


def _start_asked(machine: Machine, t: float) -> Decision:
    match machine.mode:
        case Stopped() | Failed():
            return _spawn(replace(machine, history=History(boots=machine.history.boots)), t)
        case Stopping(after=ThenStop() | ThenFail()):
            mode = replace(machine.mode, after=ThenRestart("a start was asked for", counted=False))
            return replace(machine, mode=mode), ()
        case Starting() | Ready() | Draining() | Stopping() | Backoff():
            return machine, ()


def _stop_asked(machine: Machine, event: StopAsked, policy: Policy) -> Decision:
    match machine.mode:
        case Stopped() | Backoff() | Failed():
            return replace(machine, mode=Stopped()), (Finish(),)
        case Starting(boot=boot):
            return _terminate(machine, boot, ThenStop(), event.t, policy)
        case Ready(boot=boot) if event.drain > 0:
            return replace(machine, mode=Draining(boot, event.t + event.drain)), ()
        case Draining(boot, until) if event.drain > 0:
            return replace(machine, mode=Draining(boot, min(until, event.t + event.drain))), ()
        case Ready(boot=boot) | Draining(boot=boot):
            return _ask(machine, boot, ThenStop(), event.t, policy)
        case Stopping():
            return replace(machine, mode=replace(machine.mode, after=ThenStop())), ()


def _restart_asked(machine: Machine, event: RestartAsked, policy: Policy) -> Decision:
    after = ThenRestart(event.why, counted=False)
    match machine.mode:
        case Stopped() | Backoff() | Failed():
            return _spawn(replace(machine, history=History(boots=machine.history.boots)), event.t)
        case Starting(boot=boot):
            return _terminate(machine, boot, after, event.t, policy)
        case Ready(boot=boot):
            machine, effects = _terminate(machine, boot, after, event.t, policy)
            return machine, (Interrupt(event.why), *effects)
        case Draining() | Stopping():
            return machine, ()


def _progressed(machine: Machine, event: Progressed) -> Decision:
    match machine.mode:
        case Starting():
            mode = replace(machine.mode, advanced=event.t, stage=event.stage, done=event.done, total=event.total)
            return replace(machine, mode=mode), ()
        case Stopped() | Ready() | Draining() | Stopping() | Backoff() | Failed():
            return machine, ()


def _greeted(machine: Machine, t: float) -> Decision:
    match machine.mode:
        case Starting(boot=boot):
            return replace(machine, mode=Ready(boot, since=t, advanced=t, observed=t)), (Serve(boot),)
        case Stopped() | Ready() | Draining() | Stopping() | Backoff() | Failed():
            return machine, ()


def _rejected(machine: Machine, event: Rejected, policy: Policy) -> Decision:
    match machine.mode:
        case Starting(boot=boot):
            return _terminate(machine, boot, ThenFail(event.detail), event.t, policy)
        case Stopped() | Ready() | Draining() | Stopping() | Backoff() | Failed():
            return machine, ()


def _condemned(machine: Machine, event: Condemned, policy: Policy) -> Decision:
    after = ThenFail(event.detail) if event.kind is FatalClass.CONFIG else ThenRestart(event.detail)
    match machine.mode:
        case Starting() | Ready():
            return _let_exit(machine, event.boot, after, event.t, policy, why=event.detail)
        case Draining():
            return _let_exit(machine, event.boot, ThenStop(), event.t, policy, why=event.detail)
        case Stopping(after=ThenRestart(why=None)):
            return replace(machine, mode=replace(machine.mode, after=after)), ()
        case Stopped() | Stopping() | Backoff() | Failed():
            return machine, ()


def _link_lost(machine: Machine, t: float, detail: str | None, policy: Policy) -> Decision:
    match machine.mode:
        case Starting(boot=boot) | Ready(boot=boot):
            return _let_exit(machine, boot, ThenRestart(detail), t, policy, why=detail or "the engine died")
        case Draining(boot=boot):
            return _let_exit(machine, boot, ThenStop(), t, policy, why=detail or "the engine died")
        case Stopped() | Stopping() | Backoff() | Failed():
            return machine, ()


def _exited(machine: Machine, event: Exited, policy: Policy) -> Decision:
    words = exit_words(event.code)
    match machine.mode:
        case Starting():
            return _after_exit(machine, ThenRestart(None), event, words, policy)
        case Ready():
            decided, effects = _after_exit(machine, ThenRestart(None), event, words, policy)
            return decided, (Interrupt(words), *effects)
        case Draining():
            return replace(machine, mode=Stopped()), (Interrupt(words), Finish())
        case Stopping(after=after):
            return _after_exit(machine, after, event, words, policy)
        case Stopped() | Backoff() | Failed():
            return machine, ()


def _after_exit(machine: Machine, after: After, event: Exited, words: str, policy: Policy) -> Decision:
    match after:
        case ThenStop():
            return replace(machine, mode=Stopped()), (Finish(),)
        case ThenFail(why):
            return _fail(machine, FailedKind.CONFIG, why)
        case ThenRestart(why, counted=True):
            if event.code == ExitCode.CONFIG:
                return _fail(machine, FailedKind.CONFIG, why or f"{words}; its log says what to change")
            return _died(machine, why or words, event.t, event.luck, policy)
        case ThenRestart():
            return _spawn(machine, event.t)


def _observed(machine: Machine, event: Observed, policy: Policy) -> Decision:
    match machine.mode:
        case Starting(mark=mark) | Ready(mark=mark):
            return _watched(machine, machine.mode, mark, event, policy)
        case Draining(boot=boot):
            return (machine, ()) if event.outstanding else _ask(machine, boot, ThenStop(), event.t, policy)
        case Stopped() | Stopping() | Backoff() | Failed():
            return machine, ()


def _watched(machine: Machine, mode: Starting | Ready, mark: Mark, event: Observed, policy: Policy) -> Decision:
    moved = event.mark is not None and event.mark != mark
    blind = event.t - mode.observed > policy.blind
    match mode:
        case Starting():
            limit, idle = policy.load_stall, False
        case Ready():
            limit, idle = policy.step_stall, not event.outstanding
            serves = event.mark is not None and event.mark.generated_tokens > mark.generated_tokens
            if serves and event.t - mode.since >= policy.calm:
                machine = replace(machine, history=replace(machine.history, row=0))
    advanced = event.t if moved or blind or idle else mode.advanced
    mode = replace(mode, advanced=advanced, observed=event.t, mark=event.mark or mark)
    machine = replace(machine, mode=mode)
    if event.t - advanced <= limit:
        return machine, ()
    doing = "loading" if isinstance(mode, Starting) else f"in phase {mode.mark.phase or 'unknown'}"
    why = f"no progress for {event.t - advanced:.0f} s while {doing}: the engine hangs"
    stopped, effects = _terminate(machine, mode.boot, ThenRestart(why), event.t, policy)
    return stopped, (*((Interrupt(why),) if isinstance(mode, Ready) else ()), *effects)


def _ticked(machine: Machine, t: float, policy: Policy) -> Decision:
    mode = machine.mode
    match mode:
        case Backoff(until) if t >= until:
            history = replace(machine.history, restarts=(*_recent(machine.history, t, policy), t))
            return _spawn(replace(machine, history=history), t)
        case Draining(boot, until) if t >= until:
            return _ask(machine, boot, ThenStop(), t, policy)
        case Stopping(rung=rung, until=until) if t >= until:
            return _harder(machine, mode, rung, t, policy)
        case Stopped() | Starting() | Ready() | Draining() | Stopping() | Backoff() | Failed():
            return machine, ()


def _harder(machine: Machine, mode: Stopping, rung: Rung, t: float, policy: Policy) -> Decision:
    match rung:
        case Rung.ASKED:
            return _terminate(machine, mode.boot, mode.after, t, policy)
        case Rung.TERMINATED:
            mode = replace(mode, rung=Rung.KILLED, until=t + policy.kill)
            return replace(machine, mode=mode), (Kill(mode.boot),)
        case Rung.KILLED:
            return replace(machine, mode=replace(mode, rung=Rung.STUCK)), ()
        case Rung.STUCK:
            return machine, ()


def _ask(machine: Machine, boot: int, after: After, t: float, policy: Policy) -> Decision:
    """A serving engine is told to end. What it still holds is taken back first: a start asked for meanwhile finds it waiting."""
    stopping = replace(machine, mode=Stopping(boot, Rung.ASKED, t + policy.term, after))
    return stopping, (Interrupt("the engine is being stopped"), Ask(boot))


def _terminate(machine: Machine, boot: int, after: After, t: float, policy: Policy) -> Decision:
    return replace(machine, mode=Stopping(boot, Rung.TERMINATED, t + policy.term, after)), (Terminate(boot),)


def _let_exit(machine: Machine, boot: int, after: After, t: float, policy: Policy, *, why: str) -> Decision:
    """The engine ends itself or is as good as dead: wait for its exit code before pushing."""
    interrupts = () if isinstance(machine.mode, Starting) else (Interrupt(why),)
    return replace(machine, mode=Stopping(boot, Rung.ASKED, t + policy.term, after)), interrupts


def _fail(machine: Machine, kind: FailedKind, why: str) -> Decision:
    return replace(machine, mode=Failed(kind, why)), (GiveUp(why, kind),)


def _recent(history: History, t: float, policy: Policy) -> tuple[float, ...]:
    return tuple(at for at in history.restarts if t - at < policy.window)


def _died(machine: Machine, why: str, t: float, luck: float, policy: Policy) -> Decision:
    """Spend one restart of the budget, after a wait, or give up."""
    history = machine.history
    recent = _recent(history, t, policy)
    if len(recent) >= policy.restarts:
        spent = f"the engine died {len(recent) + 1} times within {policy.window / 60:.0f} minutes, the last time because {why}"
        return _fail(replace(machine, history=replace(history, restarts=recent)), FailedKind.BUDGET, spent)
    row = history.row
    wait = 0.0 if row == 0 else min(policy.backoff * 2.0 ** min(row - 1, 30), policy.backoff_limit) * (0.75 + luck / 2)
    history = replace(history, restarts=recent, row=row + 1)
    machine = Machine(Backoff(t + wait, why), history)
    return _ticked(machine, t, policy) if wait == 0 else (machine, ())


_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


def exit_words(code: int) -> str:
    """How a process ended, for people. `code` is negative for a signal."""
    if code < 0:
        return f"the engine process was ended by signal {-code} ({_SIGNALS.get(-code, 'unnamed')})"
    match code:
        case ExitCode.CONFIG:
            return "the engine process refused its configuration (exit code 78)"
        case ExitCode.DEVICE:
            return "the engine process met a device error (exit code 70)"
        case ExitCode.NO_MEMORY:
            return "the engine process found too little memory (exit code 71)"
        case _:
            return f"the engine process ended with exit code {code}"
