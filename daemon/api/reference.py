"""The reference of parameters, as Markdown, made from the tables and structs that validate requests: docs/API.md holds it."""

from collections.abc import Iterator, Mapping

from daemon.api.expectations import description, expectation, required
from daemon.api.parameters import NO_EFFECT, REFUSED
from daemon.api.schemas import ChatBody, CompletionBody, Generation

BEGIN = "<!-- made by `python -m daemon.api.reference`; do not edit below -->"


def reference() -> str:
    """The generated part of docs/API.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield BEGIN
    shared = Generation.__struct_fields__
    yield from _table("Parameters of both endpoints", Generation, shared)
    yield from _table("Parameters of `/v1/chat/completions` only", ChatBody, _own(ChatBody))
    yield from _table("Parameters of `/v1/completions` only", CompletionBody, _own(CompletionBody))
    yield from ("", "### Refused by name", "")
    yield "Known from other servers, not honoured: 400 with the code `unsupported_parameter` unless the value asks for nothing."
    yield from ("", "| parameter | why | accepted values |", "| --- | --- | --- |")
    for name, refusal in REFUSED.items():
        usual = ", ".join(f"`{value!r}`" for value in refusal.neutral)
        yield f"| `{name}` | {refusal.reason} | {usual} |"
    yield from ("", "### Accepted without effect", "")
    yield from _pairs(NO_EFFECT)


def _own(kind: type[Generation]) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name not in Generation.__struct_fields__)


def _table(title: str, kind: type[Generation], names: tuple[str, ...]) -> Iterator[str]:
    yield from ("", f"### {title}", "", "| parameter | value | meaning |", "| --- | --- | --- |")
    for name in names:
        mark = " (required)" if name in required(kind) else ""
        yield f"| `{name}`{mark} | {expectation(kind, name)} | {description(kind, name)} |"


def _pairs(table: Mapping[str, str]) -> Iterator[str]:
    yield from ("| parameter | why |", "| --- | --- |")
    for name, reason in table.items():
        yield f"| `{name}` | {reason} |"


if __name__ == "__main__":
    print(reference(), end="")  # noqa: T201  # the page is made from this output
