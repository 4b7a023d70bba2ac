"""/v1/models, /health, /metrics and /version."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from daemon.core.errors import GenerationFailed
from daemon.core.ports import Health
from daemon.core.wire import FailureClass
from tests.api.conftest import Client, Connect
from tests.api.fakes import CARD, FakeServing, FakeWatching, application, breaks, says
from tests.api.reading import CHAT, error_of, events, until

PATH = "/v1/chat/completions"


async def samples(client: Client) -> dict[str, float]:
    """`name{labels}` to value."""
    response = await client.get("/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/plain")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(await response.text()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


async def test_models_list_gives_the_context_under_every_name_clients_look_for(connect: Connect) -> None:
    client = await connect(application())
    body = await (await client.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [entry["id"] for entry in body["data"]] == ["fake-model", "other-name"]
    entry = body["data"][0]
    for name in ("max_model_len", "context_length", "max_context_length"):
        assert entry[name] == CARD.context
    assert entry["created"] == CARD.created


async def test_one_model_is_found_by_name_and_alias_even_with_slashes(connect: Connect) -> None:
    serving = FakeServing(served=replace(CARD, aliases=("org/some-model",)))
    client = await connect(application(serving))
    assert (await (await client.get("/v1/models/fake-model")).json())["id"] == "fake-model"
    assert (await (await client.get("/v1/models/org/some-model")).json())["root"] == "fake-model"
    response = await client.get("/v1/models/nothing")
    assert response.status == 404
    assert (await error_of(response))["code"] == "model_not_found"


async def test_health_follows_the_evidence_at_each_call(connect: Connect) -> None:
    watching = FakeWatching()
    client = await connect(application(watching=watching))
    for path in ("/health", "/health/ready", "/health/deep", "/health/live"):
        assert (await client.get(path)).status == 200
    watching.told = Health(ok=False, reason="the engine is loading: 40 %")
    for path in ("/health", "/health/ready"):
        response = await client.get(path)
        assert response.status == 503
        assert response.headers["Retry-After"]
        assert await response.json() == {"status": "unavailable", "reason": "the engine is loading: 40 %"}
    assert (await client.get("/health/live")).status == 200
    assert (await client.get("/health/deep")).status == 200
    watching.told = Health(ok=True, reason="well")
    assert (await client.get("/health")).status == 200


async def test_version_is_told_as_vllm_does(connect: Connect) -> None:
    client = await connect(application())
    assert await (await client.get("/version")).json() == {"version": "9.9.9"}


async def test_metrics_count_requests_tokens_and_times(connect: Connect) -> None:
    client = await connect(application(FakeServing(says("a", "b", "c", cached=5))))
    await (await client.post(PATH, json=CHAT)).read()
    await events(await client.post(PATH, json={**CHAT, "stream": True}))
    await client.post(PATH, json={**CHAT, "temperature": 9})
    found = await samples(client)
    base = "exl3d_requests_total{endpoint=/v1/chat/completions,"
    assert found[base + "outcome=stop,person=local}"] == 2
    assert found[base + "outcome=invalid_value,person=local}"] == 1
    prompt = len("UserMessage: Hi\n")
    assert found["exl3d_prompt_tokens_total"] == 2 * prompt
    assert found["exl3d_prompt_tokens_cached_total"] == 10
    assert found["exl3d_generation_tokens_total"] == 6
    assert found["exl3d_person_prompt_tokens_total{person=local}"] == 2 * prompt
    assert found["exl3d_person_prompt_tokens_cached_total{person=local}"] == 10
    assert found["exl3d_person_generation_tokens_total{person=local}"] == 6
    assert found["exl3d_request_prefill_time_seconds_count"] == 2
    assert found["exl3d_request_decode_time_seconds_count"] == 2
    assert found["exl3d_time_to_first_token_seconds_count"] == 2
    assert found["exl3d_inter_token_latency_seconds_count"] == 4
    assert found["exl3d_e2e_request_latency_seconds_count"] == 2
    assert found["exl3d_request_queue_time_seconds_sum"] == 0.5
    assert found["exl3d_request_generation_tokens_bucket{le=16.0}"] == 2
    assert found["exl3d_open_streams"] == 0


async def test_metrics_show_the_state_of_pool_and_engine(connect: Connect) -> None:
    client = await connect(application())
    found = await samples(client)
    assert found["exl3d_ready"] == 1
    assert found["exl3d_num_requests_running"] == 1
    assert found["exl3d_num_requests_waiting"] == 2
    assert found["exl3d_kv_cache_pages{engine=0}"] == 320
    assert found["exl3d_kv_cache_pages_used{engine=0}"] == 12
    assert found["exl3d_kv_cache_usage_perc{engine=0}"] == 12 / 320
    assert found["exl3d_batch_slots{engine=0}"] == 16
    states = {name: value for name, value in found.items() if name.startswith("exl3d_engine_state{")}
    assert [name for name, value in states.items() if value] == ["exl3d_engine_state{engine=0,state=ready}"]
    assert len(states) == 7
    assert found["exl3d_engine_restarts_total{engine=0}"] == 3
    assert found["exl3d_info{model=fake-model,version=9.9.9}"] == 1


async def test_metrics_count_a_client_that_hung_up(connect: Connect) -> None:
    serving = FakeServing(says("a", "b"), hold=2)
    client = await connect(application(serving))
    asked = asyncio.create_task(client.post(PATH, json=CHAT))
    await until(lambda: len(serving.streams) == 1)
    assert (await samples(client))["exl3d_open_streams"] == 1
    asked.cancel()
    await asyncio.wait_for(serving.streams[0].cancelled.wait(), 60)
    found = await samples(client)
    assert found["exl3d_requests_total{endpoint=/v1/chat/completions,outcome=cancelled,person=local}"] == 1
    assert found["exl3d_open_streams"] == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_metrics_count_an_answer_that_broke_by_its_code(connect: Connect, stream: bool) -> None:
    client = await connect(application(FakeServing(breaks(GenerationFailed(FailureClass.SAMPLING, "NaN"), "a"))))
    await (await client.post(PATH, json={**CHAT, "stream": stream})).read()
    found = await samples(client)
    assert found["exl3d_requests_total{endpoint=/v1/chat/completions,outcome=generation_failed,person=local}"] == 1
