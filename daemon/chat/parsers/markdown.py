"""Whether a place in visible text is inside Markdown code, where a tag is an example and not an action."""

import re

_MARKS = re.compile(r"\n|`+|~~~+|[^\n`~]+|~+")
_MIN_FENCE = 3


class CodeTracker:
    """Follows text as it is shown. A fence opens and closes at the start of a line; a code span does not outlive its line."""

    __slots__ = ("_indent", "_run", "_span", "fence")

    def __init__(self) -> None:
        self.fence = ""
        """The run that opened the fence in force; empty outside."""
        self._indent = True  # only white space so far on this line
        self._span = 0  # length of the backtick run that opened the code span in force
        self._run = ""  # a run of backticks or tildes at the end of what was shown: more of it may come

    def show(self, text: str) -> None:
        """Text was shown."""
        text = self._run + text
        self._run = ""
        for found in _MARKS.finditer(text):
            part = found[0]
            if part == "\n":
                self._indent = True
                self._span = 0
            elif part[0] in "`~":
                if found.end() == len(text):
                    self._run = part
                else:
                    self._mark(part)
            elif part.strip():
                self._indent = False

    def _mark(self, run: str) -> None:
        fence = self._indent and len(run) >= _MIN_FENCE
        self._indent = False
        if self.fence:
            if fence and run[0] == self.fence[0] and len(run) >= len(self.fence):
                self.fence = ""
        elif fence:
            self.fence = run
        elif run[0] == "`":
            if self._span == 0:
                self._span = len(run)
            elif self._span == len(run):
                self._span = 0

    def settle(self) -> None:
        """What comes next is no part of a run of backticks."""
        if self._run:
            run, self._run = self._run, ""
            self._mark(run)

    @property
    def span(self) -> bool:
        """Whether a code span is open on this line. Call `settle` before."""
        return self._span > 0 and not self.fence

    @property
    def line_start(self) -> bool:
        """Whether nothing but white space stands on this line. Call `settle` before."""
        return self._indent
