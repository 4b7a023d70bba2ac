"""The reference of parameters, as Markdown, made from the tables and structs that validate requests: docs/API.md holds it."""

from collections.abc import Iterator, Mapping

import msgspec

from daemon.api.expectations import description, expectation, required
from daemon.api.messages_schemas import CountTokensBody, MessagesBody
from daemon.api.parameters import NO_EFFECT, REFUSED
from daemon.api.responses_schemas import ResponsesBody
from daemon.api.schemas import ChatBody, CompletionBody, Generation
from daemon.api.tokens import DetokenizeBody, TemplateBody, TokenizeBody

_FAMILIES: Mapping[str, type[msgspec.Struct]] = {
    "/v1/responses": ResponsesBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": CountTokensBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/apply-template": TemplateBody,
}
BEGIN = "<!-- made by `python -m daemon.api.reference`; do not edit below -->"


def reference() -> str:
    """The generated part of docs/API.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield BEGIN
    shared = Generation.__struct_fields__
    yield from _table("Parameters of `/v1/chat/completions` and `/v1/completions`", Generation, shared)
    yield from _table("Parameters of `/v1/chat/completions` only", ChatBody, _own(ChatBody))
    yield from _table("Parameters of `/v1/completions` only", CompletionBody, _own(CompletionBody))
    for path, kind in _FAMILIES.items():
        yield from _table(f"Parameters of `{path}`", kind, kind.__struct_fields__)
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


def _table(title: str, kind: type[msgspec.Struct], names: tuple[str, ...]) -> Iterator[str]:
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
