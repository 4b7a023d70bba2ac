"""Whether somebody waits in front of a screen for an answer. Pure.

Chat front ends ask for titles, tags and follow-up questions beside each message of a person. Such a request is not marked in
any way but its own words, so configured rules recognise it (`sharing.background`; as delivered, those of Open WebUI). A client
that knows better says so in a header, and the header decides.
"""

from collections.abc import Mapping, Sequence

from daemon.chat.messages import ChatInput, SystemMessage, TextPart, UserMessage
from daemon.core.errors import InvalidRequest
from daemon.core.requests import Priority
from daemon.core.settings import BackgroundRule

PRIORITY_HEADERS = ("x-exl3d-priority", "X-Priority")
"""The first that is there counts: a proxy may add the second one for reasons of its own."""


def asked_priority(headers: Mapping[str, str]) -> Priority | None:
    """The priority that a client asked for. `headers` are without regard to case. Raises InvalidRequest."""
    name = next((name for name in PRIORITY_HEADERS if name in headers), None)
    if name is None:
        return None
    try:
        return Priority(headers[name].strip().lower())
    except ValueError as problem:
        known = ", ".join(priority.value for priority in Priority)
        raise InvalidRequest(f"The header `{name}` must be one of {known}.", name) from problem


def chat_priority(chat: ChatInput, rules: Sequence[BackgroundRule], *, streamed: bool) -> Priority:
    """The priority of a chat that says nothing about it: background where one of the rules holds."""
    return Priority.BACKGROUND if any(_holds(rule, chat, streamed=streamed) for rule in rules) else Priority.LIVE


def _holds(rule: BackgroundRule, chat: ChatInput, *, streamed: bool) -> bool:
    if rule.streamed is not None and rule.streamed != streamed:
        return False
    turns = [message for message in chat.messages if not isinstance(message, SystemMessage)]
    if rule.single_message and len(turns) != 1:
        return False
    first = next((message for message in turns if isinstance(message, UserMessage)), None)
    return first is not None and _text(first).startswith(rule.starts_with)


def _text(message: UserMessage) -> str:
    """The message's text up to its first picture or file."""
    content = message.content
    if isinstance(content, str):
        return content
    return next((part.text for part in content if isinstance(part, TextPart)), "")
