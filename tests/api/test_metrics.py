"""What `/metrics` says of a daemon in trouble, of people who share it, and of processes."""

import os
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from daemon.api.exposition import Exposition
from daemon.api.meters import MOST_PEOPLE, OTHERS, Meters, Rejection, rejection_of
from daemon.api.meters_status import ENGINE_STATES
from daemon.api.metric_names import Name
from daemon.core.admission_values import Reason
from daemon.core.admission_views import PersonFigures, SharingFigures
from daemon.core.errors import (
    Exl3dError,
    InvalidRequest,
    NotReady,
    Overloaded,
    PoisonousRequest,
    QuotaExceeded,
    RequestTimeout,
    ShuttingDown,
    Unauthorized,
)
from daemon.core.faults_values import Label
from daemon.core.gpu import GpuReading
from daemon.core.keys import SALT_BYTES, SECRET_BYTES, hash_key, new_key
from daemon.core.ports import Status
from daemon.core.senses import Sense, SenseState
from daemon.core.settings import KeySettings, Settings
from daemon.core.supervision_values import Backoff, Draining, Failed, Ready, Starting, Stopped, Stopping
from tests.api.conftest import Connect
from tests.api.fakes import STATUS, FakeServing, FakeWatching, application
from tests.api.reading import CHAT

PATH = "/v1/chat/completions"
ENGINE = STATUS.engines[0]
PEOPLE = SharingFigures(
    people={
        "ann": PersonFigures(running=2, queued=1, pages=30, warm_tokens=512, guaranteed=80_000, weight=2.0, waits=4, waited=6.0),
        "bob": PersonFigures(running=1),
    },
    queued={Reason.PAGES: 1},
    suspensions=3,
    resumes=2,
)
FULL = replace(
    STATUS,
    engines=(
        replace(ENGINE, pid=os.getpid(), interval=256, recovering=1, recovery_seconds=4.5),
        replace(ENGINE, state="starting", pid=None, pool=None, loading=0.25),
    ),
    sharing=PEOPLE,
    suspensions=3,
    interruptions=4,
    accepted_drafts=70,
    rejected_drafts=30,
    incidents={"cuda_error": 2},
    senses=(Sense("kernel log", SenseState.WORKING, "journal"), Sense("gpu", SenseState.ABSENT, "no driver")),
    gpus=(GpuReading("RTX 5070", "u", "0000:01:00", 11_000, 12_227, 61, 0.97, 203.5), GpuReading("silent", "v", "0000:02:00")),
)


class Watching(FakeWatching):
    """Knows what it was given."""

    def __init__(self, known: Status) -> None:
        super().__init__()
        self.known = known

    def status(self) -> Status:
        return self.known


async def samples(status: Status, meters: Meters | None = None) -> dict[str, float]:
    """`name{labels}` to value; a name that stands twice fails."""
    text = (await Exposition(meters or Meters(), Watching(status)).text()).decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = f"{sample.name}{{{','.join(f'{key}={value}' for key, value in sorted(sample.labels.items()))}}}"
            assert name not in found
            found[name.removesuffix("{}")] = sample.value
    return found


async def test_people_are_told_apart_and_waits_have_their_reasons() -> None:
    found = await samples(FULL)
    assert found["exl3d_num_requests_waiting_by_reason{reason=pages}"] == 1
    assert found["exl3d_num_requests_waiting_by_reason{reason=turn}"] == 0
    assert found["exl3d_person_requests_running{person=ann}"] == 2
    assert found["exl3d_person_requests_waiting{person=ann}"] == 1
    assert found["exl3d_person_kv_cache_pages{person=ann}"] == 30
    assert found["exl3d_person_warm_tokens{person=ann}"] == 512
    assert found["exl3d_person_guaranteed_tokens{person=ann}"] == 80_000
    assert found["exl3d_person_weight{person=ann}"] == 2
    assert found["exl3d_person_queue_time_seconds_count{person=ann}"] == 4
    assert found["exl3d_person_queue_time_seconds_sum{person=ann}"] == 6
    assert found["exl3d_person_requests_running{person=bob}"] == 1
    assert (found["exl3d_suspensions_total"], found["exl3d_resumes_total"]) == (3, 2)


async def test_each_engine_has_one_state_and_only_a_loaded_hybrid_has_recurrent_slots() -> None:
    found = await samples(FULL)
    states = {name for name, value in found.items() if name.startswith("exl3d_engine_state{") and value}
    assert states == {"exl3d_engine_state{engine=0,state=ready}", "exl3d_engine_state{engine=1,state=starting}"}
    assert found["exl3d_recurrent_slots{engine=0}"] == 16
    assert found["exl3d_recurrent_slots_used{engine=0}"] == 1
    assert found["exl3d_recurrent_usage{engine=0}"] == 1 / 16
    assert found["exl3d_engine_loading{engine=1}"] == 0.25
    assert found["exl3d_engine_recovering_requests{engine=0}"] == 1
    assert found["exl3d_engine_recovery_seconds{engine=0}"] == 4.5
    assert "exl3d_kv_cache_pages{engine=1}" not in found
    assert "exl3d_recurrent_slots{engine=0}" not in await samples(STATUS)


def test_states_of_engines_are_those_of_the_supervisor() -> None:
    kinds = (Stopped, Starting, Ready, Draining, Stopping, Backoff, Failed)
    assert sorted(ENGINE_STATES) == sorted(kind.__name__.lower() for kind in kinds)


async def test_trouble_drafts_and_gpus_are_told_and_what_a_driver_hides_is_left_out() -> None:
    found = await samples(FULL)
    assert found["exl3d_incidents_total{label=cuda_error}"] == 2
    assert found[f"exl3d_incidents_total{{label={Label.CUDA_OOM.value}}}"] == 0
    assert found["exl3d_interruptions_total"] == 4
    assert found["exl3d_spec_decode_num_accepted_tokens_total"] == 70
    assert found["exl3d_spec_decode_num_rejected_tokens_total"] == 30
    assert found["exl3d_sense_working{sense=kernel log}"] == 1
    assert found["exl3d_sense_working{sense=gpu}"] == 0
    assert found["exl3d_gpu_memory_used_bytes{gpu=0,name=RTX 5070}"] == 11_000 * 2**20
    assert found["exl3d_gpu_memory_total_bytes{gpu=0,name=RTX 5070}"] == 12_227 * 2**20
    assert found["exl3d_gpu_temperature_celsius{gpu=0,name=RTX 5070}"] == 61
    assert found["exl3d_gpu_utilisation{gpu=0,name=RTX 5070}"] == 0.97
    assert found["exl3d_gpu_power_watts{gpu=0,name=RTX 5070}"] == 203.5
    assert not [name for name in found if "name=silent" in name]


async def test_memory_of_front_and_engines_is_told_and_a_process_that_is_gone_is_left_out() -> None:
    found = await samples(FULL)
    assert found["exl3d_process_resident_memory_bytes"] > 1 << 20
    assert found["exl3d_engine_resident_memory_bytes{engine=0}"] > 1 << 20
    assert found["exl3d_process_open_fds"] > 2
    assert found["exl3d_asyncio_tasks"] >= 1
    gone = replace(STATUS, engines=(replace(ENGINE, pid=2**22 + 1),))
    assert not [name for name in await samples(gone) if name.startswith("exl3d_engine_resident")]


async def test_people_beyond_the_limit_share_one_series() -> None:
    meters = Meters()
    for number in range(MOST_PEOPLE + 20):
        meters.person(f"p{number}").generated += 1
    late = SharingFigures(people={f"p{number}": PersonFigures(running=1) for number in range(MOST_PEOPLE + 5)})
    found = await samples(replace(STATUS, sharing=late), meters)
    tokens = {name: value for name, value in found.items() if name.startswith("exl3d_person_generation_tokens_total")}
    assert len(tokens) == MOST_PEOPLE + 1
    assert tokens[f"exl3d_person_generation_tokens_total{{person={OTHERS}}}"] == 20
    assert found[f"exl3d_person_requests_running{{person={OTHERS}}}"] == 5
    assert found["exl3d_generation_tokens_total"] == MOST_PEOPLE + 20


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Overloaded("", 1.0, own_limit=True), Rejection.OWN_LIMIT),
        (Overloaded("", 1.0, own_limit=False), Rejection.SERVER_FULL),
        (QuotaExceeded(10, 0, 0, 60.0), Rejection.QUOTA),
        (NotReady("", 1.0), Rejection.NO_ENGINE),
        (ShuttingDown(), Rejection.SHUTTING_DOWN),
        (PoisonousRequest(), Rejection.POISON),
        (Unauthorized(), Rejection.NO_KEY),
        (RequestTimeout(""), None),
        (InvalidRequest("no"), None),
        (ValueError(), None),
    ],
)
def test_rejection_has_its_reason_and_other_errors_are_none(error: Exl3dError, expected: Rejection | None) -> None:
    assert rejection_of(error) is expected


@pytest.mark.parametrize("stream", [True, False])
async def test_rejected_requests_are_counted_by_reason_and_person(connect: Connect, stream: bool) -> None:
    key = new_key(b"s" * SALT_BYTES, b"k" * SECRET_BYTES)
    chosen = Settings(keys=[KeySettings("ann", hash_key(key, b"s" * SALT_BYTES))])
    serving = FakeServing(refusal=Overloaded("full", 2.0, own_limit=True))
    client = await connect(application(serving, chosen))
    headers = {"Authorization": f"Bearer {key}"}
    assert (await client.post(PATH, json={**CHAT, "stream": stream}, headers=headers)).status == 429
    assert (await client.post(PATH, json=CHAT)).status == 401
    assert (await client.get("/v1/models", headers=headers)).status == 200
    text = await (await client.get("/metrics", headers=headers)).text()
    assert 'exl3d_rejections_total{person="ann",reason="quota"} 0.0' in text
    assert 'exl3d_rejections_total{person="ann",reason="own_limit"} 1.0' in text
    assert 'exl3d_rejections_total{person="",reason="no_key"} 1.0' in text


async def test_every_name_of_the_list_is_exposed_with_its_kind_and_labels() -> None:
    text = (await Exposition(Meters(), Watching(FULL)).text()).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name in Name:
        family = families.pop(name.full)
        assert (family.type, family.documentation) == (name.value.kind.value, name.value.help)
        for sample in family.samples:
            assert sample.name in name.samples
            assert set(sample.labels) - {"le"} == set(name.value.labels)
    assert all(name.startswith("exl3d_process_") for name in families)
