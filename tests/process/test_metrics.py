"""`/metrics` and `/top` of a whole daemon: what happens to people and engines is seen from outside."""

import asyncio
import os
import signal
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from daemon.api.metric_names import Name
from daemon.core.stream_view import StreamState
from ops.admin_socket import fetch_overview, socket_path
from tests.process.front import Front, front
from tests.process.house import until
from tests.process.test_daemon import SLOW, chat, client_of


def scrape(running: Front) -> tuple[set[str], dict[str, float]]:
    """Names of families, and values by `name` or `name{the label's values}`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{running.port}/metrics", timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    values: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            labels = ",".join(sample.labels[key] for key in sorted(sample.labels))
            values[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return {family.name for family in families}, values


async def test_figures_follow_a_stream_through_the_death_of_its_engine(model: Path, tmp_path: Path) -> None:
    with front(model, tmp_path, profile=SLOW) as running:
        path = socket_path(running.state)
        async with client_of(running) as client:
            reading = asyncio.ensure_future(chat(client, model.name, "one two three", 150))
            await until(lambda: any(view.generated > 5 for view in fetch_overview(path).streams), "tokens")
            (view,) = fetch_overview(path).streams
            assert (view.owner, view.state, view.engine, view.limit) == ("local", StreamState.ANSWERING, 0, 150)
            families, during = await asyncio.to_thread(scrape, running)
            os.kill(running.engine_pid(), signal.SIGKILL)
            assert (await reading)[1] == "length"
        families, after = await asyncio.to_thread(scrape, running)
        overview = fetch_overview(path)
    assert {name.full for name in Name} <= families
    assert during["exl3d_num_requests_running"] == during["exl3d_person_requests_running{local}"] == 1
    assert 0 < during["exl3d_kv_cache_pages_used{0}"] <= during["exl3d_kv_cache_pages{0}"] == 32
    assert during["exl3d_engine_resident_memory_bytes{0}"] > 1 << 20
    assert after["exl3d_num_requests_running"] == after["exl3d_open_streams"] == 0
    assert after["exl3d_generation_tokens_total"] == after["exl3d_person_generation_tokens_total{local}"] == 150
    assert after["exl3d_person_queue_time_seconds_count{local}"] == 1
    assert (after["exl3d_interruptions_total"], after["exl3d_engine_restarts_total{0}"]) == (1, 1)
    assert after["exl3d_engine_recovery_seconds{0}"] > 0
    assert after["exl3d_engine_recovering_requests{0}"] == 0
    assert sum(value for name, value in after.items() if name.startswith("exl3d_engine_state{")) == 1
    assert sum(value for name, value in after.items() if name.startswith("exl3d_incidents_total")) == 1
    assert overview.streams == ()
    assert overview.status.sharing.people["local"].served == 150
