"""What an answer is taken apart into, piece by piece. The vocabulary between parsers and whoever serves a client.

Structs, since one is made for nearly every token.
"""

from typing import TypeAlias

import msgspec


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    """More of the model's thought."""

    text: str


class ContentDelta(msgspec.Struct, frozen=True, gc=False):
    """More of the visible answer."""

    text: str


class CallStart(msgspec.Struct, frozen=True, gc=False):
    """A tool call begins. `name` is whole and is sent once."""

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True, gc=False):
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


class CallEnd(msgspec.Struct, frozen=True, gc=False):
    """A call is complete: its argument texts together are one JSON object. A call without this was cut off or broken."""

    index: int


Delta: TypeAlias = ReasoningDelta | ContentDelta | CallStart | CallArguments | CallEnd
