"""Text between two tags takes the short way through the parser, and says the same as on the long one."""

import pytest

from daemon.chat.parsing import Dialect, Format, MessageParser, Thinking, build_parser, fold
from daemon.chat.tool_schemas import parse_tools
from daemon.core.events import Ending

TOOLS = parse_tools([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}])
THOUGHT = Thinking("<think>", "</think>")
ANSWER = [" We", " think", " `a", "\n\n", "</thi", "nk>", "\n", "So", ":", "\n```", "\nx < y", "\n", "``", "`", " fin", " "]
HARMONY = [" We", " think", "<|end|>", "<|start|>assistant", "<|channel|>final<|mess", "age|>", "So", " x <", " y", " fin", " "]


def parser(form: Format) -> MessageParser:
    """One that begins inside a thought."""
    thinking = None if form is Format.GPT_OSS else THOUGHT
    return build_parser(Dialect(form, thinking), TOOLS, starts_in_reasoning=True, new_id=lambda: "id")


@pytest.mark.parametrize(("form", "pieces"), [(Format.HERMES_JSON, ANSWER), (Format.GPT_OSS, HARMONY)])
def test_tokens_say_what_the_whole_answer_says(form: Format, pieces: list[str]) -> None:
    by_token, at_once = parser(form), parser(form)
    deltas = [delta for piece in pieces for delta in by_token.feed(piece)]
    whole = at_once.feed("".join(pieces))
    assert fold(deltas, by_token.finish(Ending.STOP)) == fold(whole, at_once.finish(Ending.STOP))


@pytest.mark.parametrize("form", [Format.HERMES_JSON, Format.GPT_OSS])
def test_plain_token_is_not_walked_through(form: Format) -> None:
    """Neither in a thought nor in an answer."""
    subject = parser(form)
    subject.feed("We")
    subject.feed(" think")
    before = subject.examined
    subject.feed(" about it")
    assert subject.examined == before
    subject.feed("<|end|><|start|>assistant<|channel|>final<|message|>So" if form is Format.GPT_OSS else "</think>So")
    before = subject.examined
    assert subject.feed(" it is") != []
    assert subject.examined == before
