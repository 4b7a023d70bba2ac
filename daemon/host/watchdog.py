"""The watchdog: joins what the kernel, the driver, the engines and a probe say into verdicts, and hands them to the supervisors.

It decides about nothing itself: `core.faults` judges, `core.faults_fold` joins what belongs together, and what comes of it is
posted as `Judged`. Only structured channels reach it. No text of a request does, so no prompt can make it act.
"""

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Protocol

from daemon.core.faults import NvmlFailed, Probed, ProbeOutcome, Raised, Stalled, Verdict, judge, judge_lines, possible_here
from daemon.core.faults_fold import Correlation, Incident, OwnKill, Seen, TimedEvidence, correlate
from daemon.core.faults_kernel import parse_xid
from daemon.core.faults_log import kernel_line
from daemon.core.faults_values import Label, Remedy
from daemon.core.gpu import GpuReading
from daemon.core.incidents import Incidents
from daemon.core.remedies import DEVICE_WIDE
from daemon.core.senses import Sense, SenseState
from daemon.core.settings import WatchdogSettings
from daemon.core.supervision_events import Judged
from daemon.core.wire import Fatal, FatalClass, Step
from daemon.host.gpu_probe import GpuProbe
from daemon.host.gpu_telemetry import GpuTelemetry
from daemon.host.kernel_log import KernelGroup, KernelLog
from daemon.host.kin import Kin, Surroundings, surroundings
from daemon.host.nvml import Nvml, PyNvml
from daemon.host.pace_watch import PaceWatch
from daemon.host.vacancy import MemoryGauge

_log = logging.getLogger("exl3d.watchdog")

PROBE_PAUSE = 60.0
"""Seconds between two probes: each is one more client of a driver that is perhaps in trouble."""
PROBES_AN_HOUR = 6
_HOUR = 3600.0
_REPEATED = 600.0
"""Seconds within which a second end of an engine in trouble says that the device may be the cause."""
ASK_SECONDS = 4.0
"""Between a verdict and the question to an idle engine: a token at once would say nothing about what came after."""
_ANYWHERE = frozenset({Label.HOST_OOM, Label.PROCESS_DSTATE, Label.GUEST_KERNEL_CRASH})
"""What the kernel says that matters to engines on a CPU too."""
_WORDS = 300
"""Characters of evidence in a verdict's words."""
_FRESH = 30.0
"""Age in seconds up to which a reading of the GPUs' memory counts."""
_EXCEPTION = re.compile(r"(?:^|: )(?P<kind>[A-Z]\w*Error): (?P<message>.*)")


class Follower(Protocol):
    """A source that runs on its own."""

    async def run(self) -> None:
        """Until cancelled; returns early only where it is not permitted or not there."""
        ...

    def sense(self) -> Sense:
        """How it does."""
        ...


class Prober(Protocol):
    """Tries the GPU from a fresh process."""

    async def probe(self) -> Probed | None:
        """How it fared; None where nothing was learned."""
        ...

    async def close(self) -> None:
        """End one that runs."""
        ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Where evidence comes from. None: this machine's own, as the settings want it."""

    kernel: Callable[[Callable[[KernelGroup], None]], Follower] | None = None
    """Makes a follower of the kernel's messages."""
    nvml: Nvml | None = None
    prober: Prober | None = None
    surroundings: Callable[[], Surroundings] = surroundings
    """Looks where the daemon runs, in a thread."""


@dataclass(slots=True)
class _Probing:
    """When probes were made."""

    at: deque[float] = field(default_factory=lambda: deque[float](maxlen=PROBES_AN_HOUR))

    def allowed(self, now: float) -> bool:
        """Whether another one may be made now."""
        if self.at and now - self.at[-1] < PROBE_PAUSE:
            return False
        return len(self.at) < PROBES_AN_HOUR or now - self.at[0] >= _HOUR


class Watchdog:
    """See the module. Implements `witness.Witness`; tell `stepped` of every step (`overseen.Overseen` does).

    `verdicts` gets each verdict with the place of the engine it is about; None: all of them. `gpu`: whether engines use one.
    `ask` has idle engines generate a token: called after a verdict that only tokens can disprove. It must not raise.
    """

    def __init__(
        self,
        settings: WatchdogSettings,
        *,
        verdicts: Callable[[int | None, Judged], None],
        incidents: Incidents,
        gpu: bool,
        ask: Callable[[], Awaitable[object]] | None = None,
        sources: Sources | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        given = sources or Sources()
        self._settings = settings
        self._verdicts = verdicts
        self._gpu = gpu
        self._ask = ask
        self._clock = clock
        self._kin = Kin(clock)
        self._surroundings = given.surroundings
        self._settled = asyncio.Event()
        """It is known where we are."""
        self._folded = Correlation()
        self._groups: asyncio.Queue[KernelGroup] = asyncio.Queue(maxsize=1024)
        self._flooded = False
        self._paces = PaceWatch(settings.degraded_factor, incidents, wall)
        self._probing = _Probing()
        self._last_end = float("-inf")
        """When an engine last ended that was not asked to."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: dict[str, Sense] = {}
        """Sources that ended by a mistake of ours, by name: what they last said of themselves is not true any more."""
        self._kernel = (given.kernel or KernelLog)(self.kernel_said) if settings.kernel_log else None
        self._telemetry = self._read_gpus(given.nvml or PyNvml()) if settings.nvml and gpu else None
        mine = GpuProbe(settings.probe_seconds, on_kill=lambda: self._take(OwnKill(self._clock(), "probe")))
        self._prober: Prober | None = (given.prober or mine) if settings.probe and gpu else None

    def _read_gpus(self, nvml: Nvml) -> GpuTelemetry:
        return GpuTelemetry(
            nvml,
            period=self._settings.nvml_seconds,
            deadline=self._settings.nvml_deadline_seconds,
            on_failure=self.nvml_failed,
            on_hang=self.nvml_hangs,
            clock=self._clock,
        )

    # --- what others ask --------------------------------------------------------------------------------------------

    def senses(self) -> tuple[Sense, ...]:
        """What is looked at, and why something is not."""
        kernel = self._kernel.sense() if self._kernel else Sense("kernel log", SenseState.OFF, "watchdog.kernel_log is false")
        nvml = (
            self._telemetry.sense()
            if self._telemetry
            else Sense("nvml", SenseState.OFF, "watchdog.nvml is false, or no GPU is used")
        )
        probe = Sense("probe", SenseState.WORKING, "on suspicion only")
        if self._prober is None:
            probe = Sense("probe", SenseState.OFF, "watchdog.probe is false, or no GPU is used")
        return tuple(self._broken.get(sense.name, sense) for sense in (kernel, nvml, probe))

    def readings(self) -> tuple[GpuReading, ...]:
        """The last good values of each GPU, for status and metrics."""
        return () if self._telemetry is None else self._telemetry.readings()

    @property
    def gauge(self) -> MemoryGauge | None:
        """For `vacancy.Vacancy`: reads how much GPU memory is used."""
        return self._telemetry

    async def run(self) -> None:
        """Watch until cancelled. A source that breaks is said once and does without."""
        self._kin.settle(await asyncio.to_thread(self._surroundings))
        self._settled.set()
        followers = [follower for follower in (self._kernel, self._telemetry) if follower is not None]
        try:
            async with asyncio.TaskGroup() as group:
                for follower in followers:
                    group.create_task(self._guarded(follower), name=f"watchdog: {follower.sense().name}")
                group.create_task(self._judge_groups(), name="watchdog")
        finally:
            await self._close()

    async def _guarded(self, follower: Follower) -> None:
        try:
            await follower.run()
        except Exception as problem:  # noqa: BLE001 - a source that breaks in a way nobody thought of must not end the daemon
            name = follower.sense().name
            _log.exception("the watchdog goes on without its %s", name)
            self._broken[name] = Sense(name, SenseState.STALE, f"broken: {type(problem).__name__}; the log says more")

    async def _close(self) -> None:
        await self._paces.close()
        if self._prober is not None:
            await self._prober.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- what the sources say ---------------------------------------------------------------------------------------

    def kernel_said(self, group: KernelGroup) -> None:
        """Lines of the kernel. They are judged once it is known whose processes they speak of."""
        if self._groups.full():
            if not self._flooded:
                self._flooded = True
                _log.warning("the kernel says more than can be judged; some of it is left out")
            return
        self._groups.put_nowait(group)

    async def _judge_groups(self) -> None:
        while True:
            groups = [await self._groups.get()]
            await self._kin.look()
            self._kin.on_gpus(self.readings())
            while not self._groups.empty():
                groups.append(self._groups.get_nowait())
            self._flooded = False
            for group in groups:
                self._judge_group(group)
                await asyncio.sleep(0)

    def _judge_group(self, group: KernelGroup) -> None:
        try:
            verdicts = judge_lines(group.lines, self._kin.ours())
        except Exception:  # noqa: BLE001 - a line that breaks a rule must not end the watching
            _log.exception("lines of the kernel could not be judged")
            return
        for verdict in verdicts:
            if self._gpu or verdict.label in _ANYWHERE:
                self._take(Seen(group.t, verdict, self._speaks_of(verdict)))

    def _speaks_of(self, verdict: Verdict) -> str:
        """The engine whose process a kernel line names; empty: the machine."""
        for line in verdict.evidence:
            xid = parse_xid(kernel_line(line))
            if xid is not None and xid.pid is not None:
                return self._kin.whose(xid.pid) or ""
        return ""

    def nvml_failed(self, failure: NvmlFailed) -> None:
        """A call that says something about a GPU. Where that calls for no more than a new engine, a probe must confirm it."""
        _log.warning("NVML: %s failed with %d", failure.call, failure.code)
        verdict = judge(failure, self._kin.ours())
        if verdict.remedy > Remedy.ENGINE_REBUILD:
            self._take(Seen(self._clock(), verdict))
        self._suspect(f"NVML: {failure.call} failed with {failure.code}")

    def nvml_hangs(self, seconds: float) -> None:
        """A call that does not come back."""
        self._suspect(f"NVML has not answered for {seconds:.0f} s")

    # --- what the supervisors say (witness.Witness) -----------------------------------------------------------------

    def spawned(self, engine: int, boot: int, pid: int) -> None:
        """See Witness."""
        self._kin.joined(_name(engine, boot), pid)
        self._paces.spawned(engine, boot)

    def own_kill(self, engine: int, boot: int) -> None:
        """See Witness."""
        self._take(OwnKill(self._clock(), _name(engine, boot)))

    def fatal(self, engine: int, boot: int, fatal: Fatal) -> None:
        """See Witness."""
        if fatal.kind is not FatalClass.DEVICE:  # the supervisor knows what to do about the others without a verdict
            return
        line = fatal.detail.partition("\n")[0]
        found = _EXCEPTION.search(line)
        evidence = Raised(found["kind"], found["message"]) if found else Raised("RuntimeError", line)
        verdict = judge(evidence, self._kin.ours())
        if verdict.quiet:  # the engine's own classification counts: the device is lost to it
            verdict = Verdict(Remedy.PROCESS_RESTART, Label.CUDA_UNKNOWN, (line,))
        self._take(Seen(self._clock(), verdict, _name(engine, boot)), told=True)

    def hung(self, engine: int, boot: int, phase: str, seconds: float) -> None:
        """See Witness."""
        self._take(Seen(self._clock(), judge(Stalled(phase, seconds)), _name(engine, boot)), told=True)

    def gone(self, engine: int, boot: int, pid: int, code: int) -> None:
        """See Witness."""
        _log.debug("engine %d, boot %d (process %d) ended with %d", engine, boot, pid, code)
        name, now = _name(engine, boot), self._clock()
        self._kin.left(name)
        self._paces.gone(engine, boot)
        incident = self._folded.incident
        if incident is None or incident.about != name:
            return
        if incident.label is Label.ENGINE_HANG:
            self._suspect("an engine hung")
        elif now - self._last_end < _REPEATED:
            self._suspect("engines keep failing on the device")
        self._last_end = now

    def stepped(self, engine: int, step: Step) -> None:
        """An engine did a step. Called often: cheap."""
        self._paces.stepped(engine, step, self._fullness())

    def _fullness(self) -> float | None:
        """How full the fullest of our GPUs is, 0 to 1; None where nothing is known of late."""
        if self._telemetry is None or (self._telemetry.age() or 0.0) > _FRESH:
            return None
        ours = self._kin.gpus
        return max(
            (
                gpu.fullness
                for gpu in self._telemetry.readings()
                if gpu.fullness is not None and (ours is None or gpu.pci in ours)
            ),
            default=None,
        )

    # --- what comes of it -------------------------------------------------------------------------------------------

    def _take(self, event: TimedEvidence, *, told: bool = False) -> None:
        """Join an event with what came before. `told`: a supervisor told us, and knows about a plain restart itself."""
        if isinstance(event, Seen):
            event = replace(event, verdict=possible_here(event.verdict, self._kin.ours().platform))
        self._folded, effects = correlate(self._folded, event)
        for effect in effects:
            self._hand_on(effect.incident, event.t, told=told)

    def _hand_on(self, incident: Incident, t: float, *, told: bool) -> None:
        words = "; ".join(incident.evidence)[:_WORDS]
        _log.warning("%s, which calls for %s: %s", incident.label.value, incident.remedy.name.lower(), words)
        if told and incident.remedy is Remedy.PROCESS_RESTART and incident.label not in DEVICE_WIDE:
            return
        engine, boot = _place(incident.about)
        self._verdicts(engine, Judged(t, boot, incident.remedy, incident.label, words))
        if incident.remedy <= Remedy.ENGINE_REBUILD and self._ask is not None:
            self._later(self._have_asked(self._ask), "doubt")

    async def _have_asked(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Give an idle engine that is in doubt something to prove itself with."""
        await asyncio.sleep(ASK_SECONDS)
        await ask()

    # --- the probe --------------------------------------------------------------------------------------------------

    def _suspect(self, why: str) -> None:
        """Something calls for a look at the GPU from outside."""
        now = self._clock()
        if self._prober is None or not self._probing.allowed(now):
            return
        self._probing.at.append(now)
        _log.warning("the GPU is probed: %s", why)
        self._later(self._probe(self._prober, why), "gpu probe")

    def _later(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            _log.error("the watchdog's %s failed", task.get_name(), exc_info=problem)

    async def _probe(self, prober: Prober, why: str) -> None:
        await self._settled.wait()
        if not self._kin.near_gpu:  # an engine on a CPU proves nothing about a card
            return
        before = self._paces.tokens
        found = await prober.probe()
        if found is None:
            return
        if found.outcome is ProbeOutcome.TIMED_OUT and self._paces.tokens > before:
            _log.info("a probe took too long (%s), but engines generate: the device works", why)
            return
        self._take(Seen(self._clock(), judge(found, self._kin.ours())))


def _name(engine: int, boot: int) -> str:
    """An engine's life, as evidence names it."""
    return f"{engine}:{boot}"


def _place(about: str) -> tuple[int | None, int | None]:
    """The place and boot of `_name`; nothing for the machine."""
    engine, _, boot = about.partition(":")
    return (int(engine), int(boot)) if boot else (None, None)
