"""A daemon whose model speaks as models of a named family do: the answers are scripted, everything else is real."""

import json
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.chat.template_families import source
from tests.process.front import Front, front


class Family(Enum):
    """Families of models, by the name of the template in their shape."""

    QWEN35 = "qwen35"
    HERMES = "hermes"
    GEMMA4 = "gemma4"
    GLM = "glm"
    MISTRAL = "mistral"
    GPT_OSS = "gpt_oss"

    @property
    def thinks(self) -> bool:
        """Whether models of the family think before they speak."""
        return self is not Family.MISTRAL

    def thought(self, text: str) -> str:
        """A thought, from where the model begins to speak; nothing where the family has none."""
        match self:
            case Family.QWEN35:
                return f"{text}\n</think>\n\n"  # the prompt has opened it
            case Family.HERMES | Family.GLM:
                return f"<think>\n{text}\n</think>\n\n"
            case Family.GEMMA4:
                return f"<|channel>thought\n{text}\n<channel|>"
            case Family.MISTRAL:
                return ""
            case Family.GPT_OSS:
                return f"<|channel|>analysis<|message|>{text}<|end|><|start|>assistant"

    def said(self, text: str) -> str:
        """What everybody may see, behind a thought."""
        return f"<|channel|>final<|message|>{text}" if self is Family.GPT_OSS else text

    def call(self, name: str, arguments: Mapping[str, object]) -> str:
        """A call."""
        written = json.dumps(arguments)
        match self:
            case Family.QWEN35:
                inner = "".join(f"<parameter={key}>\n{_bare(value)}\n</parameter>\n" for key, value in arguments.items())
                return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"
            case Family.HERMES:
                return f'<tool_call>\n{{"name": "{name}", "arguments": {written}}}\n</tool_call>'
            case Family.GEMMA4:
                inner = ",".join(f"{key}:{_marked(value)}" for key, value in arguments.items())
                return f"<|tool_call>call:{name}{{{inner}}}<tool_call|>"
            case Family.GLM:
                inner = "".join(
                    f"<arg_key>{key}</arg_key>\n<arg_value>{_bare(value)}</arg_value>\n" for key, value in arguments.items()
                )
                return f"<tool_call>{name}\n{inner}</tool_call>"
            case Family.MISTRAL:
                return f"[TOOL_CALLS]{name}[ARGS]{written}"
            case Family.GPT_OSS:
                return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{written}<|call|>"


def _bare(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _marked(value: object) -> str:
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class Line:
    """What the model answers to a prompt in which `marker` stands last."""

    marker: str
    text: str


@contextmanager
def talking(
    tiny: Path, family: Family, lines: Sequence[Line], directory: Path, *settings: str, pass_seconds: float = 0.0
) -> Generator[tuple[Front, str]]:
    """A running daemon and its model's name: `tiny` with the template of a family. `pass_seconds` is how long each step takes."""
    model = shutil.copytree(tiny, directory / family.value)
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": source(family.value)}))
    profile: dict[str, object] = {"scripts": [{"marker": line.marker, "text": line.text} for line in lines]}
    if pass_seconds:
        profile["decode"] = [{"at": 1, "seconds": pass_seconds}, {"at": 64, "seconds": pass_seconds}]
    where = directory / "daemon"
    where.mkdir()
    with front(model, where, *settings, profile=profile) as running:
        yield running, model.name
