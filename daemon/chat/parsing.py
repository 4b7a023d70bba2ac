"""The door to the parsers: what a model writes becomes thoughts, visible text and tool calls, as it comes.

    parser = build_parser(dialect, tools, starts_in_reasoning=…)
    for piece in stream: deltas = parser.feed(piece)
    final = parser.finish(Ending.STOP)

An answer that is not streamed is the same: `fold` puts the deltas of one parser together. However the text is cut into
pieces, the message is the same. No method raises on any text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from uuid import uuid4

from daemon.chat.parsers.cursor import Cursor, Steps
from daemon.chat.parsers.deltas import CallArguments, CallEnd, CallStart, ContentDelta, Delta, ReasoningDelta
from daemon.chat.parsers.desk import Toolbox
from daemon.chat.parsers.detect import Dialect, detect, starts_in_reasoning, visible_tokens
from daemon.chat.parsers.formats import Format, grammar
from daemon.chat.parsers.harmony import Harmony
from daemon.chat.parsers.scanner import Scanner, Thinking
from daemon.chat.parsers.transcript import Transcript
from daemon.chat.tool_schemas import Tool
from daemon.core.events import Ending

__all__ = [
    "CallArguments",
    "CallEnd",
    "CallStart",
    "ContentDelta",
    "Delta",
    "Dialect",
    "Final",
    "FinishReason",
    "Format",
    "Message",
    "MessageParser",
    "ReasoningDelta",
    "Thinking",
    "ToolCall",
    "build_parser",
    "detect",
    "fold",
    "starts_in_reasoning",
    "visible_tokens",
]


class FinishReason(Enum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class Final:
    """The end of an answer: the last deltas, and facts about the whole."""

    deltas: tuple[Delta, ...]
    finish_reason: FinishReason
    inside_reasoning: bool
    """Whether the answer ended inside a thought: there is no visible answer."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call."""

    id: str
    name: str
    arguments: str
    """A JSON object as text."""


@dataclass(frozen=True, slots=True)
class Message:
    """A whole answer. None stands for nothing but white space."""

    reasoning: str | None
    content: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason


class _Reader(Protocol):
    """A walk through one answer."""

    @property
    def inside(self) -> bool:
        """Whether it is inside a thought."""
        ...

    def run(self) -> Steps[None]:
        """Read the whole answer."""
        ...

    def take_plain(self, text: str) -> bool:
        """Take new text past the cursor, if it stands between two marks for certain. False: nothing was done, and `run` must see
        it.
        """
        ...


class MessageParser:
    """Takes one answer apart. Feed it text in order, then finish it once."""

    def __init__(self, cursor: Cursor, transcript: Transcript, reader: _Reader) -> None:
        self._cursor = cursor
        self._transcript = transcript
        self._reader = reader
        self._steps = reader.run()

    @property
    def examined(self) -> int:
        """Characters looked at so far, repetitions included."""
        return self._cursor.examined

    def feed(self, text: str) -> list[Delta]:
        """More of the answer: what is certain now."""
        if text and not self._reader.take_plain(text):
            self._cursor.feed(text)
            next(self._steps, None)
        return self._transcript.drain()

    def finish(self, ending: Ending) -> Final:
        """The answer is over."""
        inside = self._reader.inside
        self._cursor.close(ending)
        for _ in self._steps:
            inside = self._reader.inside
        inside = inside and self._reader.inside
        if ending is Ending.LENGTH:
            reason = FinishReason.LENGTH
        else:
            reason = FinishReason.TOOL_CALLS if self._transcript.calls else FinishReason.STOP
        return Final(tuple(self._transcript.drain()), reason, inside)


def _new_call_id() -> str:
    return f"call_{uuid4().hex[:24]}"


def build_parser(
    dialect: Dialect,
    tools: Sequence[Tool],
    *,
    starts_in_reasoning: bool,
    new_id: Callable[[], str] = _new_call_id,
) -> MessageParser:
    """A parser for one answer. `tools` are those the model may call now: none where `tool_choice` is `none`, and then
    markup of calls is text.
    """
    cursor = Cursor()
    transcript = Transcript(new_id)
    toolbox = Toolbox(tools)
    if dialect.format is Format.GPT_OSS:
        return MessageParser(cursor, transcript, Harmony(cursor, transcript, toolbox, inside=starts_in_reasoning))
    reader = Scanner(cursor, transcript, grammar(dialect.format), dialect.thinking, toolbox, inside=starts_in_reasoning)
    return MessageParser(cursor, transcript, reader)


def fold(deltas: Iterable[Delta], final: Final) -> Message:
    """The whole answer from all deltas of its feeds and its final. Calls that were cut off or broken are left out."""
    reasoning: list[str] = []
    content: list[str] = []
    started: dict[int, CallStart] = {}
    arguments: dict[int, list[str]] = {}
    calls: list[ToolCall] = []
    for delta in (*deltas, *final.deltas):
        match delta:
            case ReasoningDelta(text):
                reasoning.append(text)
            case ContentDelta(text):
                content.append(text)
            case CallStart(index):
                started[index] = delta
                arguments[index] = []
            case CallArguments(index, text):
                arguments[index].append(text)
            case CallEnd(index):
                calls.append(ToolCall(started[index].id, started[index].name, "".join(arguments[index])))
    return Message(
        reasoning="".join(reasoning) or None,
        content="".join(content) or None,
        tool_calls=tuple(calls),
        finish_reason=final.finish_reason,
    )
