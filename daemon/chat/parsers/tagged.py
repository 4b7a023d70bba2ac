"""Values between tags that escape nothing: where such a value ends, and what becomes of its text.

A value may hold anything, its own closing tag and whole example calls included. So a closing tag ends it only if what must
follow it does follow; a value whose closing tag was forgotten ends where the next element begins or the call closes.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from daemon.chat.coerce import JsonType, escaped, json_of_text
from daemon.chat.parsers.cursor import Cursor, Steps
from daemon.chat.parsers.desk import Arguments
from daemon.chat.parsers.loose_json import strict_json

_PLAIN = re.compile(r"[^<]+")
_HEADER = re.compile(r"[^<>\n]+")
_MAX_HEADER = 256


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of one format, from the inside out."""

    close: str
    """Ends a value."""
    follow: tuple[str, ...]
    """What may follow `close`, white space aside."""
    opens: str
    """Begins the next element; its header goes on to `header_end`."""
    header_end: str
    ends: tuple[str, ...]
    """What closes the call and its envelope, in this order."""
    restarts: tuple[str, ...]
    """What may follow `ends` if the answer does not end there: another call."""
    nested: tuple[str, str]
    """Opening and closing of a call, as an example inside a value would have them."""
    layout: bool
    """Whether one newline at each end of a value belongs to the tags."""
    name_of: Callable[[str], str]
    """The name in a header."""


class ValueEnd(Enum):
    """What ended a value."""

    CLOSED = "closed"
    """Its closing tag."""
    NEXT = "next"
    """The next element, whose header is consumed."""
    CALL = "call"
    """The end of the whole call, consumed as far as it goes."""
    CUT = "cut"
    """The end of the answer: the value is not complete."""


class TextArgument:
    """An argument that arrives as bare text and leaves as what the schema asks for: at once where that is a string for
    certain, at its end otherwise.
    """

    def __init__(self, arguments: Arguments, name: str, *, layout: bool) -> None:
        self._arguments = arguments
        self._name = name
        self._schema = arguments.schema.property(name)
        self._layout = layout
        self._repeated = name in arguments.seen
        self._held: list[str] | None = None if self._schema.text_only else []
        self._mixed = JsonType.STRING in self._schema.types
        self._start = ""  # the text so far, while it may be a string or something else
        self._decided = self._schema.text_only
        self._streaming = False
        self._begun = False
        self._tail: str = ""
        arguments.seen.add(name)

    @property
    def at_line_start(self) -> bool:
        """Whether the text so far ends a line, or is empty."""
        return not self._begun or self._tail.endswith("\n")

    def write(self, text: str) -> None:
        """More of the text."""
        text = self._tail + text
        self._tail = ""
        if not self._begun:
            if text in {"", "\r"}:
                self._tail = text
                return
            self._begun = True
            if self._layout:
                text = text[2:] if text.startswith("\r\n") else text.removeprefix("\n")
        kept = text.removesuffix("\n").removesuffix("\r")
        self._tail = text[len(kept) :]
        self._put(kept)

    def finish(self, *, closed: bool = True) -> None:
        """The text is complete. Without `closed` its closing tag was forgotten: a newline at its end is layout."""
        if self._tail == "\r" or (closed and not self._layout):
            self._put(self._tail)
        if self._streaming or (self._held is None and not self._repeated):
            self._stream("")
            self._arguments.write('"')
            return
        held = "".join(self._held or [])
        found = None if self._repeated else json_of_text(held, self._schema, strict_json)
        if found is not None:
            self._arguments.key(self._name)
            self._arguments.write(found)

    def _put(self, text: str) -> None:
        if self._held is not None:
            self._held.append(text)
            if not self._decided:
                self._start = (self._start + text).lstrip()
                if self._start and not self._schema.may_be_other(self._start):
                    text, self._held = "".join(self._held), None
                self._decided = self._held is None or self._start[:1] in {"[", "{"} or not self._mixed
        if self._held is None and text:
            self._stream(text)

    def _stream(self, text: str) -> None:
        if self._repeated:
            return
        if not self._streaming:
            self._arguments.key(self._name)
            self._arguments.write('"')
            self._streaming = True
        self._arguments.write(escaped(text))


class TaggedValue:
    """Reads one value up to its end."""

    def __init__(self, cursor: Cursor, tags: Tags, arguments: Arguments, target: TextArgument) -> None:
        self._cursor = cursor
        self._tags = tags
        self._arguments = arguments
        self._target = target
        self._names = arguments.schema.names()
        self._inner_values = 0  # example elements opened inside the value
        self._inner_calls = 0
        self._one_line = True
        self.next_name = ""
        """With ValueEnd.NEXT: the name of the element that has begun."""

    def read(self) -> Steps[ValueEnd]:
        """Consume the value and what ends it; its text goes to the target."""
        tags = self._tags
        marks = (tags.close, tags.opens, *tags.ends, *tags.nested)
        while True:
            plain = self._cursor.run(_PLAIN)
            if plain:
                self._write(plain)
            if not (yield from self._cursor.peek()):
                return ValueEnd.CUT
            mark = yield from self._cursor.match(marks)
            if not mark:
                self._write(self._cursor.take(1))
                continue
            text = self._cursor.take(len(mark))
            if mark == tags.close:
                end = yield from self._at_close(text)
            elif mark == tags.opens:
                end = yield from self._at_open(text)
            elif mark in tags.ends:
                end = yield from self._at_end(text, mark)
            else:
                self._inner_calls += 1
                end = None
                self._write(text)
            if end is not None:
                self._target.finish(closed=end is ValueEnd.CLOSED)
                return end

    def _write(self, text: str) -> None:
        self._one_line = self._one_line and "\n" not in text
        self._target.write(text)

    @property
    def _inside_example(self) -> bool:
        return self._inner_values > 0 or self._inner_calls > 0

    def _at_close(self, text: str) -> Steps[ValueEnd | None]:
        if not self._inner_values:
            spaces = yield from self._cursor.spaces()
            if self._cursor.done or (yield from self._cursor.match(self._tags.follow)):
                return ValueEnd.CLOSED
            self._write(text + spaces)
            return None
        if not self._inner_calls:
            # An element was mentioned but no call around it: the call's own closing tag can only be the real one.
            text += yield from self._cursor.spaces()
            if (yield from self._cursor.match(self._tags.ends)):
                return ValueEnd.CLOSED
            if (yield from self._cursor.skip(self._tags.opens)):
                return (yield from self._at_next(text + self._tags.opens))
        self._inner_values = max(0, self._inner_values - 1)
        return (yield from self._whole_end(text, 0, needs_all=True))

    def _at_next(self, text: str) -> Steps[ValueEnd | None]:
        """An element begins behind a closing tag: the next, if it is declared; else all of it is text."""
        header = yield from self._cursor.gather(_HEADER, _MAX_HEADER)
        ended = yield from self._cursor.skip(self._tags.header_end)
        name = self._tags.name_of(header)
        if ended and name in self._names and name not in self._arguments.seen:
            self.next_name = name
            return ValueEnd.NEXT
        self._write(text + header + (self._tags.header_end if ended else ""))
        return None

    def _at_end(self, text: str, mark: str) -> Steps[ValueEnd | None]:
        if self._inner_calls and mark == self._tags.nested[1]:
            self._inner_calls -= 1
            self._write(text)
            return None
        if self._inside_example:
            self._write(text)
            return None
        return (yield from self._whole_end(text, self._tags.ends.index(mark) + 1, needs_all=False))

    def _whole_end(self, text: str, level: int, *, needs_all: bool) -> Steps[ValueEnd | None]:
        """Whether the rest of the call's closing tags follow, and then the end of the answer or another call. What turns
        out to be part of the value is written. With `needs_all`, nothing less than all the tags and the answer's end will do.
        """
        parts = [text]
        closed = 0
        while True:
            parts.append((yield from self._cursor.spaces()))
            complete = level == len(self._tags.ends) or not needs_all
            if self._cursor.done and complete:
                return ValueEnd.CALL
            if not needs_all and (yield from self._cursor.match(self._tags.restarts)):
                return ValueEnd.CALL
            mark = yield from self._cursor.match(self._tags.ends[level:])
            if not mark:
                break
            level = self._tags.ends.index(mark) + 1
            closed += mark == self._tags.nested[1]
            parts.append(self._cursor.take(len(mark)))
        if needs_all:
            self._inner_calls = max(0, self._inner_calls - closed)
        self._write("".join(parts))
        return None

    def _at_open(self, text: str) -> Steps[ValueEnd | None]:
        at_line_start = self._target.at_line_start
        header = yield from self._cursor.gather(_HEADER, _MAX_HEADER)
        if not (yield from self._cursor.skip(self._tags.header_end)):
            self._write(text + header)
            return None
        name = self._tags.name_of(header)
        is_next = name in self._names and name not in self._arguments.seen and not self._inside_example
        if is_next and (at_line_start or self._one_line):
            self.next_name = name
            return ValueEnd.NEXT
        self._inner_values += 1
        self._write(text + header + self._tags.header_end)
        return None
