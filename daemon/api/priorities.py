"""Whether somebody waits in front of a screen for an answer. Pure.

Chat front ends ask for titles, tags and follow-up questions beside each message of a person. Such a request is not marked in
any way but its own words, so those of Open WebUI are recognised; a client that knows better says so in a header.
"""

from daemon.chat.messages import ChatInput, TextPart, UserMessage
from daemon.core.errors import InvalidRequest
from daemon.core.requests import Priority

PRIORITY_HEADER = "x-exl3d-priority"
_TASK = "### Task:"
"""How Open WebUI begins its background requests, which are one message each and not streamed."""


def asked_priority(header: str | None) -> Priority | None:
    """The priority in PRIORITY_HEADER. Raises InvalidRequest."""
    if header is None:
        return None
    try:
        return Priority(header.strip().lower())
    except ValueError as problem:
        known = ", ".join(priority.value for priority in Priority)
        raise InvalidRequest(f"The header `{PRIORITY_HEADER}` must be one of {known}.", PRIORITY_HEADER) from problem


def chat_priority(chat: ChatInput, *, streamed: bool) -> Priority:
    """The priority of a chat that says nothing about it."""
    if streamed or len(chat.messages) != 1:
        return Priority.LIVE
    message = chat.messages[0]
    if not isinstance(message, UserMessage):
        return Priority.LIVE
    content = message.content
    first = content if isinstance(content, str) else next((part.text for part in content if isinstance(part, TextPart)), "")
    return Priority.BACKGROUND if first.startswith(_TASK) else Priority.LIVE
