"""What a chat template can take, found out by trying: a few tiny chats are rendered and looked at. Reading the source alone
would be guessing, since templates are programs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final, Protocol

from daemon.chat.json_values import JsonObject, JsonValue

REASONING_KEYS: Final = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a template can take. The defaults are those of today's strictest wide-spread family (Qwen3.5)."""

    system: bool = True
    late_system: bool = False
    """A system message may stand anywhere."""
    needs_user: bool = True
    """The template fails on a chat in which no user speaks."""
    user_first: bool = False
    """The first message after the system's must be a user's."""
    alternates: bool = False
    """Two messages of one role may not follow each other."""
    text_content: bool = True
    """Content may be a string; without it, it is always a list of parts."""
    tool_role: bool = True
    tools: bool = True
    """The template shows tools to the model."""
    many_calls: bool = True
    """One message may hold several calls."""
    text_arguments: bool = False
    """Arguments of calls must be JSON text, not objects."""
    stray_results: bool = True
    """A result may stand without its call."""
    null_content: bool = False
    """The template sees calls only in messages whose content is null."""
    grouped_results: bool = False
    """Results belong into the message of their calls, as `tool_responses` (Gemma 4)."""
    short_ids: bool = False
    """Ids of calls must have nine letters and digits (Mistral)."""
    named_results: bool = False
    """Tool messages need the name of their function."""
    reasoning_keys: tuple[str, ...] = ("reasoning_content",)
    """The fields in which the template looks for thoughts of earlier turns; empty where it never shows them."""
    media: bool = False


class Trial(Protocol):
    """Renders messages and tools; None where the template refuses or fails."""

    def __call__(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject] | None = None) -> str | None:
        """The text, or None."""
        ...


def probe(trial: Trial, source: str) -> Abilities:
    """The abilities of the template behind `trial`."""
    found = _Probe(trial)
    abilities = replace(
        Abilities(),
        text_content=found.text_content,
        system=found.shows("SYS", ("system", "SYS"), ("user", "USR")),
        late_system=found.shows(
            "LATE", ("system", "SYS"), ("user", "U1"), ("assistant", "A1"), ("system", "LATE"), ("user", "U2")
        ),
        needs_user=found.fails(("assistant", "A1")) or found.fails(("system", "SYS"), ("assistant", "A1")),
        user_first=found.fails(("assistant", "A1"), ("user", "U1")),
        alternates=found.fails(("user", "U1"), ("user", "U2"))
        or found.fails(("user", "U1"), ("assistant", "A1"), ("assistant", "A2"), ("user", "U2")),
        tools=found.shows_tools(),
    )
    abilities = found.with_calls(abilities)
    probed = tuple(key for key in REASONING_KEYS if found.shows_thought(key, abilities))
    named = tuple(key for key in REASONING_KEYS if key != "thinking" and key in source)
    return replace(abilities, reasoning_keys=(probed or named)[:1])


_ARGUMENT = {"needle_key": "needle_value"}
_TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "needle_tool",
        "description": "needle_description",
        "parameters": {"type": "object", "properties": {"needle_key": {"type": "string"}}, "required": ["needle_key"]},
    },
}


class _Probe:
    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.text_content = True
        self.text_content = self.shows("USR", ("user", "USR")) or not self._shows_parts()

    def shows(self, needle: str, *turns: tuple[str, str]) -> bool:
        """Whether the chat is rendered and `needle` can be read in it."""
        text = self._trial([self._message(role, content) for role, content in turns])
        return text is not None and needle in text

    def fails(self, *turns: tuple[str, str]) -> bool:
        """Whether the chat is refused, or part of it is lost."""
        return not all(self.shows(content, *turns) for _, content in turns)

    def shows_tools(self) -> bool:
        """Whether declared tools reach the model."""
        text = self._trial([self._message("user", "USR")], [_TOOL])
        return text is not None and "needle_tool" in text

    def with_calls(self, abilities: Abilities) -> Abilities:
        """`abilities` with the way in which calls and results must be given, the plainest that works."""
        for null, named, short, as_text in product((False, True), repeat=4):
            tried = replace(abilities, null_content=null, named_results=named, short_ids=short, text_arguments=as_text)
            text = self._trial(self._agent_chat(tried, {}), [_TOOL] if abilities.tools else None)
            if text is None or "RESULT" not in text or "needle_tool" not in text.rpartition("USR")[2]:
                continue
            if "needle_value" in text and "{'needle_key'" not in text and '{\\"needle_key' not in text:
                return self._with_rest(self._with_names(tried))
        return replace(abilities, tool_role=False)

    def _with_names(self, abilities: Abilities) -> Abilities:
        """A template that writes a result's name, if it gets one, shall get one."""
        texts = [
            self._trial(self._agent_chat(replace(abilities, named_results=named), {}), [_TOOL] if abilities.tools else None)
            for named in (False, True)
        ]
        return replace(abilities, named_results=abilities.named_results or (None not in texts and texts[0] != texts[1]))

    def _with_rest(self, abilities: Abilities) -> Abilities:
        """Some templates refuse a second call in one message or forget it, or refuse a result without a call."""
        text = self._trial(self._agent_chat(abilities, {}, calls=2), [_TOOL] if abilities.tools else None)
        user, _, result = self._agent_chat(abilities, {})
        stray = self._trial([user, result])
        return replace(
            abilities,
            many_calls=text is not None and text.count("needle_value") > 1,
            stray_results=stray is not None and "RESULT" in stray,
            grouped_results=self._shows_grouped(abilities),
        )

    def _shows_grouped(self, abilities: Abilities) -> bool:
        user, call, _ = self._agent_chat(abilities, {"tool_responses": [{"name": "needle_tool", "response": "GROUPED"}]})
        text = self._trial([user, call])
        return text is not None and "GROUPED" in text

    def shows_thought(self, key: str, abilities: Abilities) -> bool:
        """Whether a thought given under `key` is shown in any turn."""
        thought: dict[str, JsonValue] = {key: "THOUGHT"}
        user, answer = self._message("user", "USR"), {**self._message("assistant", "A1"), **thought}
        chats: list[Sequence[JsonObject]] = [[user, answer], [user, answer, self._message("user", "U2")]]
        if abilities.tool_role:
            chats.append(self._agent_chat(abilities, thought))
        return any("THOUGHT" in (self._trial(chat) or "") for chat in chats)

    def _shows_parts(self) -> bool:
        text = self._trial([{"role": "user", "content": [{"type": "text", "text": "USR"}]}])
        return text is not None and "USR" in text

    def _message(self, role: str, content: str) -> dict[str, JsonValue]:
        return {"role": role, "content": content if self.text_content else [{"type": "text", "text": content}]}

    def _agent_chat(self, abilities: Abilities, extra: Mapping[str, JsonValue], calls: int = 1) -> list[JsonObject]:
        ids = [f"aBcDeF01{n}" if abilities.short_ids else f"c{n}" for n in range(calls)]
        arguments: JsonValue = '{"needle_key": "needle_value"}' if abilities.text_arguments else dict[str, JsonValue](_ARGUMENT)
        function: JsonValue = {"name": "needle_tool", "arguments": arguments}
        named: dict[str, JsonValue] = {"name": "needle_tool"} if abilities.named_results else {}
        empty: dict[str, JsonValue] = {"content": None} if abilities.null_content else {}
        made: list[JsonValue] = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
        return [
            self._message("user", "USR"),
            {**self._message("assistant", ""), **empty, "tool_calls": made, **extra},
            *({**self._message("tool", "RESULT"), "tool_call_id": call_id, **named} for call_id in ids),
        ]
