"""What a call parser works with, and how it reports: the tools on offer, the writer of one call's arguments, the verdict."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from daemon.chat.coerce import Schema, quoted
from daemon.chat.parsers.cursor import Cursor, Recorder, Steps
from daemon.chat.parsers.transcript import CallSink
from daemon.chat.tool_schemas import Tool
from daemon.core.events import Ending


class Verdict(Enum):
    """How an attempt to read a call, or a part of one, ended."""

    DONE = "done"
    """Read and complete. Nothing of it is text."""
    TEXT = "text"
    """It is no call after all, and nothing was written: what was consumed is text."""
    BROKEN = "broken"
    """A call that cannot be saved: what was consumed is shown as text, and what was written is abandoned."""
    CUT = "cut"
    """The answer ended in the middle of it."""


class Toolbox:
    """The tools a request offers."""

    __slots__ = ("_schemas", "_unknown")

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._schemas = {tool.name: Schema(dict(tool.parameters), tool.parameters) for tool in tools}
        self._unknown = Schema(True, {}, declared=False)  # noqa: FBT003  # the JSON Schema that admits everything

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def resolve(self, name: str) -> str:
        """The name of the tool a model means: some write the namespace of their training in front."""
        short = name.removeprefix("functions.")
        return short if name not in self._schemas and short in self._schemas else name

    def declared(self, name: str) -> bool:
        """Whether the request offers a tool of this name."""
        return self.resolve(name) in self._schemas

    def begins_declared(self, start: str) -> bool:
        """Whether a tool's name begins with `start`."""
        return any(name.startswith(start) for name in self._schemas)

    def schema(self, name: str) -> Schema:
        """The arguments of a tool; of an unknown one, anything."""
        return self._schemas.get(self.resolve(name), self._unknown)


@dataclass(frozen=True, slots=True)
class Desk:
    """Where one attempt to read calls takes place."""

    cursor: Cursor
    tools: Toolbox
    sink: CallSink
    recorder: Recorder
    """Notes what is consumed; restarted after each complete call, so that a later fault shows only what is its own."""

    @property
    def stopped(self) -> bool:
        """Whether the model ended the answer itself, so that what is there is all it meant to write."""
        return self.cursor.ending is Ending.STOP

    def complete(self, arguments: "Arguments") -> None:
        """A call is complete."""
        arguments.close()
        self.recorder.restart()

    def open(self, name: str) -> "Arguments":
        """Begin the arguments of a call; nothing is sent before the first of them or the end."""
        return Arguments(self.sink, self.tools.resolve(name), self.tools.schema(name))


class Arguments:
    """Writes one call: the arguments as one JSON object."""

    __slots__ = ("_begun", "_sink", "name", "schema", "seen")

    def __init__(self, sink: CallSink, name: str, schema: Schema) -> None:
        self._sink = sink
        self._begun = False
        self.name = name
        self.schema = schema
        self.seen: set[str] = set()
        """Names of the arguments so far, also of those left out for being empty."""

    def key(self, name: str) -> None:
        """The next argument's name; its value must follow."""
        if not self._begun:
            self._sink.begin(self.name)
        self._sink.write((", " if self._begun else "{") + quoted(name) + ": ")
        self._begun = True
        self.seen.add(name)

    def write(self, json_text: str) -> None:
        """More of the value, as JSON text."""
        self._sink.write(json_text)

    def close(self) -> None:
        """The call is complete."""
        if not self._begun:
            self._sink.begin(self.name)
        self._sink.write("}" if self._begun else "{}")
        self._sink.end()


class CallParser(Protocol):
    """One call format."""

    def parse(self, opener: str, desk: Desk) -> Steps[Verdict]:
        """Read calls behind `opener`, which is consumed already, as far as they go together."""
        ...
