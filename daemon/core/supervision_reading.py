"""Reading the supervisor's state: which engine exists, what is due when, and one sentence for people."""

from daemon.core.exit_codes import ExitCode
from daemon.core.supervision_memory import Awaits
from daemon.core.supervision_values import (
    Backoff,
    Draining,
    Failed,
    FailedKind,
    Machine,
    Mode,
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
from daemon.core.wire import Phase

CHUNK_UNIT = 1024
"""Tokens of a prefill step that `Policy.prefill_stall` is about."""


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


def awaits_memory(mode: Mode) -> bool:
    """Whether the next engine waits for the last one's GPU memory."""
    return isinstance(mode, Backoff) and mode.awaits is Awaits.MEMORY


def deadline(mode: Mode) -> float | None:
    """When `Ticked` is due at the latest."""
    match mode:
        case Draining(until=until) | Backoff(until=until):
            return until
        case Stopping(rung=rung, until=until):
            return None if rung is Rung.STUCK else until
        case Stopped() | Starting() | Ready() | Failed():
            return None


def patience(machine: Machine, policy: Policy) -> float | None:
    """How long no counter may stand still before the engine counts as hung; None where nobody counts."""
    match machine.mode:
        case Starting(mark=mark):
            return policy.build_stall if mark.phase is Phase.BUILDING else policy.load_stall
        case Ready(mark=mark):
            if mark.prefilling is None and mark.phase is not Phase.PREFILL:
                return policy.step_stall
            chunk = (machine.history.smaller or policy.engine).chunk_tokens
            return max(policy.step_stall, policy.prefill_stall * max(1.0, chunk / CHUNK_UNIT))
        case Stopped() | Draining() | Stopping() | Backoff() | Failed():
            return None


def a_person_must_act(kind: FailedKind) -> bool:
    """Whether starting the daemon again would end the same way (exit code 78), so that nobody should try on their own."""
    match kind:
        case FailedKind.CONFIG | FailedKind.MEMORY | FailedKind.DEVICE:
            return True
        case FailedKind.BUDGET:
            return False


# --- words ----------------------------------------------------------------------------------------------------------


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
        case Backoff(why=why, awaits=awaits):
            return f"{_describe_wait(awaits)}: {why}"
        case Failed(why=why):
            return why


def describe_all(machine: Machine) -> str:
    """`describe`, with how the engine differs from the configured one, and what people are advised to do."""
    parts = [describe(machine.mode)]
    history = machine.history
    if isinstance(machine.mode, Ready) and machine.mode.doubt is not None:
        parts.append(f"the watchdog holds it for broken until it computes again: {machine.mode.doubt.words}")
    if history.changes and boot_of(machine.mode) is not None:
        parts.append(f"built with {history.changes}, because the configured size did not fit")
    if history.advice is not None and not isinstance(machine.mode, Failed):
        parts.append(f"a person should act: {history.advice.words}")
    return "; ".join(parts)


def _describe_wait(awaits: Awaits) -> str:
    match awaits:
        case Awaits.TIME:
            return "a new engine starts soon"
        case Awaits.MEMORY:
            return "a new engine starts as soon as the last one's GPU memory is free"


STUCK = (
    "the engine process does not end after SIGKILL: it hangs in the kernel, usually in the GPU driver."
    " Nothing is started until it goes. Under WSL `wsl.exe --shutdown` in Windows frees it (`wsl --shutdown` ends every"
    " distribution); elsewhere `sudo reboot`"
)


def _describe_stopping(mode: Stopping) -> str:
    if mode.rung is Rung.STUCK:
        return STUCK
    match mode.after:
        case ThenStop():
            return "the engine stops"
        case ThenRestart(why):
            return f"the engine is being replaced: {why or 'it died'}"
        case ThenRebuild(why):
            return f"the engine is being replaced by one that needs less memory: {why}"
        case ThenFail(why):
            return why


_SIGNALS = {2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


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
