"""What NVML, nvidia-smi, systemd and Windows say."""

import re
from enum import IntEnum

from daemon.core.faults_kernel import recovery_action
from daemon.core.faults_values import Label, Ours, Remedy, Verdict

_NONE, _RESTART, _WSL, _DRIVER, _REBOOT = (
    Remedy.NONE,
    Remedy.PROCESS_RESTART,
    Remedy.WSL_SHUTDOWN,
    Remedy.DRIVER_ACTION,
    Remedy.HOST_REBOOT,
)


class NvmlCode(IntEnum):
    """Return codes of NVML that mean something about health. All others, and these on a metric, do not."""

    NO_PERMISSION = 4
    DRIVER_NOT_LOADED = 9
    LIBRARY_NOT_FOUND = 12
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


_NVML: dict[NvmlCode, tuple[Remedy, Label]] = {
    NvmlCode.DRIVER_NOT_LOADED: (_DRIVER, Label.NVML_UNAVAILABLE),
    NvmlCode.LIBRARY_NOT_FOUND: (_DRIVER, Label.NVML_UNAVAILABLE),
    NvmlCode.GPU_IS_LOST: (_REBOOT, Label.GPU_FELL_OFF_BUS),
    NvmlCode.RESET_REQUIRED: (_DRIVER, Label.XID_RECOVERY_ACTION),
    NvmlCode.OPERATING_SYSTEM: (_WSL, Label.DXGKRNL_GPU_LOST),
    NvmlCode.LIB_RM_VERSION_MISMATCH: (_REBOOT, Label.DRIVER_MISMATCH),
    NvmlCode.GPU_NOT_FOUND: (_DRIVER, Label.NO_DEVICE),
}
"""NO_PERMISSION and UNKNOWN are judged where they occur: they matter at initialisation alone."""

VITAL_CALLS = frozenset({"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"})
"""Calls that work wherever NVML works. Any other may be missing on a healthy machine, on WSL2 above all."""


def judge_nvml(call: str, code: int) -> Verdict:
    """The verdict on an NVML call that failed. `Unknown Error` is what an old WSL2 said for `Not Supported`."""
    seen = (f"{call}: {code}",)
    try:
        known = NvmlCode(code)
    except ValueError:
        return Verdict(_NONE, Label.BENIGN_NOISE, seen)
    if known in _NVML:
        remedy, label = _NVML[known]
        return Verdict(remedy, label, seen)
    if known is NvmlCode.UNKNOWN and call in VITAL_CALLS:
        return Verdict(_RESTART, Label.NVML_UNAVAILABLE, seen)
    return Verdict(_NONE, Label.BENIGN_NOISE, seen)


_WORDS: tuple[tuple[str, NvmlCode], ...] = (
    ("gpu access blocked by the operating system", NvmlCode.OPERATING_SYSTEM),
    ("driver/library version mismatch", NvmlCode.LIB_RM_VERSION_MISMATCH),
    ("driver not loaded", NvmlCode.DRIVER_NOT_LOADED),
    ("shared library not found", NvmlCode.LIBRARY_NOT_FOUND),
    ("nvml shared library not found", NvmlCode.LIBRARY_NOT_FOUND),
    ("gpu is lost", NvmlCode.GPU_IS_LOST),
    ("gpu requires reset", NvmlCode.RESET_REQUIRED),
    ("unknown error", NvmlCode.UNKNOWN),
    ("insufficient permissions", NvmlCode.NO_PERMISSION),
)
_SMI_INIT = re.compile(r"Failed to initialize NVML: (?P<words>.*)")
_SMI_HANDLE = re.compile(r"Unable to determine the device handle for (?:GPU|gpu) ?\d*:? ?[0-9A-Fa-f:.]+: (?P<words>.*)")
_SMI: tuple[tuple[re.Pattern[str], Remedy, Label], ...] = (
    (
        re.compile(r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver\b"),
        _DRIVER,
        Label.NVML_UNAVAILABLE,
    ),
    (re.compile(r"NVIDIA-SMI couldn't find libnvidia-ml\.so\b"), _DRIVER, Label.NVML_UNAVAILABLE),
    (re.compile(r"No devices were found\b"), _REBOOT, Label.NO_DEVICE),
    (re.compile(r"(?:\[\d+\]\s+\d+ )?segmentation fault\s.*nvidia-smi", re.IGNORECASE), _DRIVER, Label.NVML_UNAVAILABLE),
    (re.compile(r"Segmentation fault\b"), _DRIVER, Label.NVML_UNAVAILABLE),
    (re.compile(r"\[?GPU requires reset\b"), _DRIVER, Label.XID_RECOVERY_ACTION),
)


def _by_words(words: str) -> NvmlCode | None:
    lowered = words.lower()
    return next((code for text, code in _WORDS if lowered.startswith(text)), None)


def judge_smi(line: str) -> Verdict:
    """The verdict on a line of nvidia-smi's output. Cells of its table (N/A, ERR!) mean nothing; its exit code neither."""
    failed = _SMI_INIT.match(line)
    if failed:
        code = _by_words(failed["words"])
        verdict = judge_nvml("nvmlInit", code) if code is not None else Verdict(_DRIVER, Label.NVML_UNAVAILABLE)
        return Verdict(verdict.remedy, verdict.label, (line,))
    handle = _SMI_HANDLE.match(line)
    if handle:
        code = _by_words(handle["words"])
        if code is NvmlCode.RESET_REQUIRED:
            return Verdict(_DRIVER, Label.XID_RECOVERY_ACTION, (line,))
        return Verdict(_REBOOT, Label.GPU_FELL_OFF_BUS, (line,))
    for pattern, remedy, label in _SMI:
        if pattern.match(line):
            return Verdict(remedy, label, (line,))
    return Verdict(_NONE, Label.BENIGN_NOISE, (line,))


_NVML_RAISED = re.compile(
    r"(?:(?:pynvml\.)?(?:nvml\.)?NVMLError(?:_(?P<name>\w+))?|NVML_ERROR_(?P<constant>\w+))(?:: (?P<words>.*))?"
)
_NVML_NAMES = {
    "drivernotloaded": NvmlCode.DRIVER_NOT_LOADED,
    "librarynotfound": NvmlCode.LIBRARY_NOT_FOUND,
    "gpuislost": NvmlCode.GPU_IS_LOST,
    "resetrequired": NvmlCode.RESET_REQUIRED,
    "operatingsystem": NvmlCode.OPERATING_SYSTEM,
    "librmversionmismatch": NvmlCode.LIB_RM_VERSION_MISMATCH,
    "gpunotfound": NvmlCode.GPU_NOT_FOUND,
}


_REPORT = re.compile(
    r"(?:.{0,80}\b(?:nvml\w*|device|gpu)\b.{0,80}): (?:NVML_)?(?:ERROR_(?P<constant>[A-Z_]+)|(?P<words>[^:]+))$", re.IGNORECASE
)


def _judge_report(line: str) -> Verdict:
    """A program's own words around an NVML error: what stands behind the last colon counts, if it is exactly one of NVML's."""
    found = _REPORT.match(line)
    code = None
    if found is not None:
        code = _NVML_NAMES.get((found["constant"] or "").replace("_", "").lower()) or _by_words(found["words"] or "")
    verdict = Verdict(_NONE, Label.BENIGN_NOISE) if code is None else judge_nvml("", code)
    return Verdict(verdict.remedy, verdict.label, (line,))


def judge_nvml_text(line: str) -> Verdict:
    """The verdict on an NVML error as text. The call is not known, so `Unknown Error` counts for nothing."""
    raised = _NVML_RAISED.match(line)
    if raised is None:
        verdict = judge_smi(line)
        return verdict if not verdict.quiet else _judge_report(line)
    name = (raised["name"] or raised["constant"] or "").replace("_", "").lower()
    code = _NVML_NAMES.get(name) or _by_words(raised["words"] or "")
    if code is None:
        return Verdict(_NONE, Label.BENIGN_NOISE, (line,))
    verdict = judge_nvml("", code)
    return Verdict(verdict.remedy, verdict.label, (line,))


_UNIT = re.compile(r"(?P<unit>\S+\.(?:service|socket|scope)): (?P<text>.*)")
_OOMD = re.compile(r"Killed \S*/(?P<unit>[\w@.-]+) due to memory (?:used|pressure)")
_UNIT_RESULTS = {
    "watchdog": (_RESTART, Label.UNIT_WATCHDOG),
    "start-limit-hit": (_DRIVER, Label.UNIT_START_LIMIT),
    "oom-kill": (_RESTART, Label.HOST_OOM),
}
_UNIT_RESULT = re.compile(r"Failed with result '(?P<result>[\w-]+)'")
_UNIT_LINES: tuple[tuple[re.Pattern[str], Remedy, Label], ...] = (
    (re.compile(r"Watchdog timeout \(limit "), _RESTART, Label.UNIT_WATCHDOG),
    (re.compile(r"Start request repeated too quickly"), _DRIVER, Label.UNIT_START_LIMIT),
    (
        re.compile(r"(?:A process of this unit has been killed by the OOM killer|\w+ process killed by the OOM killer)"),
        _RESTART,
        Label.HOST_OOM,
    ),
    (
        re.compile(r"Main process exited, code=(?:dumped|killed, status=(?:9/KILL|11/SEGV|6/ABRT|7/BUS))\b"),
        _RESTART,
        Label.ENGINE_DEAD,
    ),
    (re.compile(r"Processes still around after (?:final )?SIGKILL"), _REBOOT, Label.PROCESS_DSTATE),
)


def judge_systemd(line: str, ours: Ours) -> Verdict:
    """The verdict on a line that systemd itself wrote about a unit."""
    pressed = _OOMD.match(line)
    if pressed:
        mine = ours.unit is None or pressed["unit"] == ours.unit
        return Verdict(_RESTART if mine else _NONE, Label.HOST_OOM, (line,))
    found = _UNIT.match(line)
    quiet = Verdict(_NONE, Label.BENIGN_NOISE, (line,))
    if found is None or (ours.unit is not None and found["unit"] != ours.unit):
        return quiet
    result = _UNIT_RESULT.match(found["text"])
    if result:
        remedy, label = _UNIT_RESULTS.get(result["result"], (_NONE, Label.BENIGN_NOISE))
        return Verdict(remedy, label, (line,))
    for pattern, remedy, label in _UNIT_LINES:
        if pattern.match(found["text"]):
            return Verdict(remedy, label, (line,))
    return quiet


_WINDOWS: tuple[tuple[re.Pattern[str], Remedy, Label], ...] = (
    (re.compile(r"Rese(?:tting|t) TDR occurred on GPUID:\s*\d+"), _RESTART, Label.HOST_TDR),
    (re.compile(r"Display driver nvlddmkm stopped responding and has successfully recovered"), _RESTART, Label.HOST_TDR),
    (re.compile(r"LiveKernelEvent\W+(?:Code\W+)?(?:141|117)\b"), _RESTART, Label.HOST_TDR),
    (re.compile(r"BugCheck 0x[0-9A-Fa-f]{8}\b"), _DRIVER, Label.HOST_BUGCHECK),
    (
        re.compile(
            r"\bVIDEO_(?:TDR_FAILURE|TDR_ERROR|SCHEDULER_INTERNAL_ERROR|MEMORY_MANAGEMENT_INTERNAL|DXGKRNL_FATAL_ERROR)\b"
        ),
        _DRIVER,
        Label.HOST_BUGCHECK,
    ),
    (re.compile(r"The computer has rebooted from a bugcheck"), _DRIVER, Label.HOST_BUGCHECK),
    (re.compile(r"The system has rebooted without cleanly shutting down first"), _DRIVER, Label.HOST_BUGCHECK),
    (re.compile(r"Error code: Wsl/Service/(?:\w+/)*E_UNEXPECTED"), _REBOOT, Label.WSL_LAUNCH_FAILURE),
    (re.compile(r"Error code: Wsl/Service/"), _WSL, Label.WSL_LAUNCH_FAILURE),
    (re.compile(r"Error occurred on GPUID:\s*\d+"), _NONE, Label.HOST_GPU_ERROR),
)
_WINDOWS_IDS: dict[tuple[str, int], tuple[Remedy, Label]] = {
    ("display", 4101): (_RESTART, Label.HOST_TDR),
    ("microsoft-windows-kernel-power", 41): (_DRIVER, Label.HOST_BUGCHECK),
    ("microsoft-windows-wer-systemerrorreporting", 1001): (_DRIVER, Label.HOST_BUGCHECK),
}
"""Events whose number alone says it, whatever language the text is in. nvlddmkm's 153 and 13 come on healthy machines too."""


def judge_windows(provider: str, event: int, text: str) -> Verdict:
    """The verdict on a Windows event, or with provider "" on text from the Windows side (UTF-16LE already decoded)."""
    verdicts: list[Verdict] = []
    known = _WINDOWS_IDS.get((provider.lower(), event))
    if known is not None:
        verdicts.append(Verdict(*known, (f"{provider} {event}",)))
    for raw in text.replace("\0", "").splitlines():
        line = raw.strip()
        stated = recovery_action(line)
        if stated is not None:  # Windows has no reset for a card in use: what a reset needs is a reboot
            verdicts.append(Verdict(stated and _REBOOT, Label.XID_RECOVERY_ACTION, (line,)))
            continue
        for pattern, remedy, label in _WINDOWS:
            if pattern.search(line):  # event text is the drivers' own: no person writes into it
                verdicts.append(Verdict(remedy, label, (line,)))
                break
    return max(verdicts, key=lambda v: v.remedy, default=Verdict(_NONE, Label.BENIGN_NOISE, (text,)))
