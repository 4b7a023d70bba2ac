"""What an answer is taken apart into, piece by piece. The vocabulary between parsers and whoever serves a client."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's thought."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the visible answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins. `name` is whole and is sent once."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call is complete: its argument texts together are one JSON object. A call without this was cut off or broken."""

    index: int


Delta: TypeAlias = ReasoningDelta | ContentDelta | CallStart | CallArguments | CallEnd
