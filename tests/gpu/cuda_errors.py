"""Real CUDA errors in processes made to be thrown away: their texts, whether they stick, and what exl3d makes of them.

For each of 700, 710 and 719: what torch raises must be taken for a lost device by the engine and judged as "a new process
cures it" by the daemon; whatever is called later in the same process must fail too; and a fresh process must compute.
"""

import asyncio
import subprocess
import sys

import msgspec

from daemon.core.faults import Ours, Probed, ProbeOutcome, Raised, Remedy, judge
from daemon.host.gpu_probe import GpuProbe
from tests.gpu.break_cuda import WAYS, Broken
from tests.gpu.report import PartFailed, Place

_LIMIT = 35.0
"""Seconds for a process to start, break and say so."""
_TRAPS = frozenset({715, 719})
"""What a trap is called: unspecified launch failure, or illegal instruction."""


class ErrorNumbers(msgspec.Struct, frozen=True):
    """One error."""

    wanted: int
    kind: str
    """The exception's type."""
    text: str
    code: int | None
    """CUDA's number, where torch's exception carries it."""
    sticky: bool
    """Whether all later calls in that process failed."""
    fault: str
    """What the engine takes it for."""
    remedy: str
    label: str
    """What the daemon judges."""
    fresh_process: str
    """How a fresh process fared afterwards."""


class CudaNumbers(msgspec.Struct, frozen=True):
    """All of them."""

    errors: list[ErrorNumbers]


def run(_place: Place) -> CudaNumbers:
    """See the module. Needs a GPU."""
    errors: list[ErrorNumbers] = []
    complaints: list[str] = []
    for number in WAYS:
        found = judged(_break(number), asyncio.run(GpuProbe(_LIMIT).probe()))
        errors.append(found)
        complaints += wrong(found)
    numbers = CudaNumbers(errors)
    if complaints:
        raise PartFailed("; ".join(complaints), numbers)
    return numbers


def _break(number: int) -> Broken:
    command = [sys.executable, "-m", "tests.gpu.break_cuda", str(number)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired as problem:
        raise PartFailed(f"{number}: the process hangs") from problem
    if done.returncode or not done.stdout:
        raise PartFailed(f"{number}: the process ended with code {done.returncode}; the log has more")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Broken)


def judged(broken: Broken, fresh: Probed | None) -> ErrorNumbers:
    """What engine and daemon make of it."""
    first = broken.first
    if first is None:
        raise PartFailed(f"{broken.wanted}: torch raised nothing")
    verdict = judge(Raised(first.kind, first.text, first.code), Ours())
    return ErrorNumbers(
        wanted=broken.wanted,
        kind=first.kind,
        text=first.text,
        code=first.code,
        sticky=all(words is not None for words in broken.later),
        fault=first.fault,
        remedy=verdict.remedy.name.lower(),
        label=verdict.label.value,
        fresh_process="unknown" if fresh is None else fresh.outcome.value,
    )


def wrong(found: ErrorNumbers) -> list[str]:
    """What the project believes of such errors and this one contradicts."""
    words: list[str] = []
    expected = _TRAPS if found.wanted in _TRAPS else {found.wanted}
    if found.code is not None and found.code not in expected:
        words.append(f"{found.wanted} came as {found.code}")
    if not found.sticky:
        words.append(f"{found.wanted} does not stick")
    if found.fault != "device":
        words.append(f"the engine takes {found.wanted} for {found.fault!r}")
    if found.remedy != Remedy.PROCESS_RESTART.name.lower():
        words.append(f"the daemon's remedy for {found.wanted} is {found.remedy}")
    if found.fresh_process != ProbeOutcome.WORKS.value:
        words.append(f"after {found.wanted} a fresh process: {found.fresh_process}")
    return words
