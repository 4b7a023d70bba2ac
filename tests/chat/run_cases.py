"""Runs files of parser cases: `python -m tests.chat.run_cases FILE…`. The rules of such a file stand in tests/cases/README.md.

Every case is fed whole, a character at a time, a byte at a time (through an incremental UTF-8 decoder) and in its own pieces.
A case that fails prints one line; the last line is `N passed, M failed`.
"""

import codecs
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import cast

from daemon.chat.coerce import JsonType, Schema
from daemon.chat.parsers.deltas import CallArguments, CallStart, ContentDelta, Delta, ReasoningDelta
from daemon.chat.parsers.desk import Toolbox
from daemon.chat.parsers.detect import Dialect
from daemon.chat.parsers.formats import BRACKETS, CHANNEL, THINK, Format
from daemon.chat.parsing import Message, build_parser, fold
from daemon.chat.tool_schemas import parse_tools
from daemon.core.events import Ending
from tests.chat.request_cases import judge_request

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one way of feeding a case gave: the folded message and every delta."""

    way: str
    message: Message
    deltas: tuple[Delta, ...]


def dialect_of(case: Json) -> Dialect:
    """The dialect a case is written in: its format with the thinking tags of that family."""
    name = cast("str", case["format"])
    if name == "think":
        return Dialect(Format(cast("str | None", case.get("tool_format")) or "plain"), THINK)
    form = Format(name)
    match form:
        case Format.GEMMA:
            return Dialect(form, CHANNEL)
        case Format.MISTRAL:
            return Dialect(form, BRACKETS)
        case Format.GPT_OSS:
            return Dialect(form, None)
        case (
            Format.PLAIN | Format.QWEN3_XML | Format.HERMES_JSON | Format.GLM | Format.LLAMA3_JSON | Format.PYTHONIC
            | Format.DEEPSEEK | Format.MINIMAX
        ):  # fmt: skip
            return Dialect(form, THINK)


def ways(case: Json) -> Iterator[tuple[str, list[str]]]:
    """The pieces in which a case is fed, by name."""
    output = cast("str", case["output"])
    yield "whole", [output]
    yield "characters", list(output)
    yield "bytes", decoded([bytes([byte]) for byte in output.encode()])
    chunks = cast("list[str] | None", case.get("chunks"))
    if chunks:
        yield "chunks", chunks
    byte_chunks = cast("list[str] | None", case.get("byte_chunks"))
    if byte_chunks:
        yield "byte_chunks", decoded([bytes.fromhex(chunk) for chunk in byte_chunks])


def decoded(chunks: Sequence[bytes]) -> list[str]:
    """Pieces of UTF-8 as a host that never shows half characters would give them."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    return [decoder.decode(chunk) for chunk in chunks]


def feed(case: Json, way: str, pieces: Sequence[str]) -> Outcome:
    """One case, fed in one way."""
    request = cast("Json", case.get("request") or {})
    tools = () if request.get("tool_choice") == "none" else parse_tools(case.get("tools") or [])
    numbers = count(1)
    parser = build_parser(
        dialect_of(case),
        tools,
        starts_in_reasoning=bool(case.get("starts_in_reasoning")),
        new_id=lambda: f"call_{next(numbers)}",
    )
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    final = parser.finish(Ending.LENGTH if case.get("engine_finish") == "length" else Ending.STOP)
    return Outcome(way, fold(deltas, final), (*deltas, *final.deltas))


# --- judging ----------------------------------------------------------------------------------------------------------


def _same(left: object, right: object, schema: Schema) -> bool:
    """Whether two JSON values are equal. An integer is no boolean, and no float but where the schema wants a number."""
    if isinstance(left, dict) and isinstance(right, dict):
        one, two = cast("dict[str, object]", left), cast("dict[str, object]", right)
        return one.keys() == two.keys() and all(_same(one[key], two[key], schema.property(key)) for key in one)
    if isinstance(left, list) and isinstance(right, list):
        ones, twos = cast("list[object]", left), cast("list[object]", right)
        return len(ones) == len(twos) and all(_same(one, two, schema.items()) for one, two in zip(ones, twos, strict=True))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, float) != isinstance(right, float) and not (schema.declared and JsonType.NUMBER in schema.types):
        return False
    return left == right


def _text(value: object, compare: str) -> str:
    text = cast("str | None", value) or ""
    match compare:
        case "exact" | "exact-content":
            return text if text.strip() else ""
        case "ws":
            return " ".join(text.split())
        case _:
            return text.strip()


def matches(message: Message, expected: Json, compare: str, tools: Toolbox) -> str:
    """What differs; empty if nothing does."""
    if message.finish_reason.value != expected["finish_reason"]:
        return f"finish_reason {message.finish_reason.value!r}, not {expected['finish_reason']!r}"
    for name, got in (("reasoning", message.reasoning), ("content", message.content)):
        if compare == "exact-content" and name == "content" and not expected["content"] and got:
            return f"content {got!r}, not null"
        if _text(got, compare) != _text(expected[name], compare):
            return f"{name} {got!r}, not {expected[name]!r}"
    wanted = cast("list[Json]", expected["tool_calls"])
    if [call.name for call in message.tool_calls] != [call["name"] for call in wanted]:
        return f"calls {[call.name for call in message.tool_calls]}, not {[call['name'] for call in wanted]}"
    for call, want in zip(message.tool_calls, wanted, strict=True):
        if not _same(json.loads(call.arguments), want["arguments"], tools.schema(call.name)):
            return f"arguments {call.arguments}, not {json.dumps(want['arguments'], ensure_ascii=False)}"
    return ""


def broken_invariant(outcome: Outcome, case: Json) -> str:
    """Which rule of every stream is broken; empty if none is."""
    starts = [delta for delta in outcome.deltas if isinstance(delta, CallStart)]
    if [start.index for start in starts] != list(range(len(starts))):
        return f"indexes {[start.index for start in starts]}"
    if len({start.id for start in starts}) != len(starts):
        return "an id is used twice"
    known = -1
    for delta in outcome.deltas:
        match delta:
            case CallStart(index):
                known = index
            case CallArguments(index, text):
                if index != known or not text:
                    return f"arguments {text!r} of call {index} while call {known} is current"
            case ReasoningDelta(text) | ContentDelta(text):
                if not text or "\ufffd" in text:
                    return f"text delta {text!r}"
            case _:
                pass
    return _incomplete(outcome, case, len(starts))


def _incomplete(outcome: Outcome, case: Json, started: int) -> str:
    if case.get("incomplete_call") is None or started == len(outcome.message.tool_calls):
        return ""
    texts = [delta.text for delta in outcome.deltas if isinstance(delta, CallArguments) and delta.index == started - 1]
    try:
        json.loads("".join(texts))
    except ValueError:
        return ""
    return f"the cut call was closed: {''.join(texts)}"


def judge(case: Json) -> str:
    """Why a case fails; empty if it passes."""
    if case["format"] == "request":
        return judge_request(case)
    compare = cast("str", case.get("compare") or "trim")
    tools = Toolbox(parse_tools(case.get("tools") or []))
    accepted = [cast("Json", case["expect"]), *cast("list[Json]", case.get("also_ok") or [])]
    first: Message | None = None
    for way, pieces in ways(case):
        outcome = feed(case, way, pieces)
        fault = broken_invariant(outcome, case)
        if fault:
            return f"{way}: {fault}"
        faults = [matches(outcome.message, expected, compare, tools) for expected in accepted]
        if all(faults):
            return f"{way}: {faults[0]}"
        if first is not None and outcome.message != first:
            return f"{way}: {outcome.message}, but {first} when fed whole"
        first = first or outcome.message
    return ""


def _judge_safely(case: Json) -> str:
    """As `judge`; a case the runner cannot read fails and does not end the run."""
    try:
        return judge(case)
    except Exception as error:  # noqa: BLE001  # whatever went wrong is the case's result, and it is printed
        return f"{type(error).__name__}: {error}"


def cases_of(path: Path) -> list[Json]:
    """The cases of a file."""
    return [cast("Json", json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def main(paths: Sequence[str]) -> int:
    """Run the files; 1 if a case failed, 2 if none was given."""
    if not paths:
        sys.stderr.write("usage: python -m tests.chat.run_cases FILE…\n")
        return 2
    passed = failed = 0
    for path in paths:
        for case in cases_of(Path(path)):
            fault = _judge_safely(case)
            if fault:
                failed += 1
                sys.stdout.write(f"FAILED {case.get('id')} ({case.get('format')}, {case.get('kind')}): {fault}\n")
            else:
                passed += 1
    sys.stdout.write(f"{passed} passed, {failed} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
