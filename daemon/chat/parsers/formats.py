"""The call formats by name, and what each looks like from outside."""

from typing import TypeAlias

from daemon.chat.parsers import deepseek, gemma, llama3, mistral, pythonic
from daemon.chat.parsers.fenced_json import FencedJson
from daemon.chat.parsers.invoke import Invoke
from daemon.chat.parsers.scanner import Bare, Grammar, Thinking
from daemon.chat.parsers.tool_call_tag import ToolCallTag
from daemon.core.settings import CallFormat

Format: TypeAlias = CallFormat
"""How a model writes tool calls, detected or configured."""

THINK = Thinking("<think>", "</think>")
BRACKETS = Thinking("[THINK]", "[/THINK]", anywhere=True)
CHANNEL = Thinking("<|channel>thought", "<channel|>", anywhere=True)
_MINIMAX = "minimax:tool_call"
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
        case Format.GEMMA:
            return Grammar(
                openers=(gemma.OPENER,),
                parser=gemma.Gemma(),
                strays=(gemma.CLOSER,),
                bare=Bare(starts="c", parser=gemma.Gemma(), held=False),
            )
        case Format.MISTRAL:
            return Grammar(openers=(mistral.OPENER,), parser=mistral.Mistral(), strays=("[/TOOL_CALLS]",), bare=_BARE_JSON)
        case Format.LLAMA3_JSON:
            return Grammar(
                openers=(llama3.TAG, "<function"),
                parser=llama3.Llama3(),
                strays=("<|eom_id|>",),
                bare=Bare(starts="{[", parser=llama3.Llama3(), anywhere=True, held=False),
            )
        case Format.PYTHONIC:
            return Grammar(
                openers=(pythonic.START,),
                parser=pythonic.Pythonic(),
                strays=(pythonic.END,),
                bare=Bare(starts="[{", parser=pythonic.Pythonic(), held=False),
            )
        case Format.DEEPSEEK:
            return Grammar(
                openers=(deepseek.CALLS, deepseek.CALL, f"<{deepseek.ENVELOPE}>"),
                parser=deepseek.DeepSeek(),
                strays=(deepseek.CALLS_END, deepseek.CALL_END, f"</{deepseek.ENVELOPE}>"),
                bare=_BARE_JSON,
            )
        case Format.MINIMAX:
            return Grammar(
                openers=(f"<{_MINIMAX}>", "<tool_calls>"),
                parser=Invoke("", _MINIMAX),
                strays=(f"</{_MINIMAX}>", "</tool_calls>"),
                bare=_BARE_JSON,
            )
        case Format.PLAIN | Format.GPT_OSS:
            return Grammar()
