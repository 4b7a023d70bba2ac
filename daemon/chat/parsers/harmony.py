"""gpt-oss's harmony format (placeholder: everything is visible text)."""

from daemon.chat.parsers.cursor import Cursor, Steps
from daemon.chat.parsers.desk import Toolbox
from daemon.chat.parsers.transcript import Transcript


class Harmony:
    def __init__(self, cursor: Cursor, transcript: Transcript, tools: Toolbox, *, inside: bool) -> None:
        self._cursor = cursor
        self._transcript = transcript
        self.inside = inside

    def run(self) -> Steps[None]:
        while (yield from self._cursor.peek()):
            self._transcript.content(self._cursor.take(1))
        self._transcript.finish()
