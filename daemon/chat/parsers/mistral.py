"""Mistral's calls: `[TOOL_CALLS]NAME[ARGS]{…}` since v11, and `[TOOL_CALLS][{"name": …, "arguments": …}]` before."""

import re

from daemon.chat.parsers.call_json import CallObjects
from daemon.chat.parsers.cursor import Steps
from daemon.chat.parsers.desk import Desk, Verdict
from daemon.chat.parsers.loose_json import LooseJson, read_arguments

OPENER = "[TOOL_CALLS]"
_ARGS = "[ARGS]"
_CALL_ID = "[CALL_ID]"
_NAME = re.compile(r"[^\s\[\]{}<>\"'`,;]+")
_SURPLUS = re.compile(r"[\s}]+")
_MAX_NAME = 256
_OBJECTS = CallObjects()


class Mistral:
    """Reads what stands behind `[TOOL_CALLS]`."""

    def parse(self, opener: str, desk: Desk) -> Steps[Verdict]:
        """See CallParser."""
        del opener
        cursor = desk.cursor
        yield from cursor.spaces()
        if (yield from cursor.peek()) in {"[", "{"} and not (yield from cursor.match((_ARGS, _CALL_ID))):
            return (yield from _OBJECTS.parse("", desk))
        verdict = yield from self._named(desk)
        # v11 repeats the marker before each call; some quants leave it out.
        while verdict is Verdict.DONE:
            yield from cursor.gather(_SURPLUS, None)
            if not (yield from cursor.match((OPENER,))):
                return verdict
            cursor.take(len(OPENER))
            yield from cursor.spaces()
            verdict = yield from self._named(desk)
        return verdict

    def _named(self, desk: Desk) -> Steps[Verdict]:
        cursor = desk.cursor
        name = yield from cursor.gather(_NAME, _MAX_NAME)
        yield from cursor.spaces()
        if not name:
            return Verdict.CUT if cursor.done else Verdict.TEXT
        if (yield from cursor.skip(_CALL_ID)):
            yield from cursor.gather(_NAME, _MAX_NAME)
            yield from cursor.spaces()
        marked = yield from cursor.skip(_ARGS)
        if cursor.done:
            return Verdict.CUT
        first = yield from LooseJson(cursor).first()
        if not marked and first != "{":
            return Verdict.CUT if not first else Verdict.TEXT
        arguments = desk.open(name)
        verdict = yield from read_arguments(LooseJson(cursor), cursor, arguments)
        if verdict is Verdict.DONE:
            desk.complete(arguments)
        return verdict
