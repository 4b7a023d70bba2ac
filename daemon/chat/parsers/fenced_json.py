"""Calls without any tag: a JSON call object, or a list of them, that is the whole visible answer, perhaps in a code fence."""

import re

from daemon.chat.parsers.call_json import CallObjects
from daemon.chat.parsers.cursor import Steps
from daemon.chat.parsers.desk import Desk, Verdict

_WORD = re.compile(r"[a-z_]+")
_FENCE = "```"
_OBJECTS = CallObjects(bare=True)


class FencedJson:
    """Reads call objects, also from a fence."""

    def parse(self, opener: str, desk: Desk) -> Steps[Verdict]:
        """See CallParser. `opener` is empty: the next character is a bracket or a backtick."""
        del opener
        cursor = desk.cursor
        if (yield from cursor.peek()) != "`":
            return (yield from _OBJECTS.parse("", desk))
        if not (yield from cursor.skip(_FENCE)):
            cursor.take(1)
            return Verdict.TEXT
        yield from cursor.gather(_WORD, len("tool_calls"))
        yield from cursor.spaces()
        if (yield from cursor.match(("{", "["))):
            verdict = yield from _OBJECTS.parse("", desk)
            if verdict is not Verdict.DONE:
                return verdict
            yield from cursor.spaces()
            if (yield from cursor.skip(_FENCE)):
                return Verdict.DONE
        return Verdict.TEXT
