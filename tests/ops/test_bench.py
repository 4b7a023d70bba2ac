"""The load generator sees what a server sends, and sums it up truly."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.bench import client
from ops.bench.processes import cpu_seconds
from ops.bench.summary import percentile, spread, summarise
from ops.bench.values import Endpoint, Load, Sample, Target
from ops.errors import BenchFailed
from tests.ops.openai_server import Server, serving

LOAD = Load(streams=2, requests=5, tokens=7, prompt_tokens=20)
SAMPLE = Sample(sent=1.0, first=1.5, last=2.5, gaps=(0.25, 0.75), prompt_tokens=10, cached_tokens=4, completion_tokens=3)


def _target(server: Server, endpoint: Endpoint = Endpoint.CHAT) -> Target:
    return Target(server.base_url, "tiny", "secret", endpoint)


async def test_first_model_is_the_one_listed_first() -> None:
    async with serving() as server:
        assert await client.first_model(server.base_url, None) == "tiny"


async def test_server_that_is_not_there_is_named() -> None:
    with pytest.raises(BenchFailed, match=r"127\.0\.0\.1:9"):
        await client.first_model("http://127.0.0.1:9/v1", None)


@pytest.mark.parametrize("endpoint", list(Endpoint))
async def test_every_request_is_sent_and_every_token_counted(endpoint: Endpoint) -> None:
    """As many at once as there are streams, never more; texts timed, usage taken from the server."""
    async with serving() as server:
        samples = await client.run(_target(server, endpoint), LOAD)
    assert [sample.problem for sample in samples] == [None] * 5
    assert all(sample.completion_tokens == 7 and sample.prompt_tokens == 10 and sample.cached_tokens == 4 for sample in samples)
    assert all(len(sample.gaps) == 6 for sample in samples)
    assert all(sample.first is not None and sample.sent <= sample.first <= sample.last for sample in samples)
    assert server.most_together <= 2
    assert set(server.keys) == {"Bearer secret"}
    assert set(server.paths) == {"/v1/chat/completions" if endpoint is Endpoint.CHAT else "/v1/completions"}


async def test_bodies_say_what_the_load_says() -> None:
    async with serving() as server:
        await client.run(_target(server), LOAD)
        await client.run(_target(server), replace(LOAD, ignore_eos=False, temperature=0.0))
    first, last = server.asked[0], server.asked[-1]
    assert (first["max_tokens"], first["ignore_eos"], first["stream"]) == (7, True, True)
    assert "temperature" not in first
    assert "ignore_eos" not in last
    assert last["temperature"] == 0.0


def test_prompts_differ_unless_they_are_to_be_shared() -> None:
    def texts(load: Load) -> set[str]:
        return {client.prompt_text(load, number) for number in range(5)}

    assert len(texts(LOAD)) == 5
    assert len(texts(replace(LOAD, shared_prompt=True))) == 1
    assert texts(LOAD) == texts(LOAD)
    assert texts(LOAD).isdisjoint(texts(replace(LOAD, seed=1)))
    assert len(client.prompt_text(LOAD, 0).split()) == 20


async def test_events_cut_anywhere_and_written_with_carriage_returns_are_read() -> None:
    """Two halves of an event arrive apart, and some servers end lines as HTTP does."""
    async with serving() as server:
        held = bytearray()

        def cut(_number: int, event: bytes) -> bytes:
            held.extend(event.replace(b"\n", b"\r\n"))
            end = len(held) if event.startswith(b"data: [DONE]") else max(0, len(held) - 9)
            part = bytes(held[:end])
            del held[:end]
            return part

        server.spoil = cut
        (sample,) = await client.run(_target(server), replace(LOAD, streams=1, requests=1))
    assert (sample.problem, sample.completion_tokens) == (None, 7)


async def test_refused_request_is_a_failure_with_its_reason() -> None:
    async with serving() as server:
        server.status = 503
        samples = await client.run(_target(server), LOAD)
    level = summarise(LOAD, samples)
    assert (level.failed, level.completion_tokens, level.ttft_ms) == (5, 0, None)
    assert level.problems == {'HTTP 503: {"error": {"message": "no room"}}': 5}


async def test_stream_that_stops_short_is_a_failure() -> None:
    async with serving() as server:
        server.spoil = lambda _number, event: b"" if b"[DONE]" in event else event
        (sample,) = await client.run(_target(server), replace(LOAD, requests=1))
    assert sample.problem == "the stream ended without [DONE]"


async def test_error_inside_a_stream_is_a_failure_with_its_words() -> None:
    async with serving() as server:
        server.spoil = lambda number, event: b'data: {"error": {"message": "engine died"}}\n\n' if number == 3 else event
        (sample,) = await client.run(_target(server), replace(LOAD, requests=1))
    assert sample.problem is not None
    assert "engine died" in sample.problem


def test_summary_counts_rates_and_times() -> None:
    later = replace(SAMPLE, sent=2.0, first=3.0, last=5.0, gaps=(1.0, 1.0))
    failed = replace(SAMPLE, problem="HTTP 500: no", first=None)
    level = summarise(Load(2, 3, 3, 10), [SAMPLE, later, failed])
    assert (level.requests, level.failed, level.seconds) == (3, 1, 4.0)
    assert (level.prompt_tokens, level.cached_tokens, level.completion_tokens) == (20, 8, 6)
    assert level.tok_s == 1.5
    assert level.tok_s_stream == 1.5
    assert level.ttft_ms is not None
    assert (level.ttft_ms.p50, level.ttft_ms.highest) == (750.0, 1000.0)
    assert level.itl_ms is not None
    assert level.itl_ms.p50 == 875.0
    assert level.e2e_ms is not None
    assert level.e2e_ms.highest == 3000.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_percentile_lies_between_its_neighbours(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    below = ordered[int(share * (len(ordered) - 1))]
    assert below - 1e-9 <= found <= ordered[-1] + 1e-9
    assert percentile(ordered, 0) == ordered[0]
    assert percentile(ordered, 1) == ordered[-1]


def test_no_times_have_no_spread() -> None:
    assert spread([]) is None


def test_cpu_time_of_a_process_counts_all_its_threads() -> None:
    """A child burns CPU in a second thread only; the count must see it."""
    code = (
        "import threading, time, sys\n"
        "def burn():\n"
        "    while time.thread_time() < 0.2: pass\n"
        "    print('burnt', flush=True); threading.Event().wait()\n"
        "threading.Thread(target=burn, daemon=True).start()\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "burnt\n"
        assert cpu_seconds(process.pid) >= 0.2
        process.communicate("")


async def test_command_prints_a_ladder_as_json() -> None:
    """The whole command against the server, in a process as a person would run it."""
    async with serving() as server:
        command = ["-m", "ops", "bench", "--base-url", server.base_url, "--streams", "1,3", "--tokens", "5", "--json"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
    answer = json.loads(out)
    assert process.returncode == 0
    assert (answer["model"], [level["streams"] for level in answer["levels"]]) == ("tiny", [1, 3])
    assert [level["completion_tokens"] for level in answer["levels"]] == [20, 30]
