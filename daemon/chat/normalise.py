"""Makes a chat fit what a template can take, changing as little as possible and always in the same way.

The same history must give the same text turn after turn, or the prefix cache misses; so nothing here depends on anything
but the chat itself and the template's abilities, and a later message never changes how an earlier one is written.

In order: thoughts leave the assistant's text; leading system messages become one and later ones stay or become user
messages; results follow their calls in the order of the calls and ids are filled in; what the template has no role for
becomes text; a user turn is put in where the template insists on one; neighbours of one role merge where it insists on
alternation.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from daemon.chat.abilities import Abilities
from daemon.chat.messages import (
    AssistantMessage,
    Content,
    MediaPart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from daemon.core.errors import InvalidRequest

THOUGHT_TAGS: Final = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"))
SHORT_ID: Final = 9
"""Length of the ids that Mistral's templates demand."""


def normalise(messages: Sequence[Message], abilities: Abilities, *, continue_final: bool = False) -> tuple[Message, ...]:
    """The chat as the template can take it. Every content is a string, or parts where there are media. Raises
    InvalidRequest for media the model cannot take.
    """
    chat: list[Message] = [_plain(message, abilities) for message in messages]
    if abilities.reasoning_keys:
        last = len(chat) - 1
        chat = [_split_thought(message, going_on=continue_final and at == last) for at, message in enumerate(chat)]
    chat = _place_system(chat, abilities)
    chat = _order_results(chat, abilities)
    if not abilities.tool_role:
        chat = [_tool_as_text(message) for message in chat]
    chat = _ensure_user(chat, abilities)
    return tuple(_take_turns(chat) if abilities.alternates else chat)


# --- content ----------------------------------------------------------------------------------------------------------


def _plain(message: Message, abilities: Abilities) -> Message:
    content = message.content
    if isinstance(content, str):
        return message
    for part in content:
        if isinstance(part, MediaPart) and not abilities.media:
            raise InvalidRequest(
                f"This model takes text only, but `{part.where}` is of kind {part.kind.value}.", part.where, "unsupported_content"
            )
    return replace(message, content=merge_parts(content))


def merge_parts(content: Content) -> Content:
    """Content with neighbouring texts joined by a line break, as one string where nothing but text is left. Joining comes
    before guarding, so that no control token can come together from two parts.
    """
    if isinstance(content, str):
        return content
    parts: list[TextPart | MediaPart] = []
    for part in content:
        if isinstance(part, TextPart) and parts and isinstance(before := parts[-1], TextPart):
            parts[-1] = TextPart(f"{before.text}\n{part.text}")
        else:
            parts.append(part)
    match parts:
        case []:
            return ""
        case [TextPart(text)]:
            return text
        case _:
            return tuple(parts)


def _join(contents: Iterable[Content]) -> Content:
    """Contents of several messages as one, with an empty line between."""
    filled = [content for content in contents if content]
    texts = [content for content in filled if isinstance(content, str)]
    if len(texts) == len(filled):
        return "\n\n".join(texts)
    parts: list[TextPart | MediaPart] = []
    for content in filled:
        parts += [TextPart(content)] if isinstance(content, str) else content
    return merge_parts(tuple(parts))


# --- thoughts ---------------------------------------------------------------------------------------------------------


def _split_thought(message: Message, *, going_on: bool) -> Message:
    """Clients put thoughts back into the text; the template decides what becomes of them, so they go where it looks."""
    if not isinstance(message, AssistantMessage) or not isinstance(message.content, str):
        return message
    text = message.content.lstrip()
    for opening, closing in THOUGHT_TAGS:
        if not text.startswith(opening):
            continue
        thought, closed, rest = text.removeprefix(opening).partition(closing)
        if closed:
            return replace(message, content=rest.lstrip("\n"), reasoning=message.reasoning or thought.strip("\n"))
        if going_on:
            return replace(message, content="", reasoning=message.reasoning or thought.lstrip("\n"))
    return message


# --- system messages --------------------------------------------------------------------------------------------------


def _place_system(chat: list[Message], abilities: Abilities) -> list[Message]:
    leading = 0
    while leading < len(chat) and isinstance(chat[leading], SystemMessage):
        leading += 1
    rest: list[Message] = chat[leading:]
    if not abilities.late_system:
        # In place, not moved to the front: the prefix before it stays as it was when it was cached.
        rest = [UserMessage(message.content) if isinstance(message, SystemMessage) else message for message in rest]
    if not leading:
        return rest
    content = chat[0].content if leading == 1 else _join(message.content for message in chat[:leading])
    return [SystemMessage(content) if abilities.system else UserMessage(content), *rest]


# --- calls and results ------------------------------------------------------------------------------------------------


def _order_results(chat: list[Message], abilities: Abilities) -> list[Message]:
    """Templates show results in the order in which they stand, most without ids, so that order must be the calls'."""
    out: list[Message] = []
    at = 0
    turn = 0
    while at < len(chat):
        message = chat[at]
        at += 1
        if not isinstance(message, AssistantMessage) or not message.calls:
            out.append(_stray(message, abilities) if isinstance(message, ToolMessage) else message)
            continue
        calls = tuple(
            replace(call, id=_id(call.id or f"call_{turn:04}_{index:04}", abilities)) for index, call in enumerate(message.calls)
        )
        turn += 1
        results: list[ToolMessage] = []
        while at < len(chat) and isinstance(result := chat[at], ToolMessage):
            results.append(replace(result, call_id=_id(result.call_id, abilities)))
            at += 1
        matched = _match(calls, results, abilities)
        whole = replace(message, calls=calls)
        out += [whole, *matched] if abilities.many_calls else _one_by_one(whole, matched)
    return out


def _stray(message: ToolMessage, abilities: Abilities) -> Message:
    """A result whose call is not in the chat, as when a client has cut off the beginning."""
    message = replace(message, call_id=_id(message.call_id, abilities))
    return message if abilities.stray_results and not abilities.grouped_results else _tool_as_text(message)


def _match(calls: Sequence[ToolCall], results: Sequence[ToolMessage], abilities: Abilities) -> list[ToolMessage]:
    """1. A result with a call's id belongs to it. 2. One without an id belongs to the first open call of its name, or to
    the first open call. 3. What belongs to no call stays, at the end.
    """
    needs_name = abilities.named_results or abilities.grouped_results or not abilities.tool_role
    answers: dict[int, list[ToolMessage]] = {}
    open_calls = [index for index, call in enumerate(calls) if all(result.call_id != call.id for result in results)]
    strays: list[ToolMessage] = []
    for result in results:
        index = next((index for index, call in enumerate(calls) if call.id == result.call_id), None)
        if index is None and result.call_id is None and open_calls:
            named = (index for index in open_calls if calls[index].name == result.name)
            index = next(named, open_calls[0])
            open_calls.remove(index)
        if index is None:
            strays.append(result)
        else:
            name = calls[index].name if needs_name else result.name
            answers.setdefault(index, []).append(replace(result, call_id=calls[index].id, name=name))
    return [result for index in sorted(answers) for result in answers[index]] + strays


def _one_by_one(message: AssistantMessage, results: Sequence[ToolMessage]) -> list[Message]:
    """Several calls as one message each, followed by its result, for templates that know one call at a time."""
    out: list[Message] = []
    for index, call in enumerate(message.calls):
        out.append(replace(message, calls=(call,)) if index == 0 else AssistantMessage(calls=(call,), name=message.name))
        out += [result for result in results if result.call_id == call.id]
    known = {call.id for call in message.calls}
    return out + [result for result in results if result.call_id not in known]


def _id(call_id: str | None, abilities: Abilities) -> str | None:
    if call_id is None or not abilities.short_ids or re.fullmatch(f"[a-zA-Z0-9]{{{SHORT_ID}}}", call_id):
        return call_id
    return hashlib.blake2b(call_id.encode(), digest_size=8).hexdigest()[:SHORT_ID]


def arguments_text(call: ToolCall) -> str:
    """Arguments as JSON text, spaced as models are trained to write it."""
    return json.dumps(call.arguments, ensure_ascii=False)


def _tool_as_text(message: Message) -> Message:
    match message:
        case ToolMessage():
            label = f"Result of {message.name}:" if message.name else "Result:"
            return UserMessage(_join((label, message.content)))
        case AssistantMessage() if message.calls:
            calls = (f"Call of {call.name}: {arguments_text(call)}" for call in message.calls)
            return replace(message, content=_join((message.content, *calls)), calls=())
        case SystemMessage() | UserMessage() | AssistantMessage():
            return message


# --- what strict templates insist on ----------------------------------------------------------------------------------


def _ensure_user(chat: list[Message], abilities: Abilities) -> list[Message]:
    """Clients that trim long histories leave chats that begin in the middle of an agent's work."""
    start = 1 if chat and isinstance(chat[0], SystemMessage) else 0
    nobody = abilities.needs_user and not any(isinstance(message, UserMessage) for message in chat)
    wrong_first = abilities.user_first and len(chat) > start and not isinstance(chat[start], UserMessage)
    return [*chat[:start], UserMessage(""), *chat[start:]] if nobody or wrong_first else chat


def _take_turns(chat: list[Message]) -> list[Message]:
    """User and assistant in turn, where calls and results are nobody's turn."""
    out: list[Message] = []
    speaker: type[Message] | None = None
    for message in _merge_neighbours(chat):
        match message:
            case UserMessage() | AssistantMessage(calls=()):
                if type(message) is speaker:  # as when a person speaks up right after a result: the model said nothing
                    out.append(AssistantMessage() if isinstance(message, UserMessage) else UserMessage(""))
                speaker = type(message)
            case SystemMessage() | ToolMessage() | AssistantMessage():
                pass
        out.append(message)
    return out


def _merge_neighbours(chat: list[Message]) -> list[Message]:
    out: list[Message] = []
    for message in chat:
        match (out[-1] if out else None), message:
            case UserMessage() as before, UserMessage():
                out[-1] = replace(before, content=_join((before.content, message.content)))
            case AssistantMessage() as before, AssistantMessage():
                out[-1] = replace(
                    before,
                    content=_join((before.content, message.content)),
                    reasoning="\n\n".join(filter(None, (before.reasoning, message.reasoning))),
                    calls=before.calls + message.calls,
                )
            case _, _:
                out.append(message)
    return out
