"""What the rest of the daemon knows of itself (`core.ports.Status`), as values of metrics."""

from collections.abc import Callable, Sequence
from typing import get_args

from daemon.api.metric_names import Name
from daemon.api.metric_sheet import Sheet
from daemon.core.admission_values import Reason
from daemon.core.admission_views import SharingFigures
from daemon.core.faults_values import Label
from daemon.core.gpu import GpuReading
from daemon.core.ports import EngineStatus, Status
from daemon.core.prefix_watch import MissCause, PrefixFigures
from daemon.core.senses import SenseState
from daemon.core.supervision_values import Mode

_MIB = 2**20
ENGINE_STATES: tuple[str, ...] = tuple(kind.__name__.lower() for kind in get_args(Mode))
"""Names of the supervisor's states, as `EngineStatus.state` has them."""


def fill(sheet: Sheet, status: Status, label: Callable[[str], str]) -> None:
    """Put a status on a sheet. `label` gives the label of a person."""
    sheet.put(Name.INFO, 1, status.version, status.model)
    for name, value in (
        (Name.READY, status.ready),
        (Name.UPTIME, status.uptime),
        (Name.RUNNING, status.running),
        (Name.WAITING, status.queued),
        (Name.ACCEPTED_DRAFTS, status.accepted_drafts),
        (Name.REJECTED_DRAFTS, status.rejected_drafts),
        (Name.INTERRUPTIONS, status.interruptions),
        (Name.SUSPENSIONS, status.suspensions),
        (Name.REPREFILLED, status.reprefilled_tokens),
        (Name.CONVICTIONS, status.convictions),
    ):
        sheet.put(name, value)
    for known in Label:
        sheet.put(Name.INCIDENTS, 0, known.value)  # a counter that is born at 1 never rises in Prometheus's eyes
    for kind, count in status.incidents.items():
        sheet.put(Name.INCIDENTS, count, kind)
    for sense in status.senses:
        sheet.put(Name.SENSE, sense.state is SenseState.WORKING, sense.name)
    for number, engine in enumerate(status.engines):
        _engine(sheet, str(number), engine)
    _prefix(sheet, status.prefix)
    _sharing(sheet, status.sharing, label)
    _gpus(sheet, status.gpus)


def _engine(sheet: Sheet, number: str, engine: EngineStatus) -> None:
    for state in ENGINE_STATES:
        sheet.put(Name.ENGINE_STATE, state == engine.state, number, state)
    sheet.put(Name.ENGINE_UPTIME, engine.uptime, number)
    sheet.put(Name.RESTARTS, engine.restarts, number)
    sheet.put(Name.RECOVERING, engine.recovering, number)
    sheet.put(Name.RECOVERY_SECONDS, engine.recovery_seconds, number)
    if engine.loading is not None:
        sheet.put(Name.ENGINE_LOADING, engine.loading, number)
    pool = engine.pool
    if pool is None:
        return
    sheet.put(Name.KV_PAGES, pool.pages, number)
    sheet.put(Name.KV_PAGES_USED, pool.referenced, number)
    sheet.put(Name.KV_PAGE_TOKENS, engine.page, number)
    sheet.put(Name.KV_USAGE, pool.referenced / pool.pages if pool.pages else 0.0, number)
    sheet.put(Name.BATCH_SLOTS, pool.slots, number)
    sheet.put(Name.BATCH_SLOTS_USED, pool.running, number)
    sheet.put(Name.PENDING, pool.pending, number)
    if engine.interval:
        sheet.put(Name.RECURRENT_SLOTS, pool.slots, number)
        sheet.put(Name.RECURRENT_SLOTS_USED, pool.running, number)
        sheet.put(Name.RECURRENT_USAGE, pool.running / pool.slots if pool.slots else 0.0, number)


def _prefix(sheet: Sheet, figures: PrefixFigures) -> None:
    sheet.put(Name.PREFIX_QUERIES, figures.queries)
    sheet.put(Name.PREFIX_HITS, figures.hits)
    for cause in MissCause:
        sheet.put(Name.SILENT_MISSES, figures.count(cause), cause.value)


def _sharing(sheet: Sheet, figures: SharingFigures, label: Callable[[str], str]) -> None:
    sheet.put(Name.RESUMES, figures.resumes)
    for reason in Reason:
        sheet.put(Name.WAITING_BY_REASON, figures.queued.get(reason, 0), reason.value)
    for owner, person in figures.people.items():
        name = label(owner)
        sheet.put(Name.PERSON_RUNNING, person.running, name)
        sheet.put(Name.PERSON_WAITING, person.queued, name)
        sheet.put(Name.PERSON_PAGES, person.pages, name)
        sheet.put(Name.PERSON_WARM, person.warm_tokens, name)
        sheet.put(Name.PERSON_GUARANTEED, person.guaranteed, name)
        sheet.put(Name.PERSON_WEIGHT, person.weight, name)
        sheet.put_summary(Name.PERSON_WAITS, person.waits, person.waited, name)


def _gpus(sheet: Sheet, gpus: Sequence[GpuReading]) -> None:
    for number, gpu in enumerate(gpus):
        for name, value, scale in (
            (Name.GPU_MEMORY_USED, gpu.used_mib, _MIB),
            (Name.GPU_MEMORY, gpu.total_mib, _MIB),
            (Name.GPU_TEMPERATURE, gpu.temperature, 1),
            (Name.GPU_UTILISATION, gpu.utilisation, 1),
            (Name.GPU_POWER, gpu.power_watts, 1),
        ):
            if value is not None:
                sheet.put(name, value * scale, str(number), gpu.name)
