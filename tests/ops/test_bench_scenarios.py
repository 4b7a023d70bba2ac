"""The scenarios' arithmetic on made-up times, and what `exl3ctl bench` makes of them against a server."""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from daemon.core.settings import SharingSettings
from daemon.engine.null.profile import NullProfile, read_profile
from ops.bench import against, fairness, pool, profile
from ops.bench.client import prompt_text
from ops.bench.interference import Beside, schedule
from ops.bench.values import Endpoint, Load, Sample, Target
from ops.errors import BenchFailed
from tests.ops.openai_server import serving


def told(sent: float, first: float, tokens: int, gap: float, *, prompt: int = 100, cached: int = 0) -> fairness.Told:
    """A request whose tokens came `gap` seconds apart."""
    times = [first + gap * number for number in range(tokens)]
    gaps = tuple([gap] * (tokens - 1))
    return fairness.Told(Sample(sent, first, times[-1], gaps, prompt, cached, tokens), times)


def test_taking_turns_evenly_has_a_product_of_one() -> None:
    """Each step costs everybody both times: twice the latency for the streams, twice the time for the prompt."""
    found = schedule(Beside([0.02] * 10, [0.04] * 10, 2.0), alone=1.0, speed=1.0)
    assert (found.q, found.s, found.product, found.itl_p99_ms, found.decode_ms) == (2.0, 2.0, 1.0, 40.0, 20.0)


def test_times_of_a_faster_model_are_given_at_the_profiles_speed() -> None:
    found = schedule(Beside([0.002] * 10, [0.004] * 10, 0.2), alone=0.1, speed=10.0)
    assert (found.itl_p99_ms, found.decode_ms, found.prefill_s, found.q) == (40.0, 20.0, 2.0, 2.0)


def test_equal_shares_have_an_index_of_one() -> None:
    assert fairness.jain({"a": 5.0, "b": 5.0, "c": 5.0}) == 1.0


def test_one_who_gets_all_has_an_index_of_one_over_all() -> None:
    assert fairness.jain({"a": 9.0, "b": 0.0, "c": 0.0}) == pytest.approx(1 / 3, abs=1e-4)


def test_service_counts_only_while_all_wait() -> None:
    """From the last person's first token until the first person has nothing waiting: here from 2 to 10."""
    prices = SharingSettings(prefill_price=1.0, decode_price=4.0, cached_price=0.0)
    first = [told(0, 1, 2, 0.5), told(0, 10, 3, 1.0)]
    second = [told(0, 2, 4, 1.0), told(0, 5, 4, 1.0, cached=40), told(0, 20, 4, 1.0)]
    served = fairness.served_while_all_wait({"a": first, "b": second}, prices)
    assert served == {"a": 100 + 4, "b": 3 * 4 + 60 + 4 * 4}


@pytest.mark.parametrize("others", [[], [told(0, 50, 2, 1.0)]])
def test_people_who_never_wait_together_have_no_index(others: Sequence[fairness.Told]) -> None:
    prices = SharingSettings()
    assert fairness.served_while_all_wait({"a": [told(0, 1, 2, 0.5)], "b": others}, prices) == {}


def test_wait_ratio_is_that_of_the_95th_percentiles() -> None:
    alone = [told(0, 1.0, 5, 0.1)] * 20
    chats = [told(0, 2.0, 5, 0.1)] * 19 + [told(0, 100.0, 5, 0.1)]
    found = fairness.figures([fairness.Round(alone, chats, [])], 0.97, 1.0)
    assert found.wait_ratio_p95 == pytest.approx(2.0 + 98 * 0.05, abs=0.01)
    assert (found.completed, found.jain) == (20, 0.97)


def test_round_without_a_chat_answered_is_no_measurement() -> None:
    failed = fairness.Told(Sample(0, None, 0, (), 0, 0, 0, "HTTP 503: full"), [])
    with pytest.raises(BenchFailed, match="503"):
        fairness.figures([fairness.Round([failed], [failed], [])], None, 1.0)


def test_answers_generated_at_one_moment_are_counted() -> None:
    assert pool.most_at_once([[0.0, 5.0], [1.0, 2.0], [3.0, 9.0], []]) == 2
    assert pool.most_at_once([]) == 0


def said(first: float | None, last: float, gap: float = 1.0, problem: str | None = None) -> pool.Said:
    """A turn."""
    return pool.Said(Sample(0.0, first, last, (gap,), 10, 0, 2, problem), ())


@pytest.mark.parametrize(
    "small", [said(None, 5.0), said(3.0, 5.0, problem="HTTP 429"), said(11.0, 12.0), said(3.0, 9.0, gap=4.5)]
)
def test_guarantee_is_broken_by_failure_silence_or_waiting_for_the_others_end(small: pool.Said) -> None:
    assert pool.broken([said(1.0, 10.0), said(1.0, 8.0)], [small, said(3.0, 5.0)], silence=4.0) == 1


def test_default_profile_says_where_its_numbers_come_from() -> None:
    found = profile.read()
    assert len(found.sources) >= 5
    assert all(later.seconds > earlier.seconds for earlier, later in zip(found.decode, found.decode[1:], strict=False))
    assert found.prompt_seconds(80_000, 2048) == pytest.approx(66, abs=1), "as its sources say"
    assert found.prompt_seconds(5, 2048) == found.prefill[0].seconds


def test_default_profile_is_one_that_the_engine_reads() -> None:
    """And a faster one has the same shape, every time divided."""
    whole = read_profile(str(profile.DEFAULT))
    assert (whole.name, whole.decode_context) == (profile.read().name, profile.read().decode_context)
    faster = profile.read().faster(10)
    assert faster.prompt_seconds(80_000, 2048) == pytest.approx(profile.read().prompt_seconds(80_000, 2048) / 10)
    assert faster.recurrent is not None
    assert msgspec.json.decode(msgspec.json.encode(faster), type=NullProfile).recurrent is not None


def test_turn_after_turn_a_prompt_only_grows() -> None:
    """What a growing conversation's prefix hits rest on."""

    def text(tokens: int) -> str:
        return prompt_text(Load(1, 1, 1, tokens, seed=3), 0)

    assert text(500).startswith(text(200))


async def test_streams_scenario_sends_each_level_at_once() -> None:
    async with serving() as server:
        levels = await against.streams(Target(server.base_url, "tiny", None, Endpoint.CHAT), [1, 5], 4, 16)
    assert [(level.streams, level.requests, level.failed) for level in levels] == [(1, 1, 0), (5, 5, 0)]
    assert len(server.asked) == 6


async def test_fairness_scenario_asks_with_two_keys() -> None:
    async with serving() as server:
        size = replace(against.crowd(3, 64, 4), head_start=0.0, apart=0.0)
        found = await against.fairness(Target(server.base_url, "tiny", "mine"), "theirs", size)
    assert (found.completed, found.requests) == (8, 8)
    assert found.wait_ratio_p95 > 0
    assert server.keys.count("Bearer mine") == 3
    assert server.keys.count("Bearer theirs") == 10


async def test_command_without_a_second_key_says_what_is_missing() -> None:
    async with serving() as server:
        command = ["-m", "ops", "bench", "--scenario", "fairness", "--base-url", server.base_url]
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
        _, words = await process.communicate()
    assert process.returncode == 2
    assert b"--other-key" in words


async def test_command_prints_a_scenario_as_json() -> None:
    async with serving() as server:
        command = ["-m", "ops", "bench", "--scenario", "streams", "--base-url", server.base_url, "--streams", "2", "--json"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert [level["requests"] for level in json.loads(out)["levels"]] == [2]
