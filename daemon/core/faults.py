"""From evidence to a verdict: what happened to the GPU stack, and what would cure it.

Pure. `host/` gathers evidence (exceptions the engine reported, kernel lines, NVML codes, a probe's outcome, a stall) and
asks `judge`; `faults_fold.py` joins verdicts over time and decides what is acted on. Order of everything here:

1. structure before text: which channel, which facility, which function, which exception type;
2. quiet rules before loud ones, because most alarming lines are routine;
3. function names before error numbers;
4. what no rule names needs no action. A fault nobody recognised still shows as an exception or as missing progress.
"""

from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import TypeAlias

from daemon.core.faults_cuda import cuda_error, judge_message, judge_program_line, judge_traceback
from daemon.core.faults_host import judge_nvml, judge_nvml_text, judge_smi, judge_systemd, judge_windows
from daemon.core.faults_kernel import judge_kernel
from daemon.core.faults_log import LogLine, Origin, Severity, journal_line, kernel_line
from daemon.core.faults_values import Label, Ours, Platform, Remedy, Verdict, worst

__all__ = [
    "Channel", "Evidence", "KernelLines", "Label", "NvmlFailed", "Ours", "Platform", "ProbeOutcome", "Probed", "Raised", "Remedy",
    "SmiOutput", "Stalled", "Text", "Verdict", "WindowsEvent", "judge", "judge_lines", "possible_here",
]  # fmt: skip


class Channel(Enum):
    """Where text came from."""

    DMESG = "dmesg"
    """The kernel's own transport."""
    JOURNAL = "journal"
    """Journal lines as text, from anybody."""
    PYTHON_EXCEPTION = "python-exception"
    NVIDIA_SMI = "nvidia-smi"
    NVML = "nvml"
    WINDOWS_EVENT = "windows-event"


@dataclass(frozen=True, slots=True)
class Text:
    """Lines of a channel, as found."""

    channel: Channel
    text: str


@dataclass(frozen=True, slots=True)
class KernelLines:
    """Lines from the kernel's transport that were printed together (within a second or so)."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that ended the engine's step. `code` is the CUDA error number where the exception carries one."""

    kind: str
    """The type's name without its module."""
    message: str
    code: int | None = None


@dataclass(frozen=True, slots=True)
class NvmlFailed:
    """An NVML call that did not return success."""

    call: str
    code: int


@dataclass(frozen=True, slots=True)
class SmiOutput:
    """What nvidia-smi printed."""

    text: str


@dataclass(frozen=True, slots=True)
class WindowsEvent:
    """An entry of the Windows System log."""

    provider: str
    event: int
    text: str


@dataclass(frozen=True, slots=True)
class Stalled:
    """Work is outstanding and no counter advanced for `seconds`, longer than its phase allows."""

    phase: str
    seconds: float


class ProbeOutcome(Enum):
    """How a fresh process fared that allocated on the GPU, ran a kernel and waited for it."""

    WORKS = "works"
    NO_MEMORY = "no_memory"
    NO_DEVICE = "no_device"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    UNKILLABLE = "unkillable"
    """It did not end after SIGKILL."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The outcome of a probe process. `code` is the CUDA error number where it failed with one."""

    outcome: ProbeOutcome
    code: int | None = None


Evidence: TypeAlias = Text | KernelLines | Raised | NvmlFailed | SmiOutput | WindowsEvent | Stalled | Probed


def _judge_probe(probe: Probed, ours: Ours) -> Verdict:
    seen = (f"probe: {probe.outcome.value}" + (f" ({probe.code})" if probe.code is not None else ""),)
    beyond_processes = Remedy.WSL_SHUTDOWN if ours.platform is Platform.WSL else Remedy.DRIVER_ACTION
    match probe.outcome:
        case ProbeOutcome.WORKS | ProbeOutcome.NO_MEMORY:  # a full card answers: it is alive
            return Verdict(Remedy.NONE, Label.BENIGN_NOISE, seen)
        case ProbeOutcome.NO_DEVICE:
            return Verdict(beyond_processes, Label.NO_DEVICE, seen)
        case ProbeOutcome.FAILED | ProbeOutcome.TIMED_OUT:
            error = None if probe.code is None else cuda_error(probe.code)
            if error is not None and error.label is Label.CUDA_DEVICES_UNAVAILABLE:  # held by another process alone
                return Verdict(Remedy.NONE, Label.BENIGN_NOISE, seen)
            if error is not None and error.remedy > Remedy.ENGINE_REBUILD:  # CUDA itself names the cause
                return Verdict(error.remedy, error.label, seen)
            return Verdict(beyond_processes, Label.PROBE_FAILED, seen)
        case ProbeOutcome.UNKILLABLE:
            remedy = Remedy.WSL_SHUTDOWN if ours.platform is Platform.WSL else Remedy.HOST_REBOOT
            return Verdict(remedy, Label.PROCESS_DSTATE, seen)


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.replace("\0", "").splitlines() if line.strip())


def _journal(text: str, ours: Ours) -> Verdict:
    """Sort a mixture by origin. An unframed line after a program's chatter continues that chatter: a logged request."""
    kernel: list[str] = []
    verdicts: list[Verdict] = []
    chatter = False
    lines: list[LogLine] = [journal_line(raw) for raw in _lines(text)]
    hang = _hang(lines)
    for line in lines:
        if line.framed:
            chatter = line.origin is Origin.PROGRAM and line.severity is Severity.CHATTER
        elif chatter:
            continue
        match line.origin:
            case Origin.KERNEL:
                kernel.append(line.text)
            case Origin.SYSTEMD:
                verdicts.append(judge_systemd(line.text, ours))
            case Origin.PROGRAM:
                verdict = judge_program_line(line)
                if verdict is not None:
                    verdicts.append(verdict)
    return worst((*judge_kernel(tuple(kernel), ours), *verdicts, *((hang,) if hang else ())))


def _hang(lines: list[LogLine]) -> Verdict | None:
    """A serving engine's own statistics: work waits, none runs, nothing moves."""
    texts = [line.text for line in lines]
    for first, second in pairwise(texts):
        if first.endswith("Avg generation throughput: 0.0 tokens/s") and first.startswith(
            "Avg prompt throughput: 0.0 tokens/s, "
        ):
            counts = second.removeprefix("Running: ").split(" reqs, Waiting: ")
            if len(counts) == 2 and counts[0] == "0" and not counts[1].startswith("0 reqs"):  # noqa: PLR2004 - two counts
                return Verdict(Remedy.PROCESS_RESTART, Label.ENGINE_HANG, (first, second))
    return None


def _judge_text(evidence: Text, ours: Ours) -> Verdict:
    match evidence.channel:
        case Channel.DMESG:
            return worst(judge_kernel(tuple(kernel_line(line) for line in _lines(evidence.text)), ours))
        case Channel.JOURNAL:
            return _journal(evidence.text, ours)
        case Channel.PYTHON_EXCEPTION:
            return worst(judge_traceback(evidence.text))
        case Channel.NVIDIA_SMI:
            return worst(tuple(judge_smi(line) for line in _lines(evidence.text)))
        case Channel.NVML:
            return worst(tuple(judge_nvml_text(line) for line in _lines(evidence.text)))
        case Channel.WINDOWS_EVENT:
            return judge_windows("", 0, evidence.text)


def judge_lines(evidence: KernelLines, ours: Ours) -> tuple[Verdict, ...]:
    """What lines printed together say: first the quiet hints among them, then the worst, if that is more than noise."""
    verdicts = judge_kernel(tuple(kernel_line(line) for line in evidence.lines), ours)
    hints = tuple(verdict for verdict in verdicts if verdict.quiet and verdict.label is not Label.BENIGN_NOISE)
    loudest = worst(verdicts)
    return hints if loudest.quiet else (*hints, loudest)


def possible_here(verdict: Verdict, platform: Platform) -> Verdict:
    """The verdict with a remedy that exists here: a reboot does for a real machine what `wsl --shutdown` does for a virtual."""
    if verdict.remedy is Remedy.WSL_SHUTDOWN and platform is Platform.NATIVE:
        return replace(verdict, remedy=Remedy.HOST_REBOOT)
    return verdict


def judge(evidence: Evidence, ours: Ours | None = None) -> Verdict:
    """What one piece of evidence calls for, taken by itself. Never raises, whatever the text."""
    mine = ours or Ours()
    match evidence:
        case Text():
            return _judge_text(evidence, mine)
        case KernelLines(lines):
            return worst(judge_kernel(tuple(kernel_line(line) for line in lines), mine))
        case Raised(kind, message, code):
            return judge_message(kind, message, code) or Verdict(Remedy.NONE, Label.BENIGN_NOISE, (f"{kind}: {message}",))
        case NvmlFailed(call, code):
            return judge_nvml(call, code)
        case SmiOutput(text):
            return worst(tuple(judge_smi(line) for line in _lines(text)))
        case WindowsEvent(provider, event, text):
            return judge_windows(provider, event, text)
        case Stalled(phase, seconds):
            return Verdict(Remedy.PROCESS_RESTART, Label.ENGINE_HANG, (f"no progress in {phase} for {seconds:.0f} s",))
        case Probed():
            return _judge_probe(evidence, mine)
