"""A place in text that is still arriving.

Parsers are generators (`Steps`): where the text so far does not decide, they yield, and are resumed when more has come or
when none will. So the same code reads a whole answer at once and one character at a time.
"""

import re
from collections.abc import Generator
from typing import TypeAlias, TypeVar

from daemon.core.events import Ending

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""A parser that ends in a T; each yield asks for more text."""

_SPACES = re.compile(r"\s+")


class Recorder:
    """What a cursor has consumed since a moment, so that a failed attempt can be shown as the text it was."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        """Note consumed text."""
        self._parts.append(text)

    def restart(self) -> None:
        """Forget: what was consumed until now is settled."""
        self._parts.clear()

    @property
    def text(self) -> str:
        """Everything noted."""
        return "".join(self._parts)


class Cursor:
    """Reads text from front to back. Consumed text is gone but for what recorders have noted."""

    __slots__ = ("_at", "_patterns", "_recorders", "_text", "ending", "examined", "starved")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._patterns: dict[tuple[str, ...], re.Pattern[str]] = {}
        self._recorders: list[Recorder] = []
        self.ending: Ending | None = None
        """Why no more text will come; None while more may."""
        self.starved = False
        """Whether a decision was made for want of text: what is left may be the beginning of something looked for."""
        self.examined = 0
        """Characters copied or compared so far: the measure of the work done, for the test that it is linear."""

    def feed(self, text: str) -> None:
        """More text has arrived."""
        rest = self._text[self._at :]
        self.examined += len(rest) + len(text)
        self._text = rest + text
        self._at = 0

    def close(self, ending: Ending) -> None:
        """No more text will come."""
        self.ending = ending

    @property
    def rest(self) -> str:
        """What has arrived and is not consumed."""
        self.examined += len(self._text) - self._at
        return self._text[self._at :]

    @property
    def done(self) -> bool:
        """Whether everything is consumed and no more will come."""
        return self.ending is not None and self._at >= len(self._text)

    def record(self) -> Recorder:
        """Begin to note what is consumed. Pass the recorder to `forget` when it is no longer needed."""
        recorder = Recorder()
        self._recorders.append(recorder)
        return recorder

    def forget(self, recorder: Recorder) -> None:
        """Stop noting."""
        self._recorders.remove(recorder)

    def take(self, count: int) -> str:
        """Consume up to `count` characters that have arrived."""
        text = self._text[self._at : self._at + count]
        self._at += len(text)
        self.examined += len(text)
        for recorder in self._recorders:
            recorder.add(text)
        return text

    def run(self, pattern: re.Pattern[str], limit: int | None = None) -> str:
        """Consume what has arrived as far as `pattern` matches it, up to `limit` characters; may be nothing. Does not wait."""
        end = len(self._text) if limit is None else self._at + limit
        found = pattern.match(self._text, self._at, end)
        return self.take(found.end() - self._at) if found else ""

    def peek(self) -> Steps[str]:
        """The next character, not consumed; empty at the end."""
        while self._at >= len(self._text):
            if self.ending is not None:
                return ""
            yield
        return self._text[self._at]

    def match(self, literals: tuple[str, ...]) -> Steps[str]:
        """The longest of `literals` that the text goes on with, not consumed; empty if none. Waits only while undecided."""
        pattern = self._patterns.get(literals)
        if pattern is None:
            ordered = sorted(literals, key=len, reverse=True)
            pattern = re.compile("|".join(map(re.escape, ordered)) if ordered else "(?!)")
            self._patterns[literals] = pattern
        while True:
            match = pattern.match(self._text, self._at)
            found = match[0] if match else ""
            self.examined += 1
            undecided = self._undecided(literals, len(found))
            if self.ending is not None or not undecided:
                self.starved = self.starved or undecided
                return found
            yield

    def _undecided(self, literals: tuple[str, ...], found: int) -> bool:
        """Whether more text could make a literal of more than `found` characters of what is left."""
        size = len(self._text) - self._at
        return any(size < len(one) and len(one) > found and self._text.startswith(one[:size], self._at) for one in literals)

    def skip(self, literal: str) -> Steps[bool]:
        """Consume `literal` if the text goes on with it."""
        if (yield from self.match((literal,))):
            self.take(len(literal))
            return True
        return False

    def spaces(self) -> Steps[str]:
        """Consume white space, as much as comes."""
        return (yield from self.gather(_SPACES, None))

    def gather(self, pattern: re.Pattern[str], limit: int | None) -> Steps[str]:
        """Consume characters as long as `pattern` (one or more of a class) matches them, waiting for the first that it does
        not match; at most `limit` of them.
        """
        parts: list[str] = []
        count = 0
        while True:
            part = self.run(pattern, None if limit is None else limit - count)
            if part:
                parts.append(part)
                count += len(part)
            if self._at < len(self._text) or self.ending is not None or (limit is not None and count >= limit):
                return "".join(parts)
            yield

    def cut_short(self, literals: tuple[str, ...], *, at_line_start: bool) -> bool:
        """Whether all that is left is the beginning of one of `literals`. A single character in the middle of a line is taken
        for itself.
        """
        left = self.rest
        return len(left) > (not at_line_start) and any(literal.startswith(left) for literal in literals)
