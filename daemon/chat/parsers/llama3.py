"""Llama 3's calls: JSON objects with `parameters`, behind `<|python_tag|>` or bare, and its `<function=NAME>{…}</function>`."""

from daemon.chat.parsers.call_json import CallObjects
from daemon.chat.parsers.cursor import Steps
from daemon.chat.parsers.desk import Desk, Verdict
from daemon.chat.parsers.xml_function import XmlFunction

TAG = "<|python_tag|>"
_TAGGED = CallObjects()
_BARE = CallObjects(bare=True)


class Llama3:
    """Reads calls behind the tag, behind `<function`, or from a bracket on."""

    def parse(self, opener: str, desk: Desk) -> Steps[Verdict]:
        """See CallParser."""
        if not opener:
            return (yield from _BARE.parse("", desk))
        if opener == TAG:
            yield from desk.cursor.spaces()
            return (yield from _TAGGED.parse("", desk))
        return (yield from XmlFunction(desk, bare=True).read())
