"""JSON as models write it, turned into JSON as parsers accept it, while it arrives.

Well-formed JSON keeps its values exactly. Tolerated beyond it: raw control characters and invalid escapes in strings, single
quotes, quotes inside a string that nothing like an end follows, trailing commas, Python's True, False and None, and missing
closing brackets where a tag closes the whole. Everything else is broken; nothing is guessed about names or structure.
"""

import re
from collections.abc import Callable
from enum import Enum

from daemon.chat.coerce import JsonType, escaped, json_of_scalar, json_of_text, quoted
from daemon.chat.json_values import clean_text, decode_json
from daemon.chat.parsers.cursor import Cursor, Steps
from daemon.chat.parsers.desk import Arguments, Verdict
from daemon.core.events import Ending

MAX_DEPTH = 200
"""Levels of nesting; deeper values are broken."""

_PLAIN = re.compile(r'[^"\'\\\x00-\x1f]+')
_SCALAR = re.compile(r"[A-Za-z0-9+.\-]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_HEX = re.compile(r"[0-9a-fA-F]+")
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_QUOTES = ('"', "'")
_SIMPLE_ESCAPES = '"\\/bfnrt'
_MAX_SCALAR = 400


class _Place(Enum):
    """Where a string stands: what may follow it."""

    KEY = "key"
    MEMBER = "member"
    ITEM = "item"
    WHOLE = "whole"


class LooseJson:
    """Reads JSON values from a cursor. `closers` are the tags that may stand where brackets are missing."""

    def __init__(self, cursor: Cursor, closers: tuple[str, ...] = ()) -> None:
        self._cursor = cursor
        self._closers = closers
        self._comma = False  # a comma behind a string has been consumed while looking for the string's end

    # --- whole values -------------------------------------------------------------------------------------------------

    def value(self, out: Callable[[str], None]) -> Steps[Verdict]:
        """Any value, written to `out` as it arrives."""
        first = yield from self.first()
        if first in _QUOTES:
            return (yield from self._string(out, _Place.WHOLE))
        if first not in {"{", "["}:
            literal = yield from self.scalar()
            if literal is None:
                return self._missing(first)
            out(literal)
            return Verdict.DONE
        return (yield from self._nested(out))

    def member(self, out: Callable[[str], None]) -> Steps[Verdict]:
        """The string, object or array that comes next, as a member of an object."""
        if (yield from self.first()) in _QUOTES:
            return (yield from self._string(out, _Place.MEMBER))
        return (yield from self._nested(out))

    def first(self) -> Steps[str]:
        """The next character that is no white space, not consumed."""
        yield from self._cursor.spaces()
        return (yield from self._cursor.peek())

    def scalar(self) -> Steps[str | None]:
        """A number, boolean or null as JSON text; None where there is none. Consumes what it looked at."""
        word = yield from self._cursor.gather(_SCALAR, _MAX_SCALAR)
        if word in _WORDS:
            return _WORDS[word]
        return word if _NUMBER.fullmatch(word) else None

    def text(self) -> Steps[str | None]:
        """A member's string, decoded; None where it is cut off. The opening quote comes next."""
        return (yield from self._text(_Place.MEMBER))

    def _text(self, place: _Place) -> Steps[str | None]:
        parts: list[str] = []
        verdict = yield from self._string(parts.append, place)
        if verdict is not Verdict.DONE:
            return None
        decoded = decode_json("".join(parts))
        return clean_text(decoded) if isinstance(decoded, str) else None

    def key(self) -> Steps[str | None]:
        """An object's next key, its colon consumed; None where there is none."""
        if (yield from self.first()) not in _QUOTES:
            return None
        name = yield from self._text(_Place.KEY)
        yield from self._cursor.spaces()
        if name is None or not (yield from self._cursor.skip(":")):
            return None
        yield from self._cursor.spaces()
        return name

    def separator(self) -> Steps[bool]:
        """Consume a comma, if there is one or was one behind the last string."""
        yield from self._cursor.spaces()
        consumed, self._comma = self._comma, False
        return consumed or (yield from self._cursor.skip(","))

    def closed_by_tag(self) -> Steps[bool]:
        """Whether a closing tag stands where a bracket should."""
        return bool(self._closers) and bool((yield from self._cursor.match(self._closers)))

    def _missing(self, first: str) -> Verdict:
        return Verdict.CUT if not first or self._cursor.done else Verdict.BROKEN

    # --- objects and arrays -------------------------------------------------------------------------------------------

    def _nested(self, out: Callable[[str], None]) -> Steps[Verdict]:
        """An object or array, however deep, without recursion."""
        stack: list[str] = []
        lead = ""  # what stands before the next element: nothing, or the comma that a closing bracket makes superfluous
        while True:
            first = yield from self.first()
            if stack and first == stack[-1]:
                self._cursor.take(1)
                out(stack.pop())
            elif stack and first == "<" and (yield from self.closed_by_tag()):
                out("".join(reversed(stack)))
                return Verdict.DONE
            else:
                out(lead)
                depth = len(stack)
                verdict = yield from self._element(out, stack)
                if verdict is not Verdict.DONE:
                    return verdict
                if len(stack) > depth:
                    lead = ""
                    continue
            if not stack:
                return Verdict.DONE
            lead = ", "
            if not (yield from self.separator()):
                verdict = yield from self._at_closing(stack[-1])
                if verdict is not Verdict.DONE:
                    return verdict

    def _element(self, out: Callable[[str], None], stack: list[str]) -> Steps[Verdict]:
        """An element: in an object a key, then a value or the bracket that opens one, which is put on the stack."""
        place = _Place.ITEM
        first = yield from self._cursor.peek()
        if stack and stack[-1] == "}":
            place = _Place.MEMBER
            name = yield from self.key()
            if name is None:
                return self._missing(first)
            out(quoted(name) + ": ")
            first = yield from self._cursor.peek()
        if first not in {"{", "["}:
            return (yield from self._leaf(out, first, place))
        if len(stack) >= MAX_DEPTH:
            return Verdict.BROKEN
        self._cursor.take(1)
        stack.append("}" if first == "{" else "]")
        out(first)
        return Verdict.DONE

    def _at_closing(self, bracket: str) -> Steps[Verdict]:
        """Whether, no comma being there, `bracket` or a closing tag is."""
        first = yield from self.first()
        if first == bracket or (first == "<" and (yield from self.closed_by_tag())):
            return Verdict.DONE
        return self._missing(first)

    def _leaf(self, out: Callable[[str], None], first: str, place: _Place) -> Steps[Verdict]:
        if first in _QUOTES:
            return (yield from self._string(out, place))
        literal = yield from self.scalar()
        if literal is None:
            return self._missing(first)
        out(literal)
        return Verdict.DONE

    # --- strings ------------------------------------------------------------------------------------------------------

    def _string(self, out: Callable[[str], None], place: _Place) -> Steps[Verdict]:
        """A string with its quotes; the opening one comes next."""
        out('"')
        verdict = yield from self.inner(out, place)
        if verdict is Verdict.DONE:
            out('"')
        return verdict

    def inner(self, out: Callable[[str], None], place: _Place = _Place.MEMBER) -> Steps[Verdict]:
        """A string's inside, escaped as JSON wants it, as it arrives."""
        quote = self._cursor.take(1)
        while True:
            plain = self._cursor.run(_PLAIN)
            if plain:
                out(plain)
            char = yield from self._cursor.peek()
            if not char:
                return Verdict.CUT
            if char == "\\":
                yield from self._escape(out)
            elif char == quote:
                literal = yield from self._beyond_quote(quote, place)
                if literal is None:
                    return Verdict.DONE
                out(escaped(literal))
            elif char == "'":
                out(self._cursor.take(1))
            elif char == '"' or char < " ":
                out(escaped(self._cursor.take(1)))

    def _escape(self, out: Callable[[str], None]) -> Steps[None]:
        self._cursor.take(1)
        char = yield from self._cursor.peek()
        if char and char in _SIMPLE_ESCAPES:
            out("\\" + self._cursor.take(1))
        elif char == "'":
            out(self._cursor.take(1))
        elif char == "u":
            self._cursor.take(1)
            digits = ""
            while len(digits) < 4:  # noqa: PLR2004  # JSON's \uXXXX
                digit = yield from self._cursor.peek()
                if not digit or not _HEX.fullmatch(digit):
                    break
                digits += self._cursor.take(1)
            out(("\\u" if len(digits) == 4 else "\\\\u") + digits)  # noqa: PLR2004  # as above
        elif char:
            out("\\\\")

    def _beyond_quote(self, quote: str, place: _Place) -> Steps[str | None]:
        """Consume a quote and decide whether it ends the string: None if so, else the text it and its successors are."""
        self._cursor.take(1)
        if place is _Place.WHOLE:
            return None
        spaces = yield from self._cursor.spaces()
        first = yield from self._cursor.peek()
        if not first:
            return None
        if place is _Place.KEY:
            return None if first == ":" else quote + spaces
        if first == ("]" if place is _Place.ITEM else "}") or (first == "<" and (yield from self.closed_by_tag())):
            return None
        if first != ",":
            return quote + spaces
        self._cursor.take(1)
        more = yield from self._cursor.spaces()
        second = yield from self._cursor.peek()
        if not second or (yield from self._may_go_on(second, place)):
            self._comma = True
            return None
        return f"{quote}{spaces},{more}"

    def _may_go_on(self, first: str, place: _Place) -> Steps[bool]:
        """Whether an object or array may go on with `first` behind a comma."""
        if first in _QUOTES:
            return True
        if place is _Place.MEMBER:
            return first == "}"
        if first in "[{]-0123456789":
            return True
        return bool((yield from self._cursor.match(tuple(_WORDS))))


def strict_json(text: str) -> str | None:
    """Loosely written JSON (an object, array or other value) as JSON text; None where it is none or more follows."""
    cursor = Cursor()
    cursor.feed(text)
    cursor.close(Ending.STOP)
    parts: list[str] = []
    verdict = _finished(LooseJson(cursor).value(parts.append))
    if verdict is not Verdict.DONE or cursor.rest.strip():
        return None
    return "".join(parts)


def _finished(steps: Steps[Verdict]) -> Verdict:
    """The result of steps that need not wait."""
    while True:
        try:
            next(steps)
        except StopIteration as over:
            result: object = over.value
            return result if isinstance(result, Verdict) else Verdict.BROKEN


def nowhere(_text: str) -> None:
    """Where values go that nobody wants."""


def read_arguments(json: LooseJson, cursor: Cursor, arguments: Arguments) -> Steps[Verdict]:
    """A call's arguments: an object, nothing (null, an empty string) or an object written into a string. The caller closes
    them, once the call around them is complete.
    """
    first = yield from json.first()
    if first == "{":
        return (yield from _object(json, cursor, arguments))
    if first in _QUOTES:
        text = yield from json.text()
        if text is None:
            return Verdict.CUT
        return _from_text(text, arguments)
    literal = yield from json.scalar()
    if literal != "null":
        return Verdict.CUT if not first else Verdict.BROKEN
    return Verdict.DONE


def _from_text(text: str, arguments: Arguments) -> Verdict:
    if text.strip() in {"", "null"}:
        return Verdict.DONE
    strict = strict_json(text.strip()) if text.strip()[0] == "{" else None
    if strict is None:
        return Verdict.BROKEN
    cursor = Cursor()
    cursor.feed(strict)
    cursor.close(Ending.STOP)
    return _finished(_object(LooseJson(cursor), cursor, arguments))


def _object(json: LooseJson, cursor: Cursor, arguments: Arguments) -> Steps[Verdict]:
    cursor.take(1)
    separated = True
    while True:
        first = yield from json.first()
        if first == "}":
            cursor.take(1)
            return Verdict.DONE
        if first == "<" and (yield from json.closed_by_tag()):
            return Verdict.DONE
        if not separated or first not in _QUOTES:
            return Verdict.BROKEN if first else Verdict.CUT
        name = yield from json.key()
        if name is None:
            return Verdict.CUT if cursor.done else Verdict.BROKEN
        verdict = yield from _argument(json, cursor, arguments, name)
        if verdict is not Verdict.DONE:
            return verdict
        separated = yield from json.separator()


def _argument(json: LooseJson, cursor: Cursor, arguments: Arguments, name: str) -> Steps[Verdict]:
    """One argument's value, as its schema wants it."""
    schema = arguments.schema.property(name)
    first = yield from cursor.peek()
    repeated = name in arguments.seen
    if first in {"{", "["} or (first in _QUOTES and JsonType.STRING in schema.types):
        if repeated:
            return (yield from json.member(nowhere))
        arguments.key(name)
        return (yield from json.member(arguments.write))
    if first in _QUOTES:
        text = yield from json.text()
        if text is None:
            return Verdict.CUT
        literal = json_of_text(text, schema, strict_json) or quoted(text)
    else:
        number = yield from json.scalar()
        if number is None:
            return Verdict.CUT if not first or cursor.done else Verdict.BROKEN
        literal = json_of_scalar(number, schema)
    if not repeated:
        arguments.key(name)
        arguments.write(literal)
    return Verdict.DONE
