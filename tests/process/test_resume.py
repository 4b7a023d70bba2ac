"""What a killed engine was told to keep holds with the next one, token for token. The engine process is the real one; its logits
are a fixed function of the sequence, so that every difference would be ours.
"""

import asyncio
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from daemon.core.errors import PoisonousRequest, RequestTimeout
from daemon.core.events import Broken, Ended, Ending
from daemon.core.requests import ValidRequest
from daemon.core.settings import ServerSettings
from daemon.core.supervision_values import Starting
from daemon.core.wire import Constraint, ConstraintKind, OnStop, Reasoning, Sampler, TokenSpan
from tests.engine.checkpoints import MESSAGE_END
from tests.process.front import front
from tests.process.house import Heard, ask, house, until
from tests.process.resuming import (
    Reading,
    check_kept,
    check_whole,
    continuing,
    kill_at,
    kill_when,
    null_engine,
    real_house,
    whole,
)

SLOW: Mapping[str, object] = {"decode": [{"at": 1, "seconds": 0.005}, {"at": 64, "seconds": 0.005}]}
WARM = Sampler(temperature=5.0)
"""Hot enough for the null model's choices to be open: about half of its tokens are not the likeliest ones."""
PATTERN = "[a-z]{3}(-[0-9]{4}){12}X"
END, CLOSE = [20, 21], [19, 20, 21, 22]
POISON = 5
"""The id of `<tool_call>`, which the profiles below name."""


def promises() -> list[ValidRequest]:
    """A plain request, a seeded one, one under a grammar, one with a thinking budget, and one that may not stop early."""
    plain = ask([10, 11, 12], 90, Sampler(temperature=0.0))
    return [
        plain,
        replace(plain, seed=7, sampler=WARM),
        replace(plain, stop_ids=(MESSAGE_END,), sampler=WARM, seed=8, constraint=Constraint(ConstraintKind.REGEX, PATTERN)),
        replace(plain, reasoning=Reasoning(END, CLOSE, inside=True, budget_left=60, on_stop=OnStop.FINISH)),
        replace(plain, seed=9, sampler=Sampler(temperature=30.0), stop_ids=tuple(range(30, 500)), min_tokens=70),
    ]


def check_promises(heards: list[Heard]) -> None:
    """The figures that each request asked for."""
    plain, seeded, ruled, thought, patient = heards
    assert len(plain.ids) == len(seeded.ids) == len(thought.ids) == 90
    assert plain.ids != seeded.ids
    assert re.fullmatch(PATTERN, ruled.text)
    assert thought.ids[60:64] == CLOSE
    assert [thought.ids.count(token) for token in (19, 22)] == [plain.ids[:60].count(token) + 1 for token in (19, 22)]
    [end] = patient.ends
    assert isinstance(end, Ended)
    assert end.ending is Ending.STOP
    assert 70 < len(patient.ids) < 80


async def test_grammars_seeds_budgets_and_minima_hold_across_two_kills(model: Path, tmp_path: Path) -> None:
    async with real_house(model, null_engine(tmp_path, SLOW)) as h:
        undisturbed = await whole(h, promises())
        check_promises(undisturbed)
        reading = Reading.of(h, promises())
        early = await kill_at(h, reading, 15)
        late = await kill_at(h, reading, 50)
        await until(lambda: h.streams.running == len(reading.entries), "all of them running together again")
        assert h.streams.suspects == ()  # a kill from outside accuses nobody
        disturbed = await reading.heard
        check_whole(disturbed)
        check_kept(early, disturbed)
        check_kept(late, disturbed)
        assert [(heard.ids, heard.text, heard.paused) for heard in disturbed] == [
            (heard.ids, heard.text, 2) for heard in undisturbed
        ]
        figures = h.streams.recovery(0)
        assert (figures.interrupted, figures.waiting, len(figures.waited)) == (5, 0, 5)
        assert figures.reprefilled >= 4 * 50  # two of the five have begun alike, so that one finds the other's pages
        assert h.streams.totals.interruptions == 10
        fresh = await whole(h, [continuing(promises()[0], late[0])])
        assert disturbed[0].ids[len(late[0]) :] == fresh[0].ids


async def test_kills_during_prefill_and_while_loading_cost_nothing_but_time(model: Path, tmp_path: Path) -> None:
    """First in the middle of a long prompt, beside a running answer; then the engine that was to replace it."""
    slow = {**SLOW, "prefill": [{"at": 256, "seconds": 0.05}, {"at": 2048, "seconds": 0.4}]}
    prompt = [30 + number % 400 for number in range(3000)]
    requests = [ask([10, 11, 12], 120), ask(prompt, 20)]
    requests = [replace(request, sampler=Sampler(temperature=0.0)) for request in requests]
    async with real_house(model, null_engine(tmp_path, slow)) as h:
        undisturbed = await whole(h, requests)
        requests[1] = replace(requests[1], spans=(TokenSpan([29, *prompt[1:]]),))
        reading = Reading.of(h, requests)
        long = reading.entries[1]
        await kill_when(
            h,
            lambda: h.view.progress is not None and h.view.progress.prefilling == long.link_id,
            "the long prompt being prefilled",
        )
        before = reading.delivered
        await kill_when(h, lambda: isinstance(h.view.mode, Starting), "the next engine loading")
        disturbed = await reading.heard
        check_whole(disturbed)
        check_kept(before, disturbed)
        assert disturbed[0].ids == undisturbed[0].ids
        assert len(disturbed[1].ids) == 20
        assert disturbed[1].ids == (await whole(h, requests))[1].ids
        assert h.view.restarts == 2


async def test_request_that_kills_by_its_prompt_is_refused_and_everybody_else_finishes(model: Path, tmp_path: Path) -> None:
    """Two deaths: one that makes it a suspect, one while it is alone. Its retry never reaches an engine."""
    fault = {"kind": "exit", "place": "prefill", "marker": "<tool_call>"}
    poison = ask([40, 41, POISON, 42] * 3, 20)
    innocent = [ask([10 + number, 11], 100, Sampler(temperature=0.0)) for number in range(3)]
    async with real_house(model, null_engine(tmp_path, {**SLOW, "faults": [fault]})) as h:
        undisturbed = await whole(h, innocent)
        reading = Reading.of(h, innocent)
        await reading.reach(10)
        [refused] = await whole(h, [poison])
        disturbed = await reading.heard
        check_whole(disturbed)
        assert [heard.ids for heard in disturbed] == [heard.ids for heard in undisturbed]
        [end] = refused.ends
        assert isinstance(end, Broken)
        assert isinstance(end.error, PoisonousRequest)
        assert h.view.restarts == 2
        with pytest.raises(PoisonousRequest):
            h.streams.open(poison)
        assert h.view.restarts == 2


async def test_request_that_kills_while_others_are_newer_is_found_within_three_deaths(model: Path, tmp_path: Path) -> None:
    """The newest is suspected first, proves itself alone, and then the others have to."""
    fault = {"kind": "exit", "place": "decode", "marker": "<tool_call>", "token": 25}
    requests = [ask([40, POISON, 42], 100), *(ask([10 + number, 11], 110, Sampler(temperature=0.0)) for number in range(2))]
    async with real_house(model, null_engine(tmp_path, {**SLOW, "faults": [fault]})) as h:
        undisturbed = await whole(h, requests[1:])
        guilty, *others = await whole(h, requests)
        [end] = guilty.ends
        assert isinstance(end, Broken)
        assert isinstance(end.error, PoisonousRequest)
        assert len(guilty.ids) == 25
        check_whole(others)
        assert [heard.ids for heard in others] == [heard.ids for heard in undisturbed]
        assert h.view.restarts == 3


async def test_engine_that_takes_longer_than_the_resume_timeout_ends_requests_with_words() -> None:
    async with house("--slow-load", "1.0", "--step-seconds", "0.01", server=ServerSettings(resume_timeout=0.2)) as h:
        await h.ready()
        reading = Reading.of(h, [ask([65, 66], 500)])
        before = await kill_at(h, reading, 5)
        [heard] = await reading.heard
        check_kept(before, [heard])
        [end] = heard.ends
        assert isinstance(end, Broken)
        assert isinstance(end.error, RequestTimeout)
        assert "server.resume_timeout" in str(end.error)


def test_clients_that_do_not_stream_get_their_whole_answer_across_a_kill(model: Path, tmp_path: Path) -> None:
    """Through HTTP: nothing but a longer wait. The engine's death shows in the status."""

    async def answers(running_port: int, kill_at_tokens: bool) -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{running_port}/v1", api_key="none", max_retries=0) as client:
            asking = [
                asyncio.ensure_future(
                    client.completions.create(
                        model=model.name, prompt=words, max_tokens=100, temperature=0, extra_body={"ignore_eos": True}
                    )
                )
                for words in ("one", "two", "three")
            ]
            if kill_at_tokens:
                await until(lambda: running.status().running == 3, "three running")
                before = running.engine_pid()
                os.kill(before, signal.SIGKILL)
            return [answer.choices[0].text for answer in await asyncio.gather(*asking)]

    with front(model, tmp_path, profile=SLOW) as running:
        undisturbed = asyncio.run(answers(running.port, kill_at_tokens=False))
        assert asyncio.run(answers(running.port, kill_at_tokens=True)) == undisturbed
        status = running.status()
        assert status.engines[0].restarts == 1
        assert status.interruptions == 3
