"""The same promises with the real engine process: exllamav3's own scheduler, cache and model code."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from daemon.core.events import Ended
from daemon.core.settings import BackendKind, EngineSettings
from daemon.core.wire import Configure, Sampler
from daemon.host.model_directory import read_model_directory
from daemon.host.tokenizer_pool import TokenizerPool
from tests.process.house import Heard, House, ask, hear, house, until

REAL = (sys.executable, "-P", "-m", "daemon.engine")
PROMPTS = [[10, 11, 12], [20, 21], [30, 31, 32, 33], [40]]
GREEDY = Sampler(temperature=0.0)
NEAR_TIE = 0.05
"""Nats between the two best candidates of a random model below which rounding may choose."""


@asynccontextmanager
async def real_house(model: Path, engine: EngineSettings) -> AsyncGenerator[House]:
    """A host around the real engine."""
    reading = await asyncio.to_thread(read_model_directory, model)
    pool = TokenizerPool(reading.model, reading.tokenizer)
    pool.close()
    configure = Configure(str(model), 4096, engine, str(model.parent))
    async with house(argv=REAL, configure=configure, vocabulary=pool.vocabulary) as built:
        yield built


async def answers(h: House, count: int) -> list[Heard]:
    """Four streams at once, to their ends."""
    requests = [ask(prompt, count, GREEDY, logprobs=2) for prompt in PROMPTS]
    return await asyncio.gather(*(hear(h.streams.open(request)) for request in requests))


def check(heards: Sequence[Heard], count: int) -> None:
    assert [len(heard.ids) for heard in heards] == [count] * len(PROMPTS)
    assert [[type(end) for end in heard.ends] for heard in heards] == [[Ended]] * len(PROMPTS)


def check_same(undisturbed: Heard, disturbed: Heard, *, exact: bool) -> None:
    """Equal, or different first where the two best candidates were as good as equal: other batch shapes round otherwise."""
    if undisturbed.ids == disturbed.ids:
        assert undisturbed.text == disturbed.text
        return
    assert not exact
    first = next(i for i, pair in enumerate(zip(undisturbed.ids, disturbed.ids, strict=True)) if pair[0] != pair[1])
    best, second = undisturbed.logprobs[first].top[:2]
    assert best[1] - second[1] < NEAR_TIE
    assert {best[0], second[0]} == {undisturbed.ids[first], disturbed.ids[first]}


@pytest.mark.parametrize("backend", [BackendKind.NULL, BackendKind.CPU])
async def test_engine_killed_during_four_streams_lets_all_four_finish_alike(
    model: Path, tmp_path: Path, backend: BackendKind
) -> None:
    """`kill -9` in the middle: all four finish as they would have, and no client sees more than a pause."""
    count = 120
    engine = EngineSettings(backend=backend, cache_tokens=8192, threads=1)
    if backend is BackendKind.NULL:
        profile = tmp_path / "profile.json"
        profile.write_text('{"decode": [{"at": 1, "seconds": 0.01}]}')
        engine = msgspec.structs.replace(engine, null_profile=str(profile))
    async with real_house(model, engine) as h:
        await h.ready()
        undisturbed = await answers(h, count)
        check(undisturbed, count)
        reading = asyncio.ensure_future(answers(h, count))
        before = len(h.steps)
        await until(lambda: len(h.steps) > before + 30, "thirty steps")
        assert h.view.pid is not None
        os.kill(h.view.pid, signal.SIGKILL)
        disturbed = await reading
        check(disturbed, count)
        assert [heard.paused for heard in disturbed] == [1] * len(PROMPTS)
        for one, other in zip(undisturbed, disturbed, strict=True):
            check_same(one, other, exact=backend is BackendKind.NULL)
        assert h.view.restarts == 1


async def test_client_that_leaves_frees_its_pages_within_two_steps(model: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text('{"decode": [{"at": 1, "seconds": 0.03}]}')
    engine = EngineSettings(backend=BackendKind.NULL, cache_tokens=8192, threads=1, null_profile=str(profile))
    async with real_house(model, engine) as h:
        await h.ready()
        staying = h.streams.open(ask([10, 11], 1000))
        leaving = h.streams.open(ask([20, 21], 1000))
        await until(lambda: bool(h.steps) and h.steps[-1].pool.running == 2, "two running")
        held = h.steps[-1].pool.referenced
        last = h.steps[-1].n
        leaving.cancel()
        await until(lambda: h.steps[-1].n >= last + 3, "three more steps")
        freed = next(step for step in h.steps if step.n > last and step.pool.running == 1)
        assert freed.n <= last + 2
        assert freed.pool.referenced < held
        staying.cancel()
        probe = await h.questions.probe()
        assert probe == ""
        assert h.steps[-1].pool.referenced == 0
