"""Calls written as JSON objects, `{"name": …, "arguments": {…}}`, alone, glued together or in a list."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from daemon.chat.coerce import quoted
from daemon.chat.parsers.cursor import Cursor, Steps
from daemon.chat.parsers.desk import Arguments, Desk, Verdict
from daemon.chat.parsers.loose_json import LooseJson, read_arguments
from daemon.core.events import Ending

_NAME_KEYS = frozenset({"name", "tool", "tool_name", "function"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters", "args", "params", "input"})
_OTHER_KEYS = frozenset({"type", "id", "call_id", "tool_call_id"})
_BETWEEN = re.compile(r"[\s,;]+")
_SURPLUS = re.compile(r"[\s}]+")


@dataclass(frozen=True, slots=True)
class CallObjects:
    """Reads call objects. With `bare`, no tag says that these are calls, so that nothing but a declared tool's name with
    its arguments is one.
    """

    closers: tuple[str, ...] = ()
    bare: bool = False

    def parse(self, opener: str, desk: Desk) -> Steps[Verdict]:
        """One or more objects, or a list of them, from the next character on; `opener` is a bracket that is consumed."""
        in_list = opener == "["
        if (yield from desk.cursor.peek()) == "[":
            desk.cursor.take(1)
            in_list = True
            yield from desk.cursor.spaces()
        done = False
        while True:
            if (yield from desk.cursor.peek()) != "{":
                if not done:
                    return Verdict.CUT if desk.cursor.done else Verdict.TEXT
                if in_list:
                    yield from desk.cursor.skip("]")
                return Verdict.DONE
            call = _CallObject(desk, self)
            verdict = yield from call.read()
            if verdict is not Verdict.DONE:
                return verdict if call.named or not self.bare else Verdict.TEXT
            done = True
            if not self.bare:
                yield from desk.cursor.gather(_SURPLUS, None)
            yield from desk.cursor.gather(_BETWEEN, None)


class _CallObject:
    """One call object while it is read."""

    def __init__(self, desk: Desk, rules: CallObjects) -> None:
        self._desk = desk
        self._bare = rules.bare
        self._cursor = desk.cursor
        self._json = LooseJson(desk.cursor, rules.closers)
        self._nested = False  # whether the call is wrapped in an object of its own, as OpenAI's are
        self._name: str | None = None
        self._early: list[str] | None = None  # arguments that came before the name
        self._others: list[tuple[str, str]] = []  # members that are neither: arguments that were not put into an object
        self._arguments: Arguments | None = None  # read, but not closed before the object is

    def read(self) -> Steps[Verdict]:
        verdict = yield from self._members()
        if verdict is not Verdict.DONE:
            return verdict
        if self._arguments is None:
            verdict = yield from self._without_arguments()
        if verdict is Verdict.DONE and self._arguments is not None:
            self._desk.complete(self._arguments)
        return verdict

    @property
    def named(self) -> bool:
        """Whether the object has named a tool."""
        return self._name is not None and (not self._bare or self._desk.tools.declared(self._name))

    @property
    def _unfit(self) -> Verdict:
        """The verdict on an object that is no call."""
        if self._cursor.done:
            return Verdict.CUT
        return Verdict.BROKEN if self._arguments is not None or not self._bare else Verdict.TEXT

    def _members(self) -> Steps[Verdict]:
        self._cursor.take(1)
        separated = True
        while True:
            first = yield from self._json.first()
            if first == "}":
                self._cursor.take(1)
                return Verdict.DONE
            if first == "<" and (yield from self._json.closed_by_tag()):
                return Verdict.DONE
            if not separated:
                return self._unfit
            key = yield from self._json.key()
            if key is None:
                return self._unfit
            verdict = yield from self._member(key)
            if verdict is not Verdict.DONE:
                return verdict
            separated = yield from self._json.separator()

    def _member(self, key: str) -> Steps[Verdict]:
        first = yield from self._json.first()
        if key == "function" and first == "{" and not self._nested:
            self._nested = True
            return (yield from self._members())
        if key in _NAME_KEYS and first in {'"', "'"} and self._name is None:
            self._name = yield from self._json.text()
            if self._name is None:
                return Verdict.CUT
            fits = bool(self._name) and (not self._bare or self._desk.tools.declared(self._name))
            return Verdict.DONE if fits else self._unfit
        if key in _ARGUMENT_KEYS and self._arguments is None and self._early is None:
            return (yield from self._read_arguments())
        if self._bare and key not in _OTHER_KEYS:
            return self._unfit
        parts: list[str] = []
        verdict = yield from self._json_value(parts.append)
        if key not in _OTHER_KEYS:
            self._others.append((key, "".join(parts)))
        return verdict

    def _read_arguments(self) -> Steps[Verdict]:
        if self._name is None:
            self._early = []
            return (yield from self._json_value(self._early.append))
        arguments = self._desk.open(self._name)
        verdict = yield from read_arguments(self._json, self._cursor, arguments)
        if verdict is Verdict.DONE:
            self._arguments = arguments
        return verdict

    def _json_value(self, out: Callable[[str], None]) -> Steps[Verdict]:
        first = yield from self._json.first()
        if first in {'"', "'", "{", "["}:
            return (yield from self._json.member(out))
        literal = yield from self._json.scalar()
        if literal is None:
            return self._unfit
        out(literal)
        return Verdict.DONE

    def _without_arguments(self) -> Steps[Verdict]:
        """The object is over and no arguments were written: they came first or one by one, or there are none."""
        if self._name is None:
            return self._unfit
        text = "".join(self._early or ())
        if self._early is None:
            if self._bare or not self._desk.tools.declared(self._name):
                return self._unfit
            names = self._desk.tools.schema(self._name).names()
            text = "{" + ", ".join(f"{quoted(key)}: {value}" for key, value in self._others if key in names) + "}"
        cursor = Cursor()
        cursor.feed(text)
        cursor.close(Ending.STOP)
        self._arguments = self._desk.open(self._name)
        return (yield from read_arguments(LooseJson(cursor), cursor, self._arguments))
