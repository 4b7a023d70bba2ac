"""Functions as GLM writes them: a name, then `<arg_key>NAME</arg_key><arg_value>VALUE</arg_value>` pairs."""

import re

from daemon.chat.parsers.cursor import Steps
from daemon.chat.parsers.desk import Arguments, Desk, Verdict
from daemon.chat.parsers.loose_json import LooseJson, read_arguments
from daemon.chat.parsers.tagged import TaggedValue, Tags, TextArgument, ValueEnd

_NAME = re.compile(r"[^\s<>\"'`(){}\[\],;]+")
_KEY = re.compile(r"[^<>\n]+")
_MAX_NAME = 256
_OPENER = "<tool_call>"
_CLOSER = "</tool_call>"
_KEY_OPENER = "<arg_key>"
_KEY_CLOSER = "</arg_key>"
_VALUE_OPENER = "<arg_value>"

TAGS = Tags(
    close="</arg_value>",
    follow=(_KEY_OPENER, _CLOSER, _OPENER, "</think>"),
    opens=_KEY_OPENER,
    header_end=_KEY_CLOSER,
    ends=(_CLOSER,),
    restarts=(_OPENER, "</think>"),
    nested=(_OPENER, _CLOSER),
    layout=False,
    name_of=str.strip,
)


class GlmFunction:
    """Reads what stands behind `<tool_call>` where that is neither JSON nor XML; the closing tag is left."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._cursor = desk.cursor
        self._any = False

    def read(self) -> Steps[Verdict]:
        """Consume the call up to its closing tag, and those that begin where that was forgotten."""
        name = yield from self._cursor.gather(_NAME, _MAX_NAME)
        while True:
            self._any = False
            following = yield from self._call(name)
            if isinstance(following, Verdict):
                return following
            name = following

    def _call(self, name: str) -> Steps[Verdict | str]:
        """One call behind its name; the name of the next where that has begun."""
        yield from self._cursor.spaces()
        if not name or self._cursor.done:
            return self._at_end_of_answer(name)
        mark = yield from self._cursor.match((_KEY_OPENER, _CLOSER, _OPENER, "{"))
        if not mark or (mark != _KEY_OPENER and not self._desk.tools.declared(name)):
            return Verdict.CUT if self._cursor.done else Verdict.TEXT
        arguments = self._desk.open(name)
        if mark == "{":
            verdict = yield from read_arguments(LooseJson(self._cursor, (_CLOSER,)), self._cursor, arguments)
            if verdict is Verdict.DONE:
                self._desk.complete(arguments)
            return verdict
        return (yield from self._pairs(arguments))

    def _at_end_of_answer(self, name: str) -> Verdict:
        if not name:
            return Verdict.CUT if self._cursor.done else Verdict.TEXT
        if self._desk.stopped and self._desk.tools.declared(name) and not self._desk.tools.schema(name).required():
            return self._complete(self._desk.open(name))
        return Verdict.CUT

    def _complete(self, arguments: Arguments) -> Verdict:
        self._desk.complete(arguments)
        return Verdict.DONE

    def _pairs(self, arguments: Arguments) -> Steps[Verdict | str]:
        cursor = self._cursor
        while True:
            yield from cursor.spaces()
            mark = yield from cursor.match((_KEY_OPENER, _CLOSER, _OPENER))
            if mark == _CLOSER:
                return self._complete(arguments)
            if not mark:
                if cursor.done:
                    return self._complete(arguments) if self._desk.stopped and self._any else Verdict.CUT
                return self._complete(arguments) if self._any else Verdict.TEXT
            cursor.take(len(mark))
            name = (yield from cursor.gather(_KEY, _MAX_NAME)).strip()
            keyed = yield from cursor.skip(_KEY_CLOSER)
            if cursor.done:
                return Verdict.CUT
            if mark == _OPENER and not keyed:
                # No misspelt key: the next call begins, and the closing tag before it was forgotten.
                self._complete(arguments)
                return name
            yield from cursor.spaces()
            valued = yield from cursor.skip(_VALUE_OPENER)
            if not name or not (keyed or valued):
                return Verdict.CUT if cursor.done else Verdict.BROKEN
            verdict = yield from self._value(arguments, name)
            if verdict is not None:
                return verdict

    def _value(self, arguments: Arguments, name: str) -> Steps[Verdict | None]:
        """One value, and those that begin where its closing tag was forgotten."""
        while True:
            self._any = True
            reader = TaggedValue(self._cursor, TAGS, arguments, TextArgument(arguments, name, layout=False))
            end = yield from reader.read()
            match end:
                case ValueEnd.CLOSED:
                    return None
                case ValueEnd.NEXT:
                    name = reader.next_name
                    yield from self._cursor.spaces()
                    yield from self._cursor.skip(_VALUE_OPENER)
                case ValueEnd.CALL:
                    return self._complete(arguments)
                case ValueEnd.CUT:
                    return Verdict.CUT
