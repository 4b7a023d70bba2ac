"""How the served model speaks: what the chat room's parsers need for each answer, and what engines must know about thoughts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from daemon.chat.call_grammar import CallGrammars, guidance_tokens
from daemon.chat.parsing import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentDelta,
    Delta,
    Dialect,
    Final,
    FinishReason,
    Format,
    ReasoningDelta,
    build_parser,
    detect,
    visible_tokens,
)
from daemon.chat.templates import EFFORT_NAMES
from daemon.chat.thought_marks import thought_marks
from daemon.chat.tool_schemas import Tool
from daemon.core.events import Ending
from daemon.core.model import AddedToken
from daemon.core.ports import Tokenizing
from daemon.core.settings import AnswerSettings, OnEmptyAnswer
from daemon.core.wire import OnStop, Reasoning


class Parser(Protocol):
    """One answer's parser."""

    def feed(self, text: str) -> list[Delta]:
        """What is certain after more text."""
        ...

    def finish(self, ending: Ending) -> Final:
        """The rest, and why it ended."""
        ...


class Speech:
    """The dialect of one model, read from its chat template (`template`: that for chats with tools) and its added tokens."""

    def __init__(self, template: str, added: Sequence[AddedToken], tokenizing: Tokenizing, answers: AnswerSettings) -> None:
        form = answers.call_format
        self.dialect: Dialect = detect(
            template, added_tokens=[token.text for token in added], format_name=None if form is None else form.value
        )
        visible = frozenset(visible_tokens(self.dialect))
        self.shown_ids = frozenset(token.id for token in added if token.text in visible)
        """Special ids whose text the parser must see."""
        self.tokens = {token.text: token.id for token in added}
        """Ids of the added tokens."""
        self.grammars = CallGrammars(self.dialect, template, guidance_tokens(added))
        """Writes calls as grammars."""
        marks = thought_marks(self.dialect)
        self.sees_thoughts = marks is not None and marks.end in self.tokens
        """Whether ids tell where a thought ends. Marks that are no tokens of their own merge with their neighbours."""
        self.takes_effort = any(name in template for name in EFFORT_NAMES)
        """Whether the template passes on how hard to think."""
        self._tokenizing = tokenizing
        self._answers = answers
        self._thought: Reasoning | None = None

    async def thought(self, budget: int | None, *, inside: bool, constrained: bool) -> Reasoning | None:
        """What an engine needs to follow a thought; None where ids do not tell its end. `inside`: the answer begins inside a
        thought, else it may begin with one. `budget` is the most tokens that the thought may take. `constrained`: a grammar
        says what comes behind it.
        """
        whole = await self._whole_thought()
        if whole is None:
            return None
        reasoning = msgspec.structs.replace(
            whole,
            inside=inside,
            budget_left=budget,
            begin_ids=[] if inside else whole.begin_ids,
            budget_close_ids=[] if budget == 0 else whole.budget_close_ids,
        )
        if constrained and self.dialect.format is Format.GPT_OSS:
            # Behind the end a channel is named, which is the grammar's to choose.
            return msgspec.structs.replace(reasoning, close_ids=whole.end_ids, budget_close_ids=[])
        return reasoning

    async def _whole_thought(self) -> Reasoning | None:
        """Everything encoded, once."""
        marks = thought_marks(self.dialect)
        if marks is None or not self.sees_thoughts:
            return None
        if self._thought is None:
            encode = self._tokenizing.encode_rendered
            sentence = self._answers.closing_sentence
            keep_on = self._answers.on_empty_answer is OnEmptyAnswer.CONTINUE
            self._thought = Reasoning(
                end_ids=list(await encode(marks.end)),
                close_ids=list(await encode(marks.close)),
                inside=True,
                on_stop=OnStop.CLOSE if keep_on else OnStop.FINISH,
                begin_ids=list(await encode(marks.begin)),
                budget_close_ids=list(await encode(f"\n\n{sentence}{marks.close}")) if sentence else [],
            )
        return self._thought


@dataclass(frozen=True, slots=True)
class ParserPlan:
    """Makes the parsers of one request's choices."""

    dialect: Dialect
    tools: tuple[Tool, ...]
    """Tools that may be called now."""
    in_reasoning: bool
    """Whether the answers begin inside a thought."""
    one_call: bool = False
    """`parallel_tool_calls: false`: calls after the first are dropped."""
    on_empty: OnEmptyAnswer = OnEmptyAnswer.RETURN
    """What is done where an answer has thoughts and nothing else."""

    def parser(self) -> Parser:
        """A parser for one answer."""
        if not self.tools and self.dialect.thinking is None and self.dialect.format is not Format.GPT_OSS:
            return _Verbatim()
        made = build_parser(self.dialect, self.tools, starts_in_reasoning=self.in_reasoning)
        parser = _FirstCall(made) if self.one_call else made
        match self.on_empty:
            case OnEmptyAnswer.CONTINUE | OnEmptyAnswer.CONVERT:
                return _NeverEmpty(parser)
            case OnEmptyAnswer.RETURN:
                return parser


class _Verbatim:
    """Nothing can be told apart: the text is the answer, at no cost."""

    def feed(self, text: str) -> list[Delta]:
        return [ContentDelta(text)]

    def finish(self, ending: Ending) -> Final:
        reason = FinishReason.LENGTH if ending is Ending.LENGTH else FinishReason.STOP
        return Final((), reason, inside_reasoning=False)


class _FirstCall:
    """Lets one call through."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def feed(self, text: str) -> list[Delta]:
        return [delta for delta in self._parser.feed(text) if _is_first(delta)]

    def finish(self, ending: Ending) -> Final:
        final = self._parser.finish(ending)
        return Final(tuple(filter(_is_first, final.deltas)), final.finish_reason, final.inside_reasoning)


def _is_first(delta: Delta) -> bool:
    match delta:
        case CallStart(index) | CallArguments(index) | CallEnd(index):
            return index == 0
        case ContentDelta() | ReasoningDelta():
            return True


class _NeverEmpty:
    """Gives the thought as the answer too, if the model has ended and said nothing else. With `continue` this is the last
    resort: the model has stopped again behind the thought that was closed for it.
    """

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._thought: list[str] | None = []

    def feed(self, text: str) -> list[Delta]:
        deltas = self._parser.feed(text)
        if self._thought is not None:
            self._see(deltas)
        return deltas

    def finish(self, ending: Ending) -> Final:
        final = self._parser.finish(ending)
        self._see(final.deltas)
        thought = "".join(self._thought or ()).strip()
        if ending is Ending.LENGTH or not thought:
            return final
        return Final((*final.deltas, ContentDelta(thought)), final.finish_reason, inside_reasoning=False)

    def _see(self, deltas: Sequence[Delta]) -> None:
        """Keep thoughts until anything else is said."""
        for delta in deltas:
            match delta:
                case ReasoningDelta(text):
                    if self._thought is not None:
                        self._thought.append(text)
                case ContentDelta(text):
                    if text.strip():
                        self._thought = None
                case CallStart() | CallArguments() | CallEnd():
                    self._thought = None
