"""The marks around a model's thoughts as whoever generates must know them: what begins one, what ends it, what closes it in
the model's place.
"""

from dataclasses import dataclass

from daemon.chat.parsing import Dialect, Format

_HARMONY_END = "<|end|>"


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """Texts whose control tokens count."""

    begin: str
    """What the model writes when it begins a thought itself."""
    end: str
    close: str
    """What stands behind a thought that was closed in the model's place, so that an answer must follow."""


def thought_marks(dialect: Dialect) -> ThoughtMarks | None:
    """The marks of a model; None where it does not mark thoughts."""
    if dialect.format is Format.GPT_OSS:
        final = f"{_HARMONY_END}<|start|>assistant<|channel|>final<|message|>"
        return ThoughtMarks("<|channel|>analysis<|message|>", _HARMONY_END, final)
    thinking = dialect.thinking
    if thinking is None:
        return None
    behind = "\n\n" if thinking.close.startswith("</") else ""
    return ThoughtMarks(thinking.open, thinking.close, f"\n{thinking.close}{behind}")
