"""An answer as the sections it consists of: runs of thought, runs of text, and calls, each with a beginning and an end.

Chat completions know fields of one message; Anthropic's blocks and the items of OpenAI's responses are sections in order, so
both families are told the same story by this file and only write it down differently.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from daemon.api.speech import Parser
from daemon.api.watch import Watch
from daemon.chat.parsing import CallArguments, CallEnd, CallStart, ContentDelta, Delta, Final, FinishReason, ReasoningDelta
from daemon.core.events import Ended, Piece


class SectionKind(Enum):
    """What a section holds."""

    THOUGHT = "thought"
    TEXT = "text"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Section:
    """Which section: its place among the others, and for a call its id and the function's name."""

    index: int
    kind: SectionKind
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    """A section begins; it is the only open one."""

    section: Section


@dataclass(frozen=True, slots=True)
class More:
    """More text of the open section; for a call, of its arguments."""

    section: Section
    text: str


@dataclass(frozen=True, slots=True)
class Over:
    """A section ends. A call that is not `complete` was cut off or broken and must not be carried out."""

    section: Section
    text: str
    """All of it."""
    complete: bool


SectionEvent: TypeAlias = Begun | More | Over


class Sections:
    """Turns the deltas of one answer into events of sections. Feed deltas in order, then finish once."""

    def __init__(self) -> None:
        self._open: Section | None = None
        self._texts: list[str] = []
        self._count = 0

    def feed(self, deltas: Sequence[Delta]) -> list[SectionEvent]:
        """The events that deltas make."""
        events: list[SectionEvent] = []
        for delta in deltas:
            match delta:
                case ContentDelta(text):
                    self._write(events, SectionKind.TEXT, text)
                case ReasoningDelta(text):
                    self._write(events, SectionKind.THOUGHT, text)
                case CallStart(_, call_id, name):
                    self._begin(events, SectionKind.CALL, call_id, name)
                case CallArguments(_, text):
                    self._write(events, SectionKind.CALL, text)
                case CallEnd():
                    self._close(events, complete=True, call=True)
        return events

    def finish(self, *, cut: bool) -> list[SectionEvent]:
        """The answer is over. `cut`: at a limit, so that the open section is not all that the model meant to say."""
        events: list[SectionEvent] = []
        self._close(events, complete=not cut)
        return events

    def _begin(self, events: list[SectionEvent], kind: SectionKind, call_id: str = "", name: str = "") -> None:
        self._close(events, complete=True)
        self._open = Section(self._count, kind, call_id, name)
        self._count += 1
        events.append(Begun(self._open))

    def _write(self, events: list[SectionEvent], kind: SectionKind, text: str) -> None:
        if self._open is None or self._open.kind is not kind:
            self._begin(events, kind)
        if self._open is not None and text:
            self._texts.append(text)
            events.append(More(self._open, text))

    def _close(self, events: list[SectionEvent], *, complete: bool, call: bool = False) -> None:
        """`call`: the call's own end. Whatever else closes a call finds it unfinished."""
        section = self._open
        if section is None:
            return
        whole = complete and (call or section.kind is not SectionKind.CALL)
        events.append(Over(section, "".join(self._texts), whole))
        self._open = None
        self._texts = []


class Telling:
    """One answer on its way from the stream's events to sections. Give pieces in order, then the end once."""

    def __init__(self, watch: Watch, parser: Parser) -> None:
        self.watch = watch
        self.finish_reason = ""
        """Why it ended, in the words of the metrics; empty before."""
        self._parser = parser
        self._sections = Sections()

    def piece(self, piece: Piece) -> list[SectionEvent]:
        """The sections of more text."""
        if not piece.text:
            return []
        deltas = self._parser.feed(piece.text)
        self.watch.count_reasoning(deltas, len(piece.ids))
        return self._sections.feed(deltas)

    def end(self, ended: Ended) -> tuple[list[SectionEvent], Final]:
        """The last sections, and what the parser says at the end."""
        final = self._parser.finish(ended.ending)
        self.finish_reason = final.finish_reason.value
        cut = final.finish_reason is FinishReason.LENGTH
        return self._sections.feed(final.deltas) + self._sections.finish(cut=cut), final
