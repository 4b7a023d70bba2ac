"""What a verdict means for an engine, whom it accuses, what a person should do, and how an engine is built smaller.

Pure. Only a new process and a smaller one are ever ordered; everything above them on the ladder becomes advice in words.
"""

from dataclasses import dataclass
from enum import Enum

import msgspec

from daemon.core.exit_codes import ExitCode
from daemon.core.faults_values import Label, Remedy
from daemon.core.settings import BackendKind, EngineSettings
from daemon.core.supervision_memory import Cause

PAGE = 256
"""Tokens of a cache page: sizes are multiples of it."""
LEAST_CHUNK = 512
LEAST_CACHE = 2 * PAGE
CPU_CACHE = 32768
"""What an engine on a CPU takes where the configuration names no size (docs of engine.cache_tokens)."""


class Course(Enum):
    """What the supervisor does about a verdict."""

    NOTHING = "nothing"
    RESTART = "restart"
    """A new process on the same configuration."""
    SMALLER = "smaller"
    """A new process that needs less memory."""
    REFUSE = "refuse"
    """No process will do before a person changes the configuration or the installation."""
    ADVISE = "advise"
    """Nothing that a daemon should do on its own."""


_NOT_SIZE = frozenset({Label.NCCL_ERROR, Label.ENGINE_DEAD})
"""Calls for a rebuild that a smaller memory budget would not answer."""


def course(remedy: Remedy, label: Label) -> Course:
    """What a verdict calls for."""
    match remedy:
        case Remedy.NONE:
            return Course.NOTHING
        case Remedy.PROCESS_RESTART:
            return Course.RESTART
        case Remedy.ENGINE_REBUILD:
            if label is Label.CONFIG:
                return Course.REFUSE
            return Course.RESTART if label in _NOT_SIZE else Course.SMALLER
        case Remedy.WSL_SHUTDOWN | Remedy.DRIVER_ACTION | Remedy.HOST_REBOOT:
            return Course.ADVISE


# --- whom an end accuses --------------------------------------------------------------------------------------------

DEVICE_WIDE = frozenset(
    {
        Label.CUDA_DEVICES_UNAVAILABLE,
        Label.CUDA_ECC,
        Label.DRIVER_MISMATCH,
        Label.DXGKRNL_GPU_LOST,
        Label.DXGKRNL_VMBUS,
        Label.GPU_FELL_OFF_BUS,
        Label.GUEST_KERNEL_CRASH,
        Label.HOST_BUGCHECK,
        Label.HOST_GPU_ERROR,
        Label.HOST_OOM,
        Label.HOST_TDR,
        Label.NO_DEVICE,
        Label.NVML_UNAVAILABLE,
        Label.PROBE_FAILED,
        Label.PROCESS_DSTATE,
        Label.WSL_LAUNCH_FAILURE,
        Label.XID_ECC,
        Label.XID_GSP_TIMEOUT,
        Label.XID_OTHER,
        Label.XID_RECOVERY_ACTION,
    }
)
"""Faults of the device, its driver or the machine. Not among them: XID_APP_FAULT, which the driver prints beside every illegal
access that a request can provoke."""

_FROM_OUTSIDE = frozenset({-2, -9, -15})
"""SIGINT, SIGKILL, SIGTERM: a person, the system's memory killer, or we."""


def accuses(cause: Cause, code: int) -> bool:
    """Whether one of its requests may have caused an engine's end, as far as the end itself tells. `code`: its exit code."""
    match cause:
        case Cause.ASKED | Cause.REFUSED:
            return False
        case Cause.HUNG | Cause.ANNOUNCED | Cause.JUDGED:
            return True
        case Cause.DIED:
            return code not in _FROM_OUTSIDE and code != ExitCode.OK


# --- advice ---------------------------------------------------------------------------------------------------------

_WSL = "run `wsl.exe --shutdown` in Windows (it ends every distribution and Docker Desktop), then start this one again"
_BY_LABEL = {
    Label.DRIVER_MISMATCH: "the driver in use and its libraries are of different versions: `sudo reboot` loads the installed one",
    Label.NO_DEVICE: "no usable GPU is there: look at `nvidia-smi` and `sudo dmesg`, and reinstall or reload the driver",
    Label.NVML_UNAVAILABLE: "look at `nvidia-smi`; `sudo modprobe nvidia` loads the driver, `sudo reboot` does where that fails",
    Label.GPU_FELL_OFF_BUS: "turn the machine off and on again, and check the card's seat, its power cables and its temperature",
}


def command(remedy: Remedy, label: Label) -> str:
    """What a person should do, with the exact command where there is one."""
    match remedy:
        case Remedy.WSL_SHUTDOWN:
            return _WSL
        case Remedy.DRIVER_ACTION:
            return _BY_LABEL.get(
                label, "look at `nvidia-smi -q` and `sudo dmesg`; `sudo reboot`, then another driver version, if it comes back"
            )
        case Remedy.HOST_REBOOT:
            return _BY_LABEL.get(label, "run `sudo reboot`; under WSL restart Windows (`shutdown.exe /r /t 0`)")
        case Remedy.NONE | Remedy.PROCESS_RESTART | Remedy.ENGINE_REBUILD:
            return "nothing: the daemon does it"


# --- smaller engines ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Smaller:
    """Settings of an engine that needs less memory, and what was changed, for people."""

    engine: EngineSettings
    change: str


def shrink(engine: EngineSettings, context: int, room: int | None) -> Smaller | None:
    """The next smaller engine: half the chunk down to `LEAST_CHUNK`, then a fifth less cache at a time; None if it can't be.

    `context` is the longest request in tokens, `room` the cache the last engine had, if one ever loaded.
    """
    chunk = engine.chunk_tokens
    if chunk > LEAST_CHUNK:
        half = max(LEAST_CHUNK, chunk // 2 // PAGE * PAGE)
        return Smaller(msgspec.structs.replace(engine, chunk_tokens=half), f"engine.chunk_tokens {half} instead of {chunk}")
    cache = _cache(engine, context, room)
    less = max(LEAST_CACHE, cache * 4 // 5 // PAGE * PAGE)
    if less >= cache:
        return None
    return Smaller(msgspec.structs.replace(engine, cache_tokens=less), f"engine.cache_tokens {less} instead of {cache}")


def _cache(engine: EngineSettings, context: int, room: int | None) -> int:
    """Tokens of cache that an engine on these settings takes."""
    if engine.cache_tokens is not None:
        return engine.cache_tokens
    if room is not None:
        return room
    match engine.backend:
        case BackendKind.CPU | BackendKind.NULL:
            return min(context, CPU_CACHE)
        case BackendKind.AUTO | BackendKind.CUDA:
            return context


def differences(wanted: EngineSettings, given: EngineSettings) -> str:
    """How a smaller engine differs from the configured one, for people."""
    changes: list[str] = []
    if given.chunk_tokens != wanted.chunk_tokens:
        changes.append(f"engine.chunk_tokens {given.chunk_tokens} instead of {wanted.chunk_tokens}")
    if given.cache_tokens != wanted.cache_tokens:
        changes.append(f"engine.cache_tokens {given.cache_tokens} instead of {wanted.cache_tokens or 'one full context'}")
    return " and ".join(changes)
