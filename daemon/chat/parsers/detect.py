"""Which call format and which thinking tags a model uses, read from its chat template."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from daemon.chat.parsers import deepseek
from daemon.chat.parsers.formats import BRACKETS, CHANNEL, THINK, Format
from daemon.chat.parsers.scanner import Thinking


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a model writes."""

    format: Format
    thinking: Thinking | None
    """The tags around thoughts; None where the model has none. gpt-oss's channels are part of its format."""


_THINKING = (
    THINK,
    BRACKETS,
    CHANNEL,
    Thinking("<thinking>", "</thinking>"),
    Thinking("<thought>", "</thought>"),
    Thinking("<seed:think>", "</seed:think>"),
    Thinking("◁think▷", "◁/think▷"),
)

_SIGNS: tuple[tuple[Format, tuple[str, ...]], ...] = (
    (Format.GPT_OSS, ("<|channel|>", "<|message|>")),
    (Format.GEMMA, ("<|tool_call>",)),
    (Format.GEMMA, ("<|channel>", "<channel|>")),
    (Format.MINIMAX, ("<minimax:tool_call>",)),
    (Format.MINIMAX, ("minimax:tool_call",)),
    (Format.GLM, ("<arg_key>",)),
    (Format.QWEN3_XML, ("<function=", "<parameter=")),
    (Format.DEEPSEEK, (deepseek.CALL[:11],)),
    (Format.DEEPSEEK, (deepseek.MARK,)),
    (Format.MISTRAL, ("[TOOL_CALLS]",)),
    (Format.HERMES_JSON, ("<tool_call>",)),
    (Format.PYTHONIC, ("<|python_start|>",)),
    (Format.PYTHONIC, ("func_name1(params_name1=",)),
    (Format.LLAMA3_JSON, ("<|python_tag|>",)),
    (Format.LLAMA3_JSON, ("<|start_header_id|>", '"parameters"')),
)
"""What a template must contain for each format; the first that fits."""

_TOOLS = re.compile(r"\{%-?[^%]*\btools\b")
"""A template that does something with tools, in no way known here: such models mostly write JSON."""

_TURNS = re.compile(
    "|".join(
        re.escape(turn)
        for turn in (
            "<|im_start|>assistant",
            "<|assistant|>",
            "<|turn>model",
            "<start_of_turn>model",
            "[/INST]",
            f"<{deepseek.BAR}Assistant{deepseek.BAR}>",
            "<|start_header_id|>assistant<|end_header_id|>",
            "<|header_start|>assistant<|header_end|>",
            "]~b]ai",
            "<|start|>assistant",
        )
    )
)
"""Where the model's turn begins, in the families known."""


def detect(template: str, *, added_tokens: Iterable[str] = (), format_name: str | None = None) -> Dialect:
    """The dialect of a model from its template (its tool template where there are several) and the texts of its added
    tokens. `format_name` overrides the format. Raises ValueError if there is no format of that name.
    """
    form = Format(format_name) if format_name else Format.PLAIN
    if not format_name:
        fallback = Format.HERMES_JSON if _TOOLS.search(template) else Format.PLAIN
        form = next((form for form, signs in _SIGNS if all(sign in template for sign in signs)), fallback)
    if form is Format.GPT_OSS:
        return Dialect(form, None)
    if form is Format.GEMMA:
        return Dialect(form, CHANNEL)
    known = frozenset(added_tokens)
    for thinking in _THINKING:
        if thinking.close in template or thinking.close in known:
            return Dialect(form, thinking)
    return Dialect(form, None)


def starts_in_reasoning(rendered: str, dialect: Dialect) -> bool:
    """Whether what is generated behind a rendered prompt begins inside a thought."""
    turns = list(_TURNS.finditer(rendered))
    tail = rendered[turns[-1].end() :] if turns else rendered
    if dialect.format is Format.GPT_OSS:
        return _ends_in_analysis(tail)
    thinking = dialect.thinking
    if thinking is None:
        return False
    if not turns:
        return rendered.rstrip().endswith(thinking.open)
    return tail.rfind(thinking.open) > tail.rfind(thinking.close)


def _ends_in_analysis(tail: str) -> bool:
    begun = tail.rfind("<|message|>")
    return begun >= 0 and "analysis" in tail[:begun].rpartition("<|channel|>")[2] and tail.rfind("<|end|>") < begun


_CALL_TAGS: dict[Format, tuple[str, ...]] = {
    Format.PLAIN: (),
    Format.QWEN3_XML: ("<tool_call>", "</tool_call>"),
    Format.HERMES_JSON: ("<tool_call>", "</tool_call>"),
    Format.GLM: ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    Format.GEMMA: ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
    Format.MISTRAL: ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    Format.GPT_OSS: ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
    Format.LLAMA3_JSON: ("<|python_tag|>",),
    Format.PYTHONIC: ("<|python_start|>", "<|python_end|>"),
    Format.DEEPSEEK: (
        deepseek.CALLS,
        deepseek.CALLS_END,
        deepseek.CALL,
        deepseek.CALL_END,
        deepseek.SEPARATOR,
        deepseek.MARK,
    ),
    Format.MINIMAX: ("<minimax:tool_call>", "</minimax:tool_call>"),
}


def visible_tokens(dialect: Dialect) -> tuple[str, ...]:
    """The added tokens whose text the parser must see, though a tokenizer may call them special."""
    thinking = dialect.thinking
    if thinking is None:
        return _CALL_TAGS[dialect.format]
    return (*_CALL_TAGS[dialect.format], thinking.open, thinking.close)
