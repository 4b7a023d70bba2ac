"""The vocabulary of faults: remedies, labels, and what a rule finds in a piece of evidence.

The room below `faults.py`: every rule file imports this one and none imports another's verdicts. Nothing here reads
anything; evidence is handed in by `host/`.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum


class Remedy(IntEnum):
    """What would cure a fault, on a ladder: a higher rung costs more and includes the lower ones.

    Only `PROCESS_RESTART` and `ENGINE_REBUILD` are ever done by the daemon itself; the others are advice for a person.
    """

    NONE = 0
    """Routine, a consequence, or not enough by itself."""
    PROCESS_RESTART = 1
    """A new engine process on the same configuration."""
    ENGINE_REBUILD = 2
    """A new engine with another configuration or a smaller memory budget."""
    WSL_SHUTDOWN = 3
    """`wsl --shutdown` on the Windows side."""
    DRIVER_ACTION = 4
    """Something about the driver, the unit or the card that a person has to do."""
    HOST_REBOOT = 5


class Label(Enum):
    """What kind of thing was seen."""

    BENIGN_NOISE = "benign_noise"
    CONFIG = "config"
    CUDA_DEVICE_ASSERT = "cuda_device_assert"
    CUDA_DEVICE_NOT_READY = "cuda_device_not_ready"
    CUDA_DEVICES_UNAVAILABLE = "cuda_devices_unavailable"
    CUDA_ECC = "cuda_ecc"
    CUDA_ILLEGAL_ADDRESS = "cuda_illegal_address"
    CUDA_LAUNCH_FAILURE = "cuda_launch_failure"
    CUDA_LAUNCH_TIMEOUT = "cuda_launch_timeout"
    CUDA_MISALIGNED_ADDRESS = "cuda_misaligned_address"
    CUDA_OOM = "cuda_oom"
    CUDA_UNKNOWN = "cuda_unknown"
    DRIVER_MISMATCH = "driver_mismatch"
    DXGKRNL_GPU_LOST = "dxgkrnl_gpu_lost"
    DXGKRNL_IOCTL_FAILURE = "dxgkrnl_ioctl_failure"
    DXGKRNL_RESIDENCY = "dxgkrnl_residency"
    DXGKRNL_VMBUS = "dxgkrnl_vmbus"
    ENGINE_DEAD = "engine_dead"
    ENGINE_HANG = "engine_hang"
    GPU_FELL_OFF_BUS = "gpu_fell_off_bus"
    GUEST_KERNEL_CRASH = "guest_kernel_crash"
    HOST_BUGCHECK = "host_bugcheck"
    HOST_GPU_ERROR = "host_gpu_error"
    HOST_OOM = "host_oom"
    HOST_TDR = "host_tdr"
    NCCL_ERROR = "nccl_error"
    NO_DEVICE = "no_device"
    NVML_UNAVAILABLE = "nvml_unavailable"
    PROBE_FAILED = "probe_failed"
    PROCESS_DSTATE = "process_dstate"
    UNIT_START_LIMIT = "unit_start_limit"
    UNIT_WATCHDOG = "unit_watchdog"
    WSL_LAUNCH_FAILURE = "wsl_launch_failure"
    XID_APP_FAULT = "xid_app_fault"
    XID_CLEANUP = "xid_cleanup"
    XID_ECC = "xid_ecc"
    XID_GSP_TIMEOUT = "xid_gsp_timeout"
    XID_OTHER = "xid_other"
    XID_RECOVERY_ACTION = "xid_recovery_action"


class Platform(Enum):
    """Which kernel the GPU is reached through."""

    NATIVE = "native"
    WSL = "wsl"


@dataclass(frozen=True, slots=True)
class Ours:
    """What belongs to the daemon, so that other people's faults are left alone. `None` in a field: not known, and then
    the process name decides where it can.
    """

    pids: frozenset[int] | None = None
    """Every process of the daemon and its engines, also those that ended lately."""
    gpus: frozenset[str] | None = None
    """PCI addresses without function, as in `0000:01:00`."""
    unit: str | None = None
    """The systemd unit, as in `exl3d.service`."""
    platform: Platform = Platform.NATIVE


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a piece of evidence calls for. `evidence` are the lines or values that say so, for the incident record."""

    remedy: Remedy
    label: Label
    evidence: tuple[str, ...] = ()

    @property
    def quiet(self) -> bool:
        """Whether nothing needs to be done about it by itself."""
        return self.remedy is Remedy.NONE


def worst(verdicts: tuple[Verdict, ...]) -> Verdict:
    """The highest remedy among them (the first, on a tie); among quiet ones the first that is not mere noise."""
    loud = max((v.remedy for v in verdicts), default=Remedy.NONE)
    for verdict in verdicts:
        if verdict.remedy is loud and (loud is not Remedy.NONE or verdict.label is not Label.BENIGN_NOISE):
            return verdict
    return Verdict(Remedy.NONE, Label.BENIGN_NOISE)
