"""The dialect of a model, read from its template, and whether a prompt opened a thought."""

from pathlib import Path

import pytest

from daemon.chat.parsers.formats import BRACKETS, CHANNEL, THINK
from daemon.chat.parsing import Dialect, Format, Thinking, detect, starts_in_reasoning, visible_tokens

TEMPLATES = Path(__file__).parent / "templates"
BAR = "\uff5c"


@pytest.mark.parametrize(
    ("family", "form", "thinking"),
    [
        ("chatml", Format.PLAIN, None),
        ("deepseek", Format.DEEPSEEK, THINK),
        ("gemma", Format.PLAIN, None),
        ("gemma4", Format.GEMMA, CHANNEL),
        ("glm", Format.GLM, THINK),
        ("gpt_oss", Format.GPT_OSS, None),
        ("hermes", Format.HERMES_JSON, None),
        ("llama3", Format.LLAMA3_JSON, None),
        ("mistral", Format.MISTRAL, None),
        ("qwen35", Format.QWEN3_XML, THINK),
    ],
)
def test_a_family_is_known_by_its_template(family: str, form: Format, thinking: Thinking | None) -> None:
    assert detect((TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8")) == Dialect(form, thinking)


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ('<tool_call>\n{"name": "x", "arguments": {}}', Format.HERMES_JSON),
        ("<minimax:tool_call>", Format.MINIMAX),
        ("<|python_start|>", Format.PYTHONIC),
        ("[func_name1(params_name1=params_value1)]", Format.PYTHONIC),
        (f"<{BAR}DSML{BAR}function_calls>", Format.DEEPSEEK),
        ("{%- if tools %}{{ tools }}{% endif %}", Format.HERMES_JSON),
        ("{{ messages }}", Format.PLAIN),
        ("", Format.PLAIN),
    ],
)  # fmt: skip
def test_a_format_is_known_by_its_marks(template: str, form: Format) -> None:
    assert detect(template).format is form


def test_a_name_overrides_the_template() -> None:
    assert detect("<tool_call> <think></think>", format_name="mistral") == Dialect(Format.MISTRAL, THINK)
    with pytest.raises(ValueError, match="nonsense"):
        detect("", format_name="nonsense")


def test_thinking_tags_are_known_by_the_vocabulary_too() -> None:
    assert detect("{{ messages }}", added_tokens=["<think>", "</think>"]).thinking == THINK
    assert detect("[TOOL_CALLS]", added_tokens=["[THINK]", "[/THINK]"]).thinking == BRACKETS


QWEN = Dialect(Format.QWEN3_XML, THINK)
GEMMA = Dialect(Format.GEMMA, CHANNEL)
HARMONY = Dialect(Format.GPT_OSS, None)


@pytest.mark.parametrize(
    ("dialect", "prompt", "expected"),
    [
        (QWEN, "<|im_start|>assistant\n<think>\n", True),
        (QWEN, "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        (QWEN, "<|im_start|>assistant\n", False),
        (QWEN, "<|im_start|>assistant\n<think>\nI was about to", True),
        (QWEN, "<|im_start|>assistant\n<think>\na\n</think>\nHello", False),
        (QWEN, "<|im_start|>system\nUse <think> tags.<|im_end|>\n<|im_start|>assistant\n", False),
        (QWEN, "<|im_start|>assistant\n<think>\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n", False),
        (QWEN, "User: hi\nBot: <think>\n", True),
        (QWEN, "User: what is <think>?\nBot:", False),
        (Dialect(Format.QWEN3_XML, None), "<|im_start|>assistant\n<think>\n", False),
        (GEMMA, "<|turn>model\n<|channel>thought\n", True),
        (GEMMA, "<|turn>model\n<|channel>thought\n<channel|>", False),
        (HARMONY, "<|start|>assistant", False),
        (HARMONY, "<|start|>assistant<|channel|>analysis<|message|>", True),
        (HARMONY, "<|start|>assistant<|channel|>analysis<|message|>a<|end|><|start|>assistant", False),
        (HARMONY, "<|start|>assistant<|channel|>final<|message|>The", False),
    ],
)
def test_the_prompt_says_whether_a_thought_is_open(dialect: Dialect, prompt: str, expected: bool) -> None:
    assert starts_in_reasoning(prompt, dialect) is expected


def test_every_format_names_the_tokens_it_must_see() -> None:
    for form in Format:
        assert set(visible_tokens(Dialect(form, THINK))) >= {"<think>", "</think>"}
    assert "<tool_call>" in visible_tokens(QWEN)
    assert {"[TOOL_CALLS]", "[ARGS]"} <= set(visible_tokens(Dialect(Format.MISTRAL, None)))
    assert '<|"|>' in visible_tokens(GEMMA)
    assert visible_tokens(Dialect(Format.PLAIN, None)) == ()
