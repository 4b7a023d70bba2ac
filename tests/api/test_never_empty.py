"""Answers that hold a thought and nothing else, by configuration; the engine's part is in tests/process/test_answers.py."""

import pytest

from daemon.core.events import Ending
from daemon.core.model import AddedToken
from daemon.core.settings import AnswerSettings, OnEmptyAnswer, Settings
from daemon.core.wire import OnStop
from tests.api.conftest import Connect
from tests.api.fakes import FakePrompts, FakeServing, application, says

OPEN = "<|im_start|>assistant\n<think>\n"
ADDED = (AddedToken(60_001, "<think>", special=False), AddedToken(60_002, "</think>", special=False))
CASES = [
    (OnEmptyAnswer.CONTINUE, "hm", Ending.STOP, "hm"),
    (OnEmptyAnswer.CONVERT, "hm", Ending.STOP, "hm"),
    (OnEmptyAnswer.CONVERT, "hm</think>\n\n", Ending.STOP, "hm"),
    (OnEmptyAnswer.CONVERT, "hm</think>\n\nYes.", Ending.STOP, "Yes."),
    (OnEmptyAnswer.CONVERT, "hm", Ending.LENGTH, ""),
    (OnEmptyAnswer.RETURN, "hm", Ending.STOP, ""),
]


@pytest.mark.parametrize(("setting", "text", "ending", "content"), CASES)
async def test_thought_without_an_answer(
    connect: Connect, setting: OnEmptyAnswer, text: str, ending: Ending, content: str
) -> None:
    """The engine closes thoughts only where it shall; what is left of an empty answer is told as configured."""
    serving = FakeServing(says(*text, ending=ending))
    settings = Settings(answers=AnswerSettings(on_empty_answer=setting))
    prompts = FakePrompts(tool_source=OPEN + "</think>", ending=OPEN)
    client = await connect(application(serving, settings, prompts=prompts, added=ADDED))
    body = {"messages": [{"role": "user", "content": "hi"}]}
    answer = await (await client.post("/v1/chat/completions", json=body)).json()
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", content)
    reasoning = serving.requests[0].reasoning
    assert reasoning is not None
    assert (reasoning.on_stop is OnStop.CLOSE) == (setting is OnEmptyAnswer.CONTINUE)
