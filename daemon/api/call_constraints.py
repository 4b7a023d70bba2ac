"""What an answer must look like: as `tool_choice` and `strict` want calls, else as `response_format` and its kin want text."""

import json
from collections.abc import Sequence
from typing import cast

from daemon.api.constraints import check, compile_problem, constraint_of
from daemon.api.schemas import ChatBody
from daemon.api.speech import Speech
from daemon.chat.call_grammar import CallGrammars, Lead, OfferedTool
from daemon.chat.messages import ChatInput, ToolMode
from daemon.chat.parsing import Format
from daemon.core.errors import BadConstraint
from daemon.core.wire import Constraint, ConstraintKind


def chat_constraint(body: ChatBody, chat: ChatInput, speech: Speech, *, inside: bool, may_think: bool) -> Constraint | None:
    """The constraint of a chat's answer, compiled once to see that it can be. Raises BadConstraint and InvalidRequest.

    1. `tool_choice` required or by name: calls, and nothing beside them but a thought.
    2. Text in a form of its own.
    3. `strict` tools that may be called: once a call has begun, it is held to its schema.

    Where the answer begins inside a thought whose end the engine can see, the constraint is to begin behind it.
    """
    lead = _lead(speech, inside=inside, may_think=may_think)
    one = body.parallel_tool_calls is False
    match chat.tool_choice.mode:
        case ToolMode.REQUIRED:
            return _checked(speech.grammars, _offered(chat), one=one, lead=lead)
        case ToolMode.NAMED:
            named = [each for each in _offered(chat) if each.tool.name == chat.tool_choice.name]
            return _checked(speech.grammars, named, one=True, lead=lead)
        case ToolMode.NONE:
            return _text(constraint_of(body), speech, lead)
        case ToolMode.AUTO:
            found = _text(constraint_of(body), speech, lead)
            return found or _strict(chat, speech, one=one)


def _lead(speech: Speech, *, inside: bool, may_think: bool) -> Lead:
    if inside:
        return Lead.BEHIND if speech.sees_thoughts else Lead.REST
    return Lead.THOUGHT if may_think else Lead.NOTHING


def _offered(chat: ChatInput) -> list[OfferedTool]:
    return [OfferedTool(tool, f"tools[{index}].function.parameters") for index, tool in enumerate(chat.tools)]


def _text(constraint: Constraint | None, speech: Speech, lead: Lead) -> Constraint | None:
    """A JSON document behind a thought, with the white space that models put between the two. Other forms hold at once."""
    framed = lead is not Lead.NOTHING or speech.dialect.format is Format.GPT_OSS
    if constraint is None or constraint.kind is not ConstraintKind.JSON_SCHEMA or not framed:
        return constraint
    schema = cast("dict[str, object] | bool", json.loads(constraint.text))
    return Constraint(ConstraintKind.LARK, speech.grammars.content(schema, lead=lead))


def _strict(chat: ChatInput, speech: Speech, *, one: bool) -> Constraint | None:
    """Calls held to their schemas once the tag has come that begins them. Without such a tag nothing can tell a call from text
    in time, and what is a call is left to the parser.
    """
    opener = speech.grammars.opener()
    if opener is None or not any(tool.strict for tool in chat.tools):
        return None
    tools = [OfferedTool(each.tool, each.where, exact=each.tool.strict) for each in _offered(chat)]
    text = speech.grammars.begun_calls(tools, one=one)
    constraint = Constraint(ConstraintKind.LARK, text, [speech.tokens[opener]])
    if compile_problem(constraint):
        _blame(speech.grammars, [each for each in tools if each.exact])
    check(constraint, "tools")
    return constraint


def _checked(grammars: CallGrammars, tools: Sequence[OfferedTool], *, one: bool, lead: Lead) -> Constraint:
    constraint = Constraint(ConstraintKind.LARK, grammars.calls(tools, one=one, lead=lead))
    if compile_problem(constraint):
        _blame(grammars, tools)
        check(constraint, "tool_choice")
    return constraint


def _blame(grammars: CallGrammars, tools: Sequence[OfferedTool]) -> None:
    """Find the tool whose schema cannot be compiled. Raises BadConstraint with its name."""
    for each in tools:
        alone = Constraint(ConstraintKind.LARK, grammars.calls([each], one=True, lead=Lead.NOTHING))
        problem = compile_problem(alone)
        if problem:
            raise BadConstraint(f"`{each.where}` cannot be compiled: {problem.strip()[:500]}", each.where)
