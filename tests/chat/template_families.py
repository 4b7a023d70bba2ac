"""Models whose templates have the shape of the named families, written for these tests."""

from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final

from daemon.chat.prompt import PromptBuilder
from daemon.chat.sandbox_budget import Limits
from daemon.core.model import AddedToken, GenerationDefaults, ModelDirectory

FAMILIES: Final = (
    "chatml",
    "deepseek",
    "gemma",
    "gemma4",
    "glm",
    "gpt_oss",
    "hermes",
    "llama3",
    "mistral",
    "parts_only",
    "qwen35",
)

WIDE_PIPE: Final = "\uff5c"

_FOLDER = Path(__file__).parent / "templates"

CONTROL: Final = MappingProxyType(
    {
        "chatml": ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
        "deepseek": tuple(
            text.replace("|", WIDE_PIPE)
            for text in (
                *("<|begin▁of▁sentence|>", "<|end▁of▁sentence|>", "<|User|>", "<|Assistant|>", "<think>", "</think>"),
                *("<|tool▁calls▁begin|>", "<|tool▁sep|>", "<|tool▁outputs▁begin|>", "<|tool▁outputs▁end|>"),
            )
        ),
        "gemma": ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        "gemma4": ("<bos>", "<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|think|>", '<|"|>'),
        "glm": ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>", "</think>"),
        "gpt_oss": ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"),
        "hermes": ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
        "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"),
        "mistral": ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        "parts_only": ("<|im_start|>", "<end_of_utterance>", "<image>"),
        "qwen35": (
            *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|image_pad|>", "<think>", "</think>"),
            *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
        ),
    }
)
"""Added tokens of each family; those without an ASCII pipe or a square bracket are not marked special, as in many real files."""


def source(family: str) -> str:
    """The family's template."""
    return (_FOLDER / f"{family}.jinja").read_text(encoding="utf-8")


def model(family: str = "qwen35", **templates: str) -> ModelDirectory:
    """A model of the family, or with the given templates and the family's tokens."""
    texts = CONTROL[family]
    added = tuple(AddedToken(1000 + at, text, "|" in text or "[" in text) for at, text in enumerate(texts))
    bos = next((text for text in texts if "begin▁" in text or text in {"<bos>", "<s>", "<|begin_of_text|>"}), "")
    return ModelDirectory(
        path="/models/test",
        name="test",
        architecture="TestForCausalLM",
        context=4096,
        vocabulary=2000,
        eos=(1001,),
        bos=None,
        bos_token=bos,
        eos_token=texts[1],
        templates=templates or {"default": source(family)},
        added=added,
        defaults=GenerationDefaults(),
    )


def builder(family: str = "qwen35", *, media: bool = False, limits: Limits | None = None, **templates: str) -> PromptBuilder:
    """A prompt builder on a fixed date whose clock stands still."""
    return PromptBuilder(
        model(family, **templates),
        media=media,
        limits=limits or Limits(),
        clock=lambda: 0.0,
        now=lambda: datetime(2026, 11, 29, 12, 30),  # noqa: DTZ001 - templates print local time
    )
