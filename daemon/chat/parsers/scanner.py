"""The walk through an answer of a model that marks thoughts and calls with tags inside ordinary text.

At each tag it decides whether it is one: tags in Markdown code are examples, a thought begins only at the start of a line,
a call is what can be read as a call. Calls that what follows may turn into examples (those inside a thought or an open
fence) are held until the answer shows it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from daemon.chat.parsers.cursor import Cursor, Steps
from daemon.chat.parsers.desk import CallParser, Desk, Toolbox, Verdict
from daemon.chat.parsers.markdown import CodeTracker
from daemon.chat.parsers.transcript import HeldCalls, Transcript
from daemon.core.events import Ending


@dataclass(frozen=True, slots=True)
class Thinking:
    """The tags around a model's thoughts."""

    open: str
    close: str
    anywhere: bool = False
    """Whether the opening tag counts in the middle of a line too: nobody writes such a tag in prose."""


@dataclass(frozen=True, slots=True)
class Bare:
    """How calls are recognised that no tag announces."""

    starts: str
    """Characters such a call begins with."""
    parser: CallParser
    anywhere: bool = False
    """Whether it may stand behind text; else it is looked for only where the visible answer begins."""
    held: bool = True
    """Whether it counts only if nothing but calls follows."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a call format looks like from outside."""

    openers: tuple[str, ...] = ()
    parser: CallParser | None = None
    strays: tuple[str, ...] = ()
    """Closing tags that may be left over; they are no content."""
    bare: Bare | None = None


@dataclass
class Place:
    """Where the walk is: what can change at a tag."""

    thinking: bool
    last: str = ""
    """The last character of the thought so far."""
    thought: bool = False
    """Whether the thought has any text."""
    fresh: bool = True
    """Whether no visible text has come since the answer or the last thought began or ended."""
    shown: int = 0
    """Openers that were shown as text, so that their closing tags are shown too."""
    shown_thoughts: int = 0
    """The same for the tag that begins a thought."""
    tracker: CodeTracker = field(default_factory=CodeTracker)


class Scanner:
    """One answer. `run` is the parser; deltas appear in the transcript."""

    def __init__(
        self, cursor: Cursor, transcript: Transcript, grammar: Grammar, thinking: Thinking | None, tools: Toolbox, *, inside: bool
    ) -> None:
        self._cursor = cursor
        self._transcript = transcript
        self._grammar = grammar if tools else Grammar()
        self._thinking = thinking
        self._tools = tools
        self._at = Place(thinking=inside and thinking is not None)
        self._between = False
        """Whether the walk waits between two tags, everything before consumed."""
        thought_marks = (thinking.open, thinking.close) if thinking else ()
        openers = self._grammar.openers
        self._content_marks = (*thought_marks, *openers, *self._grammar.strays)
        self._thought_marks = (*thought_marks, *openers)
        bare = self._grammar.bare
        starts = bare.starts if bare and bare.anywhere else ""
        self._content_text = _text_without(self._content_marks, starts)
        self._thought_text = _text_without(self._thought_marks, "")
        if self._at.thinking:
            transcript.begin_reasoning()

    @property
    def inside(self) -> bool:
        """Whether the walk is inside a thought."""
        return self._at.thinking

    def take_plain(self, text: str) -> bool:
        """Take new text that begins no tag, as `run` would: nearly every token, so it is worth a way of its own."""
        if not self._between:
            return False
        if self._at.thinking:
            if self._thought_text.fullmatch(text):
                self._think(text)
                return True
            return False
        bare = self._grammar.bare
        if (bare is None or not (self._at.fresh or bare.anywhere)) and self._content_text.fullmatch(text):
            self._show(text)
            return True
        return False

    def run(self) -> Steps[None]:
        """Read the whole answer."""
        while not self._cursor.done:
            if self._at.thinking:
                yield from self._in_thought()
            else:
                yield from self._in_content()
        if self._at.thinking:
            self._transcript.end_reasoning()
        self._transcript.finish()

    def _next_tag(self) -> Steps[str]:
        """The next character behind text that begins no tag; empty at the end."""
        self._between = True
        character = yield from self._cursor.peek()
        self._between = False
        return character

    # --- visible text -------------------------------------------------------------------------------------------------

    def _in_content(self) -> Steps[None]:
        """One step through visible text."""
        bare = self._grammar.bare
        if bare and (self._at.fresh or bare.anywhere) and (yield from self._try_bare(bare)):
            return
        text = self._cursor.run(self._content_text)
        if text:
            self._show(text)
            return
        if not (yield from self._next_tag()):
            return
        mark = yield from self._cursor.match(self._content_marks)
        if not mark:
            if self._cursor.ending is not None:
                self._at.tracker.settle()
            self._single(self._content_marks, self._show, at_line_start=self._at.tracker.line_start)
            return
        self._at.tracker.settle()
        if self._thinking and mark == self._thinking.open:
            self._at_thought(mark)
        elif (self._thinking and mark == self._thinking.close) or mark in self._grammar.strays:
            self._at_stray(mark)
        elif self._at.tracker.span:
            self._show(self._cursor.take(len(mark)))
        elif self._at.tracker.fence:
            yield from self._held_call(mark)
        else:
            yield from self._call(mark)

    def _show(self, text: str) -> None:
        if text.strip():
            self._at.fresh = False
        self._at.tracker.show(text)
        self._transcript.content(text)

    def _single(self, marks: tuple[str, ...], show: Callable[[str], None], *, at_line_start: bool) -> None:
        """A character that could have begun a tag and did not. What is left of a tag at the token limit is dropped."""
        if self._cursor.ending is Ending.LENGTH and self._cursor.cut_short(marks, at_line_start=at_line_start):
            self._cursor.take(len(self._cursor.rest))
        else:
            show(self._cursor.take(1))

    def _at_thought(self, mark: str) -> None:
        tracker = self._at.tracker
        text = self._cursor.take(len(mark))
        anywhere = self._thinking is not None and self._thinking.anywhere
        if tracker.fence or tracker.span or not (tracker.line_start or anywhere):
            self._at.shown_thoughts += not (tracker.fence or tracker.span)
            self._show(text)
            return
        self._transcript.begin_reasoning()
        self._at = Place(thinking=True)

    def _at_stray(self, mark: str) -> None:
        tracker = self._at.tracker
        text = self._cursor.take(len(mark))
        if tracker.fence or tracker.span:
            self._show(text)
        elif self._at.shown and mark in self._grammar.strays:
            self._at.shown -= 1
            self._show(text)
        elif self._at.shown_thoughts and mark not in self._grammar.strays:
            self._at.shown_thoughts -= 1
            self._show(text)
        else:
            self._transcript.cut()

    # --- calls in visible text ----------------------------------------------------------------------------------------

    def _call(self, mark: str) -> Steps[None]:
        """A call that, if it is one, is meant."""
        parser = self._grammar.parser
        recorder = self._cursor.record()
        self._cursor.take(len(mark))
        verdict = Verdict.TEXT
        if parser:
            verdict = yield from parser.parse(mark, Desk(self._cursor, self._tools, self._transcript, recorder))
            verdict = self._at_limit(verdict)
        self._cursor.forget(recorder)
        self._conclude(verdict, recorder.text)

    def _at_limit(self, verdict: Verdict) -> Verdict:
        """The verdict, if not the token limit made it: half a tag within a call is no reason to call it text, and half a tag
        behind one is none either.
        """
        if self._cursor.ending is not Ending.LENGTH:
            return verdict
        if self._cursor.starved and verdict is not Verdict.DONE:
            verdict = Verdict.CUT
        if self._cursor.starved or verdict is Verdict.CUT:
            self._cursor.take(len(self._cursor.rest))
        return verdict

    def _conclude(self, verdict: Verdict, consumed: str) -> None:
        match verdict:
            case Verdict.DONE:
                self._transcript.cut()
                self._at.fresh = False
            case Verdict.TEXT:
                self._reveal(consumed)
            case Verdict.BROKEN:
                self._transcript.abandon()
                self._reveal(consumed)
            case Verdict.CUT:
                self._transcript.abandon()
                if self._cursor.ending is Ending.STOP:
                    self._reveal(consumed)
                else:
                    self._transcript.cut()

    def _reveal(self, consumed: str) -> None:
        """Show as text what is no call after all."""
        self._at.shown += 1
        self._show(consumed)

    def _try_bare(self, bare: Bare) -> Steps[bool]:
        """A call without a tag, if one begins here."""
        spaces = yield from self._cursor.spaces()
        if spaces:
            self._show(spaces)
        first = yield from self._cursor.peek()
        if not first or first not in bare.starts or (yield from self._cursor.match(self._content_marks)):
            return False
        self._at.tracker.settle()
        if self._at.tracker.fence or self._at.tracker.span:
            return False
        if self._cursor.ending is Ending.LENGTH and self._cursor.cut_short(self._content_marks, at_line_start=True):
            return False
        outer = self._cursor.record()
        recorder = self._cursor.record()
        held = HeldCalls()
        sink = held if bare.held else self._transcript
        verdict = yield from bare.parser.parse("", Desk(self._cursor, self._tools, sink, recorder))
        if verdict is not Verdict.TEXT:
            verdict = self._at_limit(verdict)
        real = verdict is Verdict.DONE
        if bare.held:
            real = yield from self._nothing_follows(verdict)
            if real:
                held.replay(self._transcript)
        self._cursor.forget(recorder)
        self._cursor.forget(outer)
        if bare.held and not real:
            self._show_held(verdict, outer.text)
        else:
            self._conclude(verdict, recorder.text)
        return True

    def _show_held(self, verdict: Verdict, text: str) -> None:
        if verdict is Verdict.CUT:
            self._conclude(verdict, text)
        else:
            self._show(text)

    def _nothing_follows(self, verdict: Verdict) -> Steps[bool]:
        """Whether a held attempt is followed by nothing, or by tags that prove that it was meant."""
        if verdict is not Verdict.DONE:
            return False
        yield from self._cursor.spaces()
        proof = False
        while mark := (yield from self._cursor.match(self._grammar.strays)):
            self._cursor.take(len(mark))
            proof = True
            yield from self._cursor.spaces()
        yield from self._cursor.peek()
        return proof or self._cursor.done or (yield from self._cursor.match(self._grammar.openers)) != ""

    # --- calls that may be examples -----------------------------------------------------------------------------------

    def _held_call(self, mark: str) -> Steps[None]:
        """A call inside an open fence: an example, unless the answer ends with it."""
        outer = self._cursor.record()
        held = HeldCalls()
        yield from self._hold(mark, held)
        self._cursor.forget(outer)
        if self._cursor.done and held.names and all(self._tools.declared(name) for name in held.names):
            held.replay(self._transcript)
        else:
            self._show(outer.text)

    def _hold(self, mark: str, held: HeldCalls) -> Steps[tuple[Verdict, str]]:
        """Read calls from `mark` on for as long as one follows the other, white space behind them too. The verdict on the
        last of them, and its text.
        """
        parser = self._grammar.parser
        while mark and parser:
            recorder = self._cursor.record()
            self._cursor.take(len(mark))
            verdict = yield from parser.parse(mark, Desk(self._cursor, self._tools, held, recorder))
            verdict = self._at_limit(verdict)
            self._cursor.forget(recorder)
            if verdict is not Verdict.DONE:
                held.abandon()
                return verdict, recorder.text
            yield from self._cursor.spaces()
            yield from self._cursor.peek()
            mark = yield from self._cursor.match(self._grammar.openers)
        return Verdict.DONE, ""

    # --- thoughts -----------------------------------------------------------------------------------------------------

    def _in_thought(self) -> Steps[None]:
        """One step through a thought."""
        text = self._cursor.run(self._thought_text)
        if text:
            self._think(text)
            return
        if not (yield from self._next_tag()):
            return
        mark = yield from self._cursor.match(self._thought_marks)
        thinking = self._thinking
        if not mark or thinking is None:
            self._single(self._thought_marks, self._think, at_line_start=self._at.last in {"", "\n"})
        elif mark == thinking.close:
            yield from self._at_thought_end(mark)
        elif mark == thinking.open:
            text = self._cursor.take(len(mark))
            if self._at.thought:
                self._think(text)
        else:
            yield from self._call_in_thought(mark, thinking)

    def _think(self, text: str) -> None:
        if text:
            self._at.last = text[-1]
        self._at.thought = self._at.thought or bool(text.strip())
        self._transcript.reasoning(text)

    def _at_thought_end(self, mark: str) -> Steps[None]:
        """The closing tag, unless it is quoted."""
        before = self._at.last
        text = self._cursor.take(len(mark))
        if before in {"`", '"', "'"} and (yield from self._cursor.peek()) == before:
            self._think(text)
            return
        self._leave_thought()

    def _leave_thought(self) -> None:
        self._transcript.end_reasoning()
        self._at = Place(thinking=False)

    def _call_in_thought(self, mark: str, thinking: Thinking) -> Steps[None]:
        """A call in a thought ends the thought if nothing but its closing tag follows; else it was a rehearsal."""
        outer = self._cursor.record()
        held = HeldCalls()
        verdict, partial = yield from self._hold(mark, held)
        closed = verdict is Verdict.DONE and (yield from self._cursor.match((thinking.close,))) != ""
        rehearsal = outer.text
        if closed:
            self._cursor.take(len(thinking.close))
            yield from self._cursor.spaces()
            yield from self._cursor.peek()
        self._cursor.forget(outer)
        cut_off = verdict is Verdict.CUT and self._cursor.ending is Ending.LENGTH
        if self._cursor.done and (held.names or cut_off):
            self._leave_thought()
            held.replay(self._transcript)
            if not cut_off:
                self._show(partial)
            return
        self._think(rehearsal)
        if closed:
            self._leave_thought()
            self._show(outer.text[len(rehearsal) + len(thinking.close) :])


def _text_without(marks: tuple[str, ...], starts: str) -> re.Pattern[str]:
    """A run of characters that cannot begin a mark."""
    firsts = "".join(sorted({mark[0] for mark in marks} | set(starts)))
    return re.compile(f"[^{re.escape(firsts)}]+" if firsts else r"(?s:.+)")
