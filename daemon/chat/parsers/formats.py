"""The call formats by name, and what each looks like from outside."""

from enum import Enum

from daemon.chat.parsers.fenced_json import FencedJson
from daemon.chat.parsers.scanner import Bare, Grammar, Thinking
from daemon.chat.parsers.tool_call_tag import ToolCallTag


class Format(Enum):
    """How a model writes tool calls. The values are the names in configuration."""

    PLAIN = "plain"
    QWEN3_XML = "qwen3_xml"
    HERMES_JSON = "hermes_json"
    GEMMA = "gemma"
    GLM = "glm"
    MISTRAL = "mistral"
    GPT_OSS = "gpt_oss"
    LLAMA3_JSON = "llama3_json"
    PYTHONIC = "pythonic"
    DEEPSEEK = "deepseek"
    MINIMAX = "minimax"


THINK = Thinking("<think>", "</think>")
_BARE_JSON = Bare(starts="{[`", parser=FencedJson())


def grammar(form: Format) -> Grammar:
    """The grammar of a format that marks calls inside ordinary text."""
    match form:
        case Format.QWEN3_XML | Format.HERMES_JSON:
            return Grammar(
                openers=("<tool_call>", "<function"),
                parser=ToolCallTag(),
                strays=("</tool_call>",),
                bare=_BARE_JSON,
            )
        case Format.GLM:
            return Grammar(openers=("<tool_call>",), parser=ToolCallTag(), strays=("</tool_call>",), bare=_BARE_JSON)
        case _:
            return Grammar()
