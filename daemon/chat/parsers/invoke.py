"""Calls as `<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>` in an envelope: MiniMax, and DeepSeek since
V3.2 with a mark in each tag.
"""

import re

from daemon.chat.parsers.call_json import CallObjects
from daemon.chat.parsers.cursor import Steps
from daemon.chat.parsers.desk import Arguments, Desk, Verdict
from daemon.chat.parsers.loose_json import LooseJson, read_arguments
from daemon.chat.parsers.tagged import TaggedValue, Tags, TextArgument, ValueEnd

_HEADER = re.compile(r"[^<>\n]+")
_UNTIL_TAG = re.compile(r"[^<]+")
_NAMED = re.compile(r"\s*name\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+))")
_MAX_HEADER = 256


def _name_of(header: str) -> str:
    found = _NAMED.match(header)
    return next((name for name in found.groups() if name), "") if found else ""


class Invoke:
    """Reads what stands behind the envelope's opening tag."""

    def __init__(self, mark: str, envelope: str) -> None:
        self._function = f"<{mark}invoke"
        self._closer = f"</{mark}invoke>"
        self._parameter = f"<{mark}parameter"
        self._envelope_closer = f"</{envelope}>"
        self._envelope_opener = f"<{envelope}>"
        self._objects = CallObjects(closers=(self._envelope_closer,))
        self._tags = Tags(
            close=f"</{mark}parameter>",
            follow=(self._parameter, self._closer, self._envelope_closer, self._function, "</think>"),
            opens=self._parameter,
            header_end=">",
            ends=(self._closer, self._envelope_closer),
            restarts=(self._function, self._envelope_opener, "</think>"),
            nested=(self._function, self._closer),
            layout=False,
            name_of=_name_of,
        )

    def parse(self, opener: str, desk: Desk) -> Steps[Verdict]:
        """See CallParser."""
        del opener
        complete = False
        while True:
            yield from desk.cursor.spaces()
            first = yield from desk.cursor.peek()
            if not first:
                return Verdict.DONE if complete else Verdict.CUT
            mark = yield from desk.cursor.match((self._function, self._envelope_closer, self._closer))
            if mark:
                desk.cursor.take(len(mark))
            if mark == self._envelope_closer:
                return Verdict.DONE
            if mark == self._closer and complete:
                continue
            if mark == self._function:
                verdict = yield from self._call(desk)
            elif first in "{[" and not complete:
                verdict = yield from self._objects.parse("", desk)
            else:
                return Verdict.DONE if complete else Verdict.TEXT
            if verdict is not Verdict.DONE:
                return verdict
            complete = True

    def _call(self, desk: Desk) -> Steps[Verdict]:
        """One invoke element behind `<invoke`."""
        cursor = desk.cursor
        name = _name_of((yield from cursor.gather(_HEADER, _MAX_HEADER)))
        closed = yield from cursor.skip(">")
        if not closed or not name:
            return Verdict.CUT if cursor.done else Verdict.TEXT
        arguments = desk.open(name)
        while True:
            yield from cursor.spaces()
            mark = yield from cursor.match((self._parameter, self._closer, self._envelope_closer, self._function))
            if mark == self._parameter:
                cursor.take(len(mark))
                verdict = yield from self._parameters(desk, arguments)
            elif mark or cursor.done:
                if mark == self._closer:
                    cursor.take(len(mark))
                if not mark and not (desk.stopped and arguments.seen):
                    return Verdict.CUT
                verdict = _complete(desk, arguments)
            elif not arguments.seen and (yield from cursor.peek()) == "{":
                verdict = yield from self._json(desk, arguments)
            else:
                verdict = yield from self._drift(desk, arguments)
            if verdict is not None:
                return verdict

    def _json(self, desk: Desk, arguments: Arguments) -> Steps[Verdict]:
        json = LooseJson(desk.cursor, (self._closer, self._envelope_closer))
        verdict = yield from read_arguments(json, desk.cursor, arguments)
        if verdict is Verdict.DONE:
            desk.complete(arguments)
            yield from desk.cursor.spaces()
            yield from desk.cursor.skip(self._closer)
        return verdict

    def _drift(self, desk: Desk, arguments: Arguments) -> Steps[Verdict | None]:
        """Something between elements that belongs to none."""
        if not arguments.seen:
            return Verdict.BROKEN
        desk.cursor.take(1)
        yield from desk.cursor.gather(_UNTIL_TAG, None)
        return None

    def _parameters(self, desk: Desk, arguments: Arguments) -> Steps[Verdict | None]:
        """One parameter behind `<parameter`, and those that begin where a closing tag was forgotten."""
        header = yield from desk.cursor.gather(_HEADER, _MAX_HEADER)
        closed = yield from desk.cursor.skip(">")
        name = _name_of(header)
        if not closed or not name:
            return Verdict.CUT if desk.cursor.done else Verdict.BROKEN
        while True:
            reader = TaggedValue(desk.cursor, self._tags, arguments, TextArgument(arguments, name, layout=False))
            end = yield from reader.read()
            match end:
                case ValueEnd.CLOSED:
                    return None
                case ValueEnd.NEXT:
                    name = reader.next_name
                case ValueEnd.CALL:
                    return _complete(desk, arguments)
                case ValueEnd.CUT:
                    return Verdict.CUT


def _complete(desk: Desk, arguments: Arguments) -> Verdict:
    desk.complete(arguments)
    return Verdict.DONE
