"""The moves of supervision: how an engine is begun and ended, and what its end costs. `core/supervision.py` says when.

Each takes a machine and gives a decision. What must be written down before anything is done comes first in the effects.
"""

from dataclasses import replace

from daemon.core.exit_codes import ExitCode
from daemon.core.faults_values import Label, Remedy
from daemon.core.remedies import accuses, command, differences, shrink
from daemon.core.supervision_events import (
    Ask,
    CloseIncident,
    Decision,
    Exited,
    Fell,
    Finish,
    GiveUp,
    GrowIncident,
    Interrupt,
    Kill,
    OpenIncident,
    Spawn,
    Stuck,
    Terminate,
)
from daemon.core.supervision_memory import Advice, Awaits, Cause, Fallen, History
from daemon.core.supervision_reading import STUCK, boot_of, exit_words
from daemon.core.supervision_values import (
    After,
    Backoff,
    Failed,
    FailedKind,
    Machine,
    Policy,
    Ready,
    Rung,
    Starting,
    Stopped,
    Stopping,
    ThenFail,
    ThenRebuild,
    ThenRestart,
    ThenStop,
)

# --- incidents ------------------------------------------------------------------------------------------------------


def alarmed(machine: Machine, t: float, label: Label, remedy: Remedy, seen: str, decided: str) -> Decision:
    """Open an incident about the present engine. One that is still open ends: what was done about it did not help."""
    before = (
        () if machine.history.trouble is None else (CloseIncident(f"no engine served again before the next trouble: {seen}"),)
    )
    opened = OpenIncident(boot_of(machine.mode), label, remedy, seen, decided)
    return replace(machine, history=replace(machine.history, trouble=t)), (*before, opened)


def noted(machine: Machine, seen: str) -> tuple[GrowIncident, ...]:
    """More about the open incident, if there is one."""
    return () if machine.history.trouble is None else (GrowIncident(seen),)


def settled(machine: Machine, outcome: str) -> Decision:
    """Close the incident, if one is open."""
    if machine.history.trouble is None:
        return machine, ()
    return replace(machine, history=replace(machine.history, trouble=None)), (CloseIncident(outcome),)


def fresh(history: History) -> History:
    """What is left of the past when a person wants a new beginning: names, and what is still to be told."""
    return History(boots=history.boots, room=history.room, fallen=history.fallen, trouble=history.trouble)


# --- beginning ------------------------------------------------------------------------------------------------------


def spawn(machine: Machine, t: float) -> Decision:
    """A new process, at once."""
    history = machine.history
    boot = history.boots + 1
    return Machine(Starting(boot, t, t, t), replace(history, boots=boot)), (Spawn(boot, history.smaller),)


def begin(machine: Machine, why: str, t: float, policy: Policy) -> Decision:
    """A new process, as soon as the last one's memory is back."""
    if machine.history.boots == 0 or policy.vram_wait <= 0:
        return spawn(machine, t)
    return replace(machine, mode=Backoff(t + policy.vram_wait, why, Awaits.MEMORY)), ()


def waited(machine: Machine, mode: Backoff, t: float, policy: Policy) -> Decision:
    """A wait is over."""
    match mode.awaits:
        case Awaits.TIME:
            history = machine.history
            if mode.counted:
                history = replace(history, restarts=(*recent(history.restarts, t, policy), t))
            return begin(replace(machine, history=history), mode.why, t, policy)
        case Awaits.MEMORY:
            notes = noted(machine, f"GPU memory did not come back within {policy.vram_wait:.0f} s; the next engine starts anyway")
            machine, effects = spawn(machine, t)
            return machine, (*notes, *effects)


# --- ending ---------------------------------------------------------------------------------------------------------


def served(machine: Machine) -> bool:
    """Whether the present engine has, or had, requests."""
    match machine.mode:
        case Ready():
            return True
        case Stopping(served=had):
            return had
        case mode:
            return boot_of(mode) is not None and not isinstance(mode, Starting)


def ask(machine: Machine, boot: int, after: After, t: float, policy: Policy) -> Decision:
    """A serving engine is told to end. What it still holds is taken back first: a start asked for meanwhile finds it waiting."""
    mode = Stopping(boot, Rung.ASKED, t + policy.term, after, Cause.ASKED, served=True)
    return replace(machine, mode=mode), (Interrupt("the engine is being stopped"), Ask(boot))


def terminate(machine: Machine, boot: int, after: After, t: float, policy: Policy, cause: Cause) -> Decision:
    """SIGTERM now, harder means later."""
    mode = Stopping(boot, Rung.TERMINATED, t + policy.term, after, cause, served(machine))
    return replace(machine, mode=mode), (Terminate(boot),)


def let_exit(machine: Machine, boot: int, after: After, t: float, policy: Policy, cause: Cause, *, why: str) -> Decision:
    """The engine ends itself or is as good as dead: wait for its exit code before pushing."""
    had = served(machine)
    mode = Stopping(boot, Rung.ASKED, t + policy.term, after, cause, had)
    return replace(machine, mode=mode), ((Interrupt(why),) if had else ())


def harder(machine: Machine, mode: Stopping, t: float, policy: Policy) -> Decision:
    """The next rung."""
    match mode.rung:
        case Rung.ASKED:
            return replace(machine, mode=replace(mode, rung=Rung.TERMINATED, until=t + policy.term)), (Terminate(mode.boot),)
        case Rung.TERMINATED:
            return replace(machine, mode=replace(mode, rung=Rung.KILLED, until=t + policy.kill)), (Kill(mode.boot),)
        case Rung.KILLED:
            machine, notes = alarmed(machine, t, Label.PROCESS_DSTATE, Remedy.WSL_SHUTDOWN, "it outlives SIGKILL", STUCK)
            return replace(machine, mode=replace(mode, rung=Rung.STUCK)), (*notes, Stuck(mode.boot))
        case Rung.STUCK:
            return machine, ()


# --- the end and its price ------------------------------------------------------------------------------------------


def buried(machine: Machine, event: Exited, cause: Cause, policy: Policy) -> Machine:
    """The machine without the engine that is gone, remembering whom its end accuses if it had requests."""
    if not served(machine):
        return machine
    history = machine.history
    device = history.suspected is not None and event.t - history.suspected <= policy.suspicion
    fallen = Fallen(event.t, event.boot, exit_words(event.code), not device and accuses(cause, event.code))
    return replace(machine, history=replace(history, fallen=fallen))


def told(machine: Machine) -> Decision:
    """Tell who had requests how the last engine ended."""
    fallen = machine.history.fallen
    if fallen is None:
        return machine, ()
    return replace(machine, history=replace(machine.history, fallen=None)), (Fell(fallen.boot, fallen.why, fallen.accuses),)


def heard(machine: Machine, t: float, policy: Policy) -> Decision:
    """Tell it where the requests can go on in another engine, as soon as no more evidence is waited for."""
    fallen = machine.history.fallen
    if fallen is None or policy.hearing is None or (fallen.accuses and t - fallen.t < policy.hearing):
        return machine, ()
    return told(machine)


def after_exit(machine: Machine, after: After, event: Exited, policy: Policy) -> Decision:
    """What comes after an engine that is gone."""
    words = exit_words(event.code)
    match after:
        case ThenStop():
            return finish(machine)
        case ThenFail(why, kind):
            return fail(machine, kind, why)
        case ThenRebuild(why):
            return rebuild(machine, why, event.t, event.luck, policy)
        case ThenRestart(why, counted=True):
            match event.code:
                case ExitCode.CONFIG:
                    return fail(machine, FailedKind.CONFIG, why or f"{words}; its log says what to change")
                case ExitCode.NO_MEMORY:
                    return rebuild(machine, why or words, event.t, event.luck, policy)
                case _:
                    return died(machine, why or words, event.t, event.luck, policy)
        case ThenRestart(why):
            return begin(replace(machine, history=fresh(machine.history)), why or words, event.t, policy)


def finish(machine: Machine) -> Decision:
    """No engine is wanted any more."""
    machine, notes = settled(machine, "the daemon stops")
    return replace(machine, mode=Stopped(), history=replace(machine.history, fallen=None)), (*notes, Finish())


def fail(machine: Machine, kind: FailedKind, why: str) -> Decision:
    """No engine will be started before a person asks for one."""
    machine, tale = told(machine)
    machine, notes = settled(machine, f"given up: {why}")
    return replace(machine, mode=Failed(kind, why)), (*tale, *notes, GiveUp(why, kind))


def recent(times: tuple[float, ...], t: float, policy: Policy) -> tuple[float, ...]:
    """Those within the window that ends at `t`."""
    return tuple(at for at in times if t - at < policy.window)


def died(machine: Machine, why: str, t: float, luck: float, policy: Policy) -> Decision:
    """An engine died of something that a new one may not have."""
    history = machine.history
    if history.advice is not None and not served(machine):
        return fail(machine, FailedKind.DEVICE, f"no engine comes up: {why}. {_advised(history.advice)}")
    if history.tight is not None:
        return rebuild(machine, history.tight, t, luck, policy)
    restarts = recent(history.restarts, t, policy)
    if len(restarts) >= policy.restarts:
        spent = f"the engine died {len(restarts) + 1} times within {policy.window / 60:.0f} minutes, the last time because {why}"
        return fail(replace(machine, history=replace(history, restarts=restarts)), FailedKind.BUDGET, spent)
    return _pause(replace(machine, history=replace(history, restarts=restarts)), why, t, luck, policy, counted=True)


def rebuild(machine: Machine, why: str, t: float, luck: float, policy: Policy) -> Decision:
    """An engine died for want of memory: the next one needs less, or nothing small enough is left to try."""
    history = smaller(machine.history, t, policy)
    if history is None:
        tried = machine.history.changes
        what = f" It was tried with {tried}." if tried else ""
        advice = "Set engine.cache_tokens, engine.chunk_tokens or engine.max_batch lower, or end other programs on the GPU."
        return fail(machine, FailedKind.MEMORY, f"{why.rstrip('.')}.{what} {advice}")
    machine = replace(machine, history=history)
    notes = noted(machine, f"the next engine gets {history.changes}")
    machine, effects = _pause(machine, why, t, luck, policy, counted=False)
    return machine, (*notes, *effects)


def smaller(history: History, t: float, policy: Policy) -> History | None:
    """The history in which the next engine is one size smaller; None where budget or sizes are used up."""
    rebuilds = recent(history.rebuilds, t, policy)
    if len(rebuilds) >= policy.rebuilds:
        return None
    less = shrink(history.smaller or policy.engine, policy.context, history.room)
    if less is None:
        return None
    changes = differences(policy.engine, less.engine)
    return replace(history, rebuilds=(*rebuilds, t), smaller=less.engine, changes=changes, tight=None)


def _pause(machine: Machine, why: str, t: float, luck: float, policy: Policy, *, counted: bool) -> Decision:
    """Wait before the next engine, the longer the more died in a row; not at all after the first."""
    row = machine.history.row
    wait = 0.0 if row == 0 else min(policy.backoff * 2.0 ** min(row - 1, 30), policy.backoff_limit) * (0.75 + luck / 2)
    mode = Backoff(t + wait, why, counted=counted)
    machine = Machine(mode, replace(machine.history, row=row + 1))
    return waited(machine, mode, t, policy) if wait == 0 else (machine, ())


# --- advice ---------------------------------------------------------------------------------------------------------


def advised(history: History, t: float, remedy: Remedy, label: Label, seen: str) -> History:
    """The history with advice for a person; the costlier remedy stays."""
    old = history.advice
    if old is not None and old.remedy >= remedy:
        return history
    return replace(history, advice=Advice(t, remedy, label, f"{label.value}: {seen}; {command(remedy, label)}"))


def _advised(advice: Advice) -> str:
    return f"A person must act: {advice.words}"
