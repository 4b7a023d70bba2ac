"""What the supervisor does about the watchdog's verdicts.

1. Evidence against the whole device is remembered: whoever was in flight did not cause it.
2. A verdict that calls for a new engine is a doubt while one serves: tokens computed after it disprove it, and only where work
   is there and none come is the engine ended. About an engine that is being ended or gone it chooses what comes after it.
3. A verdict that calls for more than that is written down and told; nothing is done about it but to stop trying when no engine
   comes up.
"""

from dataclasses import replace

from daemon.core.faults_values import Remedy
from daemon.core.remedies import DEVICE_WIDE, Course, course
from daemon.core.supervision_events import Decision, Interrupt, Judged
from daemon.core.supervision_memory import Cause, Doubt
from daemon.core.supervision_moves import advised, alarmed, noted, settled, smaller, terminate
from daemon.core.supervision_values import (
    Backoff,
    Draining,
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
    ThenRestart,
)


def judged(machine: Machine, event: Judged, policy: Policy) -> Decision:
    """Take a verdict into account."""
    if event.label in DEVICE_WIDE:
        machine = _device_wide(machine, event)
    match course(event.remedy, event.label):
        case Course.NOTHING:
            return machine, ()
        case Course.ADVISE:
            return _advise(machine, event)
        case Course.RESTART | Course.REFUSE:
            return _doubt(machine, event, small=False)
        case Course.SMALLER:
            return _tighten(machine, event, policy)


def _device_wide(machine: Machine, event: Judged) -> Machine:
    history = replace(machine.history, suspected=max(event.t, machine.history.suspected or event.t))
    fallen = history.fallen
    if fallen is not None and event.boot in {None, fallen.boot}:
        history = replace(history, fallen=replace(fallen, accuses=False))
    return replace(machine, history=history)


def _advise(machine: Machine, event: Judged) -> Decision:
    """Write it down and tell it. An engine that works is left alone: it may hold the last working context on this device."""
    known = machine.history.advice
    history = advised(machine.history, event.t, event.remedy, event.label, event.words)
    machine = replace(machine, history=history)
    advice = history.advice
    if advice is None or advice == known:
        return machine, noted(machine, event.words)
    if isinstance(machine.mode, Failed):
        machine = replace(machine, mode=Failed(FailedKind.DEVICE, f"{machine.mode.why}. A person must act: {advice.words}"))
    if history.trouble is not None:
        return machine, noted(machine, f"a person should act: {advice.words}")
    machine, opened = alarmed(machine, event.t, event.label, event.remedy, event.words, f"nothing by itself: {advice.words}")
    machine, closed = settled(machine, "told in the log and the status; it is a person's to do")
    return machine, (*opened, *closed)


def _doubt(machine: Machine, event: Judged, *, small: bool) -> Decision:
    mode = machine.mode
    match mode:
        case Ready():
            if event.boot not in {None, mode.boot} or event.t < mode.since or mode.doubt is not None:
                return machine, ()
            return replace(machine, mode=replace(mode, doubt=Doubt(event.t, event.label, event.words, small))), ()
        case Stopping(after=ThenRestart(counted=True)) if small and event.boot in {None, mode.boot}:
            return replace(machine, mode=replace(mode, after=ThenRebuild(event.words))), noted(machine, event.words)
        case Stopped() | Starting() | Draining() | Stopping() | Backoff() | Failed():
            return machine, noted(machine, event.words)


def _tighten(machine: Machine, event: Judged, policy: Policy) -> Decision:
    """The next engine needs less memory: whichever engine this is about."""
    match machine.mode:
        case Ready(boot=boot) | Stopping(boot=boot) if event.boot in {None, boot}:
            return _doubt(machine, event, small=True)
        case Backoff():
            history = smaller(machine.history, event.t, policy)
            if history is None:
                return machine, noted(machine, event.words)
            noticed = noted(machine, f"{event.words}: the next engine gets {history.changes}")
            return replace(machine, history=history), noticed
        case Starting() | Ready() | Stopping():
            return replace(machine, history=replace(machine.history, tight=event.words)), noted(machine, event.words)
        case Stopped() | Draining() | Failed():
            return machine, noted(machine, event.words)


def doubted(machine: Machine, mode: Ready, mark: Mark, t: float, policy: Policy, *, idle: bool) -> Decision | None:
    """A look at an engine in doubt: whether it has disproved it, or is to be ended. None: there is no doubt, or not yet reason.

    `mark` is what was seen at the last look, `mode.mark` what is seen now. An idle engine can prove nothing and hurts nobody: its
    time begins with the next request.
    """
    doubt = mode.doubt
    if doubt is None:
        return None
    if idle:
        return replace(machine, mode=replace(mode, doubt=replace(doubt, t=max(t, doubt.t)))), ()
    now = mode.mark
    tokens = now.generated_tokens > mark.generated_tokens or now.prompt_tokens > mark.prompt_tokens
    if tokens and t - doubt.t > policy.blind / 2:
        return replace(machine, mode=replace(mode, doubt=None)), ()
    if t - doubt.t < policy.doubt:
        return None
    after = ThenRebuild(doubt.words) if doubt.small else ThenRestart(doubt.words)
    remedy = Remedy.ENGINE_REBUILD if doubt.small else Remedy.PROCESS_RESTART
    machine, opened = alarmed(machine, t, doubt.label, remedy, doubt.words, "the engine is ended and a new one started")
    machine, effects = terminate(machine, mode.boot, after, t, policy, Cause.JUDGED)
    return machine, (*opened, Interrupt(doubt.words), *effects)
