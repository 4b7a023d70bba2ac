"""Kernel lines: dxgkrnl (the GPU driver of WSL2), NVRM (NVIDIA's own), the OOM killer, hung tasks, crashes.

Input is the text of lines that came over the kernel's own transport (`faults_log.py` sees to that). dxgkrnl writes at
priority error about things that happen on every healthy boot, so the order of its rules is: a killed waiter, then
routine functions whatever their errno, then loud functions, then the one errno that means a lost GPU. Everything that
no rule names is routine.
"""

import re
from dataclasses import dataclass

from daemon.core.faults_values import Label, Ours, Remedy, Verdict

_ERESTARTSYS = -512
_ENODEV = -19

_DXG = re.compile(r"(?P<device>misc dxg:\s*)?(?P<module>dxgk(?::err)?\W+)?(?:(?P<function>[a-z][a-z0-9_]*):?\s+)?(?P<text>.*)")
_DXG_FUNCTION = re.compile(r"(?:dxgkio|dxgvmb|dxgvmbuschannel|dxgglobal|dxgadapter|dxgprocess|dxgdevice|dxg_pci)_\w+")
_ERRNO = re.compile(r"[: ](?:(?P<decimal>-\d{1,10})|(?P<hex>f[0-9a-f]{7}))$")

_ROUTINE_FUNCTIONS = frozenset({"dxgkio_query_adapter_info", "dxgkio_is_feature_enabled", "dxgkio_reserve_gpu_va"})

_DXG_LOUD: tuple[tuple[str, Label], ...] = (
    ("create_process failed", Label.DXGKRNL_VMBUS),
    ("create_process returned 0 handle", Label.DXGKRNL_VMBUS),
    ("vmbus_open failed", Label.DXGKRNL_VMBUS),
    ("ailed to open adapter", Label.DXGKRNL_GPU_LOST),
    ("nable to allocate mmio memory", Label.NO_DEVICE),
)

_XID = re.compile(r"NVRM: Xid \((?:PCI:)(?P<gpu>[0-9a-fA-F:.]+)\): (?P<number>\d{1,4})(?:,\s*(?P<rest>.*))?$")
_XID_PID = re.compile(r"pid='?(?P<pid>\d{1,10})'?")
_XID_NAME = re.compile(r"name=(?P<name>[^,]+)")
_RECOVERY = re.compile(r"GPU recovery action changed from 0x[0-9a-f]+ \([^)]*\) to 0x(?P<code>[0-9a-f]+) \((?P<words>[^)]*)\)")
_BUS_GONE = re.compile(r"NVRM: (?:GPU (?:at )?(?:PCI:)?[0-9a-fA-F:.]+:? )(?:GPU )?has fallen off the bus\b", re.IGNORECASE)

_DISPLAY_CLIENTS = frozenset(
    {
        "compositor", "Xorg", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland", "plasmashell", "mutter", "sway", "weston",
        "Hyprland", "cinnamon", "firefox", "chrome", "chromium", "steam", "steamwebhelper", "obs",
    }
)  # fmt: skip
"""Names of desktop programs: where our own pids are not known, their faults are still not ours."""

_OOM_KILL = re.compile(
    r"(?:Memory cgroup out of memory|Out of memory[^:]*): Kill(?:ed)? process (?P<pid>\d{1,10}) \("
    r"|oom-kill:constraint=.*,pid=(?P<victim>\d{1,10}),"
)
_OOM_INVOKED = re.compile(r".{1,15} invoked oom-killer: ")
_HUNG = re.compile(r"INFO: task (?P<name>.+):(?P<pid>\d{1,10}) blocked (?:in I/O wait )?for more than \d+ seconds")
_GPU_TASKS = re.compile(r"nvidia|^nv_|cuda|exl3|VLLM::|pt_main_thread|llama-|ollama|^python")
_CRASH = re.compile(
    r"BUG: (?:unable to handle|kernel NULL pointer)|Oops: |Oops:|general protection fault\b|(?:dxgkrnl: .*)?kernel panic\b",
    re.IGNORECASE,
)


def _quiet(label: Label, line: str) -> Verdict:
    return Verdict(Remedy.NONE, label, (line,))


def _errno(text: str) -> int | None:
    """The error number at the end of a dxgkrnl line: decimal from ioctls, two's complement in hex from VMBus helpers."""
    found = _ERRNO.search(text.rstrip("]. "))
    if found is None:
        return None
    return int(found["hex"], 16) - (1 << 32) if found["hex"] else int(found["decimal"])


def _dxg(line: str) -> Verdict | None:
    """Rules for dxgkrnl, in order; None where the line is not dxgkrnl's."""
    found = _DXG.match(line)
    if found is None:
        return None
    function, text = found["function"] or "", found["text"]
    if not (found["device"] or found["module"] or _DXG_FUNCTION.fullmatch(function)):
        return None
    errno = _errno(text)
    # 1. Whoever waited was being killed, by us or by somebody: a consequence.
    if errno == _ERESTARTSYS:
        return _quiet(Label.BENIGN_NOISE, line)
    # 2. Functions that fail on healthy machines, by name: their errno differs from boot to boot.
    if function in _ROUTINE_FUNCTIONS:
        return _quiet(Label.BENIGN_NOISE, line)
    # 3. By what the function says of itself: no process can open the GPU any more, or the driver never came up.
    for phrase, label in _DXG_LOUD:
        if phrase in text:
            return Verdict(Remedy.WSL_SHUTDOWN, label, (line,))
    # 4. The device was removed.
    if errno == _ENODEV:
        return Verdict(Remedy.WSL_SHUTDOWN, Label.DXGKRNL_GPU_LOST, (line,))
    # 5. A lost message. Its two echoes (the helper's and the ioctl's line) fall through to the quiet rules.
    if "vmbus_sendpacket failed" in text:
        return Verdict(Remedy.PROCESS_RESTART, Label.DXGKRNL_VMBUS, (line,))
    # 6. Memory pressure and refused calls: a fault only together with an exception or a stall.
    if function == "dxgkio_make_resident":
        return _quiet(Label.DXGKRNL_RESIDENCY, line)
    return _quiet(Label.DXGKRNL_IOCTL_FAILURE, line)


@dataclass(frozen=True, slots=True)
class Xid:
    """One parsed `NVRM: Xid` line."""

    gpu: str
    """PCI address without function."""
    number: int
    pid: int | None
    name: str | None
    rest: str
    line: str


def parse_xid(line: str) -> Xid | None:
    """An Xid line taken apart; None for anything else, such as a network card that prints its `XID`."""
    found = _XID.search(line) if line.startswith("NVRM: ") else None
    if found is None:
        return None
    rest = found["rest"] or ""
    pid, name = _XID_PID.search(rest), _XID_NAME.search(rest)
    named = name["name"].strip() if name else ""
    gpu = found["gpu"].lower().partition(".")[0]
    return Xid(
        gpu,
        int(found["number"]),
        int(pid["pid"]) if pid else None,
        named if named.strip("'<>") != "unknown" else None,
        rest,
        line,
    )


_RESTART = (Remedy.PROCESS_RESTART, Label.XID_APP_FAULT)
_REBOOT = Remedy.HOST_REBOOT
_XIDS: dict[int, tuple[Remedy, Label]] = {
    8: _RESTART, 13: _RESTART, 31: _RESTART, 32: _RESTART, 43: _RESTART, 68: _RESTART, 69: _RESTART, 109: _RESTART,
    94: (Remedy.PROCESS_RESTART, Label.XID_ECC),
    45: (Remedy.NONE, Label.XID_CLEANUP),
    63: (Remedy.DRIVER_ACTION, Label.XID_ECC),
    48: (_REBOOT, Label.XID_ECC), 64: (_REBOOT, Label.XID_ECC), 95: (_REBOOT, Label.XID_ECC), 140: (_REBOOT, Label.XID_ECC),
    79: (_REBOOT, Label.GPU_FELL_OFF_BUS),
    119: (_REBOOT, Label.XID_GSP_TIMEOUT), 120: (_REBOOT, Label.XID_GSP_TIMEOUT),
    46: (_REBOOT, Label.XID_OTHER), 61: (_REBOOT, Label.XID_OTHER), 62: (_REBOOT, Label.XID_OTHER),
    74: (_REBOOT, Label.XID_OTHER),
    110: (_REBOOT, Label.XID_OTHER), 143: (_REBOOT, Label.XID_OTHER),
}  # fmt: skip
"""NVIDIA's catalogue, as far as a number alone says what to do. Numbers that are not here are for people to read."""

_PERSONAL = frozenset({8, 13, 31, 32, 43, 45, 68, 69, 94, 109})
"""Faults of one process: those of other people's processes are none of our business."""


def recovery_action(text: str) -> Remedy | None:
    """The remedy that Xid 154 states itself; None where `text` states none."""
    found = _RECOVERY.search(text)
    if found is None:
        return None
    match int(found["code"], 16):
        case 0:
            return Remedy.NONE
        case 2:
            return Remedy.HOST_REBOOT
        case _:  # resets of several kinds: a person with nvidia-smi, or a reboot
            return Remedy.DRIVER_ACTION


def _theirs(xid: Xid, ours: Ours) -> bool:
    """Whether an Xid is known to concern somebody else's card or process."""
    if ours.gpus is not None and xid.gpu not in ours.gpus:
        return True
    if xid.number not in _PERSONAL:
        return False
    if ours.pids is not None and xid.pid is not None:
        return xid.pid not in ours.pids
    return xid.name in _DISPLAY_CLIENTS


_ACTION_CHANGED = 154
"""The Xid that states a card's recovery action."""


def _judge_xid(xid: Xid, ours: Ours) -> Verdict:
    if _theirs(xid, ours):
        return _quiet(Label.XID_APP_FAULT, xid.line)
    stated = recovery_action(xid.rest) if xid.number == _ACTION_CHANGED else None
    if stated is not None:
        return Verdict(stated, Label.XID_RECOVERY_ACTION, (xid.line,))
    remedy, label = _XIDS.get(xid.number, (Remedy.NONE, Label.XID_OTHER))
    return Verdict(remedy, label, (xid.line,))


_NVRM: tuple[tuple[re.Pattern[str], Remedy, Label], ...] = (
    (re.compile(r"NVRM: API mismatch: "), Remedy.HOST_REBOOT, Label.DRIVER_MISMATCH),
    (re.compile(r"NVRM: .*requires use of the NVIDIA open kernel modules"), Remedy.DRIVER_ACTION, Label.DRIVER_MISMATCH),
    (re.compile(r"NVRM: .*is not supported by .*(?:NVIDIA|driver release)"), Remedy.DRIVER_ACTION, Label.DRIVER_MISMATCH),
    (
        re.compile(r"NVRM: (?:installed in this system has )?fallen off the bus and is not responding"),
        Remedy.HOST_REBOOT,
        Label.GPU_FELL_OFF_BUS,
    ),
    (_BUS_GONE, Remedy.HOST_REBOOT, Label.GPU_FELL_OFF_BUS),
    (
        re.compile(r"NVRM: (?:GPU [0-9a-fA-F:.]+: )?(?:RmInitAdapter failed!|rm_init_adapter failed\b)"),
        Remedy.DRIVER_ACTION,
        Label.NO_DEVICE,
    ),
    (re.compile(r"NVRM: None of the NVIDIA devices were initialized\b"), Remedy.DRIVER_ACTION, Label.NO_DEVICE),
    (re.compile(r"NVRM: .*RC watchdog: GPU is probably locked!"), Remedy.PROCESS_RESTART, Label.XID_APP_FAULT),
)


def _nvrm(line: str) -> Verdict | None:
    if not line.startswith("NVRM: "):
        return None
    for pattern, remedy, label in _NVRM:
        if pattern.match(line):
            return Verdict(remedy, label, (line,))
    return _quiet(Label.BENIGN_NOISE, line)


def _machine(line: str, ours: Ours) -> Verdict | None:
    """The OOM killer and crashes of the kernel itself."""
    killed = _OOM_KILL.match(line)
    if killed:
        mine = ours.pids is None or int(killed["pid"] or killed["victim"]) in ours.pids
        return Verdict(Remedy.PROCESS_RESTART if mine else Remedy.NONE, Label.HOST_OOM, (line,))
    if _OOM_INVOKED.match(line):  # says who asked for memory, not who dies; the kill's own line follows it
        return Verdict(Remedy.PROCESS_RESTART if ours.pids is None else Remedy.NONE, Label.HOST_OOM, (line,))
    if _CRASH.match(line):
        return Verdict(Remedy.WSL_SHUTDOWN, Label.GUEST_KERNEL_CRASH, (line,))
    return None


def _hung(line: str, ours: Ours, *, gpu_trouble: bool) -> Verdict | None:
    """A task that no signal reaches. Somebody's slow disk prints the same line, so it must be ours, or look like a GPU
    client, or stand beside GPU trouble.
    """
    found = _HUNG.match(line)
    if found is None:
        return None
    mine = int(found["pid"]) in ours.pids if ours.pids is not None else bool(_GPU_TASKS.search(found["name"]))
    if mine or (gpu_trouble and ours.pids is None):
        return Verdict(Remedy.HOST_REBOOT, Label.PROCESS_DSTATE, (line,))
    return _quiet(Label.PROCESS_DSTATE, line)


def judge_kernel(lines: tuple[str, ...], ours: Ours) -> tuple[Verdict, ...]:
    """A verdict per line, over lines that were printed together. Xid 154 speaks for its card and silences the others."""
    xids = [xid for line in lines if (xid := parse_xid(line)) is not None]
    decided = {xid.gpu for xid in xids if xid.number == _ACTION_CHANGED and recovery_action(xid.rest) is not None}
    verdicts: list[Verdict] = []
    for line in lines:
        xid = parse_xid(line)
        if xid is not None:
            overridden = xid.gpu in decided and xid.number != _ACTION_CHANGED
            verdicts.append(_quiet(Label.XID_OTHER, line) if overridden else _judge_xid(xid, ours))
            continue
        verdict = _dxg(line) or _nvrm(line) or _machine(line, ours) or _hung(line, ours, gpu_trouble=bool(xids))
        verdicts.append(verdict or _quiet(Label.BENIGN_NOISE, line))
    return tuple(verdicts)
