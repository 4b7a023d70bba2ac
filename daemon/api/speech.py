"""The seam to the chat room's parsers: text of an answer in, deltas out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from daemon.core.events import Ending


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Words for the person."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments, which are JSON text."""

    index: int
    text: str


Delta: TypeAlias = ReasoningDelta | ContentDelta | CallStart | CallArguments


class Parser(Protocol):
    """One answer's parser."""

    def feed(self, text: str) -> Sequence[Delta]:
        """What is certain after more text."""
        ...

    def finish(self, ending: Ending) -> tuple[Sequence[Delta], str]:
        """The rest, and the finish reason in OpenAI's words."""
        ...


class PlainParser:
    """Everything is content."""

    def feed(self, text: str) -> Sequence[Delta]:
        """The text as it is."""
        return (ContentDelta(text),) if text else ()

    def finish(self, ending: Ending) -> tuple[Sequence[Delta], str]:
        """Nothing is held back."""
        return (), ending.value
