"""Real weights across a kill: what was delivered stands, and what follows is what a fresh request for prompt + delivered says.

Engines compute the same sequence in other batches after a resume, which rounds otherwise. The dense model's choices are not moved
by that; on the hybrid each difference is shown to stand at a near-tie of the two best candidates.
"""

import random
from collections.abc import Sequence

import pytest

from daemon.core.settings import BackendKind, EngineSettings
from daemon.core.wire import Sampler, TokenLogprob
from tests.engine.checkpoints import Architecture
from tests.engine.written import Checkpoint
from tests.process.house import Heard, ask
from tests.process.resuming import Reading, check_kept, check_whole, continuing, kill_at, real_house, whole

COUNT = 60
NEAR_TIE = 0.3
"""Nats between the two best candidates below which another batch shape may choose the other; as measured on the hybrid."""


def text(length: int, seed: int) -> list[int]:
    """Ordinary ids, the same for the same seed."""
    numbers = random.Random(seed)  # noqa: S311 - test data
    return [numbers.randrange(10, 500) for _ in range(length)]


def difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Where two continuations part; None where they do not."""
    return next((at for at, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), None)


def check_near_tie(ids: Sequence[int], other: Sequence[int], logprobs: Sequence[TokenLogprob]) -> None:
    """Equal, or parted where the two best candidates were as good as equal. `logprobs` belong to `ids`."""
    at = difference(ids, other)
    if at is None:
        return
    best, second = logprobs[at].top[:2]
    assert best[1] - second[1] < NEAR_TIE
    assert {ids[at], other[at]} == {best[0], second[0]}


@pytest.mark.parametrize("architecture", [Architecture.LLAMA, Architecture.QWEN3_5])
async def test_continuation_is_that_of_a_fresh_request_and_delivered_text_stands(
    architecture: Architecture, checkpoint: Checkpoint, exl3_checkpoint: Checkpoint
) -> None:
    """Three streams, one of them longer than a page, killed at about the same time in the middle of their answers."""
    dense = architecture is Architecture.LLAMA
    model = (checkpoint if dense else exl3_checkpoint)(architecture)
    engine = EngineSettings(backend=BackendKind.CPU, cache_tokens=8192, max_batch=4, threads=1)
    requests = [ask(text(length, seed), COUNT, Sampler(temperature=0.0), logprobs=2) for seed, length in enumerate((20, 60, 300))]
    async with real_house(model, engine) as h:
        undisturbed = await whole(h, requests)
        reading = Reading.of(h, requests)
        before = await kill_at(h, reading, 20)
        disturbed = await reading.heard
        check_whole(disturbed)
        check_kept(before, disturbed)
        assert [heard.paused for heard in disturbed] == [1] * len(requests)
        fresh = await whole(h, [continuing(request, said) for request, said in zip(requests, before, strict=True)])
        for number, heard in enumerate(disturbed):
            check(undisturbed[number], heard, fresh[number], len(before[number]), exact=dense)


def check(undisturbed: Heard, heard: Heard, fresh: Heard, kept: int, *, exact: bool) -> None:
    """One stream against the same one undisturbed, and against a fresh request for all of it up to the death."""
    assert len(heard.ids) == len(heard.logprobs) == COUNT
    if exact:
        assert (heard.ids, heard.text) == (undisturbed.ids, undisturbed.text)
        assert heard.ids[kept:] == fresh.ids
    else:
        check_near_tie(undisturbed.ids, heard.ids, undisturbed.logprobs)
        check_near_tie(fresh.ids, heard.ids[kept:], fresh.logprobs)
