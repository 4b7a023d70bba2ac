"""The registry follows prefixes: a turn that should have been cached and was not is counted and told, in numbers only."""

import asyncio
import logging

import msgspec
import pytest

from daemon.core.prefix_watch import PrefixFigures
from daemon.core.requests import ValidRequest
from daemon.core.wire import ImageSpan, Submit, TokenSpan
from tests.host.desk import Desk, drain, request, started, tokens

QUESTION = "a long question that goes on and on. " * 30
PROMPT = len(QUESTION)
SHARED = PROMPT // 256 * 256


async def answered(desk: Desk, wanted: ValidRequest, cached: int, kv_only: int = 0) -> None:
    """One request from its start to its end, and what the registry does afterwards."""
    entry = desk.streams.open(wanted)
    submit: Submit = desk.engine.submits[-1]
    desk.step(msgspec.structs.replace(started(submit, cached), kv_only=kv_only), tokens(submit, [65, 66]))
    desk.finish(submit)
    await drain(entry)
    for _ in range(5):
        await asyncio.sleep(0)


async def test_turn_that_finds_nothing_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The line names the request, its owner, figures and the cause, and nothing that was said."""
    desk = Desk()
    desk.engine_up()
    await answered(desk, request(QUESTION), 0)
    with caplog.at_level(logging.WARNING, "exl3d.prefix"):
        await answered(desk, request(QUESTION + "AB and then?"), 0)
    figures = desk.streams.prefixes.figures
    assert (figures.queries, figures.hits) == (2 * PROMPT + 12, 0)
    assert (figures.evicted, figures.no_checkpoint, figures.template_changed, figures.too_short) == (1, 0, 0, 0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"r of local found 0 of {SHARED} tokens" in line
    assert "evicted" in line
    assert "question" not in line
    assert figures.last in line


async def test_turn_whose_keys_lack_a_checkpoint_is_told_apart() -> None:
    desk = Desk()
    desk.engine_up()
    await answered(desk, request(QUESTION), 0)
    await answered(desk, request(QUESTION + "AB and then?"), 0, kv_only=SHARED)
    assert desk.streams.prefixes.figures.no_checkpoint == 1


async def test_turn_that_is_cached_is_a_hit_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.engine_up()
    await answered(desk, request(QUESTION), 0)
    await answered(desk, request(QUESTION + "AB and then?"), SHARED)
    assert desk.streams.prefixes.figures == PrefixFigures(queries=2 * PROMPT + 12, hits=SHARED)
    assert [record for record in caplog.records if record.name == "exl3d.prefix"] == []


async def test_short_chat_is_counted_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.engine_up()
    await answered(desk, request("A short question."), 0)
    await answered(desk, request("A short question.AB Another."), 0)
    assert desk.streams.prefixes.figures.too_short == 1
    assert [record for record in caplog.records if record.name == "exl3d.prefix"] == []


async def test_new_engine_s_empty_cache_is_no_miss() -> None:
    desk = Desk()
    desk.engine_up()
    await answered(desk, request(QUESTION), 0)
    desk.streams.engine_down(0, "died")
    desk.engine_up()
    await answered(desk, request(QUESTION + "AB and then?"), 0)
    assert desk.streams.prefixes.figures == PrefixFigures(queries=2 * PROMPT + 12)


async def test_picture_in_an_earlier_turn_is_followed_like_text() -> None:
    """The same picture has the same ids in every turn; another one, of the same size, is another conversation."""
    desk = Desk()
    desk.engine_up()
    question = TokenSpan(list(QUESTION.encode()))

    def asked(digest: str, *, again: bool) -> ValidRequest:
        then = [TokenSpan([65, 66, *b" and then?"])] if again else []
        return ValidRequest("r", "local", (ImageSpan(digest, "image/png", b"", 300), question, *then), 5)

    await answered(desk, asked("00ff", again=False), 0)
    await answered(desk, asked("ff00", again=False), 0)
    assert desk.streams.prefixes.figures == PrefixFigures(queries=2 * (PROMPT + 300))
    await answered(desk, asked("00ff", again=True), 0)
    assert desk.streams.prefixes.figures.evicted == 1


async def test_long_prompt_is_hashed_over_many_turns_of_the_loop() -> None:
    """No turn hashes more than a slice, however long the prompt; a judgement that comes early finishes the work."""
    desk = Desk()
    desk.engine_up()
    entry = desk.streams.open(request("x" * 9000))
    assert entry.trace is not None
    await asyncio.sleep(0)
    assert len(entry.trace.digests) == 16 * 8
    desk.step(started(desk.engine.submits[-1], 0))
    assert len(entry.trace.digests) == 9000 // 256 * 8
    entry.cancel()
