"""Whether a place in visible text is inside Markdown code, where a tag is an example and not an action."""

import re

_MARKS = re.compile(r"\n|`+|~+|[^\n`~]+")
_SPECIAL = re.compile(r"[\n`~]")
_MIN_FENCE = 3


class CodeTracker:
    """Follows text as it is shown. A fence opens and closes at the start of a line; a code span does not outlive its line."""

    __slots__ = ("_fence", "_indent", "_opening", "_run", "_run_length", "_span")

    def __init__(self) -> None:
        self._fence = ""  # the character of the fence in force; empty outside
        self._opening = 0  # length of the run that opened it, while its line lasts
        self._indent = True  # only white space so far on this line
        self._span = 0  # length of the backtick run that opened the code span in force
        self._run = ""  # character of a run at the end of what was shown: more of it may come
        self._run_length = 0

    def show(self, text: str) -> None:
        """Text was shown."""
        if not self._run and _SPECIAL.search(text) is None:
            self._indent = self._indent and not text.strip()
            return
        for found in _MARKS.finditer(text):
            part = found[0]
            if part[0] in "`~":
                if part[0] != self._run:
                    self.settle()
                self._run = part[0]
                self._run_length += len(part)
                continue
            self.settle()
            if part == "\n":
                self._indent = True
                self._span = self._opening = 0
            elif part.strip():
                self._indent = False

    def settle(self) -> None:
        """What comes next is no part of a run of backticks or tildes."""
        if self._run:
            char, length = self._run, self._run_length
            self._run, self._run_length = "", 0
            fence = self._indent and length >= _MIN_FENCE
            self._indent = False
            self._mark(char, length, fence=fence)

    def _mark(self, char: str, length: int, *, fence: bool) -> None:
        if self._opening and char == self._fence == "`":
            # Backticks behind a fence on its own line: it was a code span.
            self._span, self._fence, self._opening = self._opening, "", 0
        if self._fence:
            if fence and char == self._fence:
                self._fence = ""
        elif fence:
            self._fence, self._opening = char, length
        elif char == "`":
            self._span = 0 if self._span == length else self._span or length

    @property
    def fence(self) -> bool:
        """Whether a fence is open. Call `settle` before."""
        return bool(self._fence)

    @property
    def span(self) -> bool:
        """Whether a code span is open on this line. Call `settle` before."""
        return self._span > 0 and not self._fence

    @property
    def line_start(self) -> bool:
        """Whether nothing but white space stands on this line. Call `settle` before."""
        return self._indent
