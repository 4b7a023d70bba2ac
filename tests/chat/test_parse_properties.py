"""What holds for every answer a model could write: one message however it is cut, no exception, linear work."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.chat.parsers import deepseek
from daemon.chat.parsers.formats import BRACKETS, CHANNEL, THINK
from daemon.chat.parsing import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentDelta,
    Delta,
    Dialect,
    Format,
    Message,
    ReasoningDelta,
    build_parser,
    fold,
)
from daemon.chat.tool_schemas import parse_tools
from daemon.core.events import Ending

TOOLS = parse_tools(
    [
        {
            "type": "function",
            "function": {
                "name": "write_file",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "path": {"type": "string"},
                        "content": {"type": "string"},
                        "mode": {"type": ["integer", "null"]},
                    },
                    "required": ["path"],
                },
            },
        },
        {
            "type": "function",
            "function": {
                "name": "plan",
                "parameters": {
                    "type": "object",
                    "properties": {"steps": {"type": "array"}, "options": {"type": "object"}, "sure": {"type": "boolean"}},
                },
            },
        },
    ]
)

DIALECTS = [
    Dialect(Format.PLAIN, None),
    Dialect(Format.PLAIN, THINK),
    Dialect(Format.QWEN3_XML, THINK),
    Dialect(Format.HERMES_JSON, THINK),
    Dialect(Format.GEMMA, CHANNEL),
    Dialect(Format.GLM, THINK),
    Dialect(Format.MISTRAL, BRACKETS),
    Dialect(Format.GPT_OSS, None),
    Dialect(Format.LLAMA3_JSON, None),
    Dialect(Format.PYTHONIC, None),
    Dialect(Format.DEEPSEEK, THINK),
    Dialect(Format.MINIMAX, THINK),
]

_BAR = "\uff5c"
_GAP = "\u2581"
FRAGMENTS = [
    "<think>", "</think>", "[THINK]", "[/THINK]", "<|channel>thought\n", "<channel|>",
    "<tool_call>", "</tool_call>", "<tool_call>\n", "\n</tool_call>",
    "<function=write_file>", "<function=plan>\n", "</function>", "<function",
    "<parameter=path>\n", "<parameter=content>", "<parameter=mode>", "<parameter=", "</parameter>", "\n</parameter>\n", "</",
    '{"name": "write_file", "arguments": {"path": "', '"}}', '{"name": "plan", "arguments": {', '"steps": [1, {"a": null}], ',
    '"sure": true}}', "write_file", "plan", "<arg_key>path</arg_key>", "<arg_value>", "</arg_value>", "<arg_key>", "</arg_key>",
    "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
    "<|tool_call>", "<tool_call|>", "call:write_file{", "call:plan{steps:[", "path:", '<|"|>', "mode=3", "]", "}",
    "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>json",
    "analysis", "final", "assistant", "commentary to=functions.write_file",
    "<|python_tag|>", '{"name": "plan", "parameters": {}}', ";",
    "[write_file(path='", "')]", "plan(steps=[1, (2,)])", "[", ", ", "<|python_start|>", "<|python_end|>",
    f"<{_BAR}tool{_GAP}calls{_GAP}begin{_BAR}>", f"<{_BAR}tool{_GAP}call{_GAP}begin{_BAR}>", f"<{_BAR}tool{_GAP}sep{_BAR}>",
    f"<{_BAR}tool{_GAP}call{_GAP}end{_BAR}>", f"<{_BAR}DSML{_BAR}function_calls>",
    "<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="write_file">', '<parameter name="path">', "</invoke>",
    "```", "```json\n", "`", "\n", " ", "\n\n", "\r\n", "\t", "'", '"', "\\", "\\u00e9", "\\ud83d", "é", "😀", "x", "1e5", "null",
]  # fmt: skip

answers = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=6)), max_size=24).map("".join)
endings = st.sampled_from(Ending)
dialects = st.sampled_from(DIALECTS)


def parse(
    dialect: Dialect, pieces: Sequence[str], ending: Ending, *, inside: bool, tools: bool = True
) -> tuple[Message, list[Delta]]:
    ids = iter(range(10**6))
    parser = build_parser(dialect, TOOLS if tools else (), starts_in_reasoning=inside, new_id=lambda: f"call_{next(ids)}")
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    final = parser.finish(ending)
    return fold(deltas, final), [*deltas, *final.deltas]


def cut(text: str, places: Sequence[int]) -> list[str]:
    at = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[left:right] for left, right in pairwise(at)]


@settings(max_examples=150, deadline=None)
@given(dialects, answers, endings, st.booleans(), st.booleans(), st.lists(st.integers(min_value=0, max_value=400), max_size=12))
def test_any_cutting_into_pieces_gives_the_same_message(
    dialect: Dialect, text: str, ending: Ending, inside: bool, tools: bool, places: list[int]
) -> None:
    whole, _ = parse(dialect, [text], ending, inside=inside, tools=tools)
    by_character, _ = parse(dialect, list(text), ending, inside=inside, tools=tools)
    in_pieces, _ = parse(dialect, cut(text, places), ending, inside=inside, tools=tools)
    assert by_character == whole
    assert in_pieces == whole


@settings(max_examples=100, deadline=None)
@given(dialects, answers, endings, st.booleans())
def test_any_answer_gives_well_formed_deltas(dialect: Dialect, text: str, ending: Ending, inside: bool) -> None:
    message, deltas = parse(dialect, list(text), ending, inside=inside)
    open_call: int | None = None
    started: list[str] = []
    for delta in deltas:
        match delta:
            case CallStart(index, call_id, name):
                assert index == len(started)
                assert call_id not in started
                assert name
                started.append(call_id)
                open_call = index
            case CallArguments(index, arguments):
                assert index == open_call
                assert arguments
            case CallEnd(index):
                assert index == open_call
                open_call = None
            case ReasoningDelta(piece) | ContentDelta(piece):
                assert piece
                assert "\ufffd" not in piece or "\ufffd" in text
    for call in message.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)
    assert (message.finish_reason.value == "length") == (ending is Ending.LENGTH)


@settings(max_examples=80, deadline=None)
@given(dialects, st.text(max_size=200), endings, st.booleans())
def test_any_text_is_taken_without_an_exception(dialect: Dialect, text: str, ending: Ending, inside: bool) -> None:
    parse(dialect, list(text), ending, inside=inside)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([Format.QWEN3_XML, Format.HERMES_JSON, Format.GLM, Format.MINIMAX]), st.text(max_size=300))
def test_text_without_any_tag_is_shown_exactly(form: Format, text: str) -> None:
    text = text.translate(dict.fromkeys(map(ord, "<[{`"), "."))
    message, _ = parse(Dialect(form, THINK), list(text), Ending.STOP, inside=False)
    assert (message.content or "") == (text if text.strip() else "")
    assert message.reasoning is None


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=200).filter(lambda text: "<" not in text and "\r" not in text))
def test_a_string_argument_arrives_exactly_in_every_format(value: str) -> None:
    quoted = json.dumps(value, ensure_ascii=False)
    answers_by_format = {
        Format.QWEN3_XML: "<tool_call>\n<function=write_file>\n<parameter=path>\n"
        + value
        + "\n</parameter>\n</function>\n</tool_call>",
        Format.HERMES_JSON: '<tool_call>\n{"name": "write_file", "arguments": {"path": ' + quoted + "}}\n</tool_call>",
        Format.GLM: f"<tool_call>write_file<arg_key>path</arg_key><arg_value>{value}</arg_value></tool_call>",
        Format.MISTRAL: '[TOOL_CALLS]write_file[ARGS]{"path": ' + quoted + "}",
        Format.GEMMA: '<|tool_call>call:write_file{path:<|"|>' + value + '<|"|>}<tool_call|>',
        Format.GPT_OSS: '<|channel|>commentary to=functions.write_file<|message|>{"path": ' + quoted + "}<|call|>",
        Format.LLAMA3_JSON: '{"name": "write_file", "parameters": {"path": ' + quoted + "}}",
        Format.MINIMAX: '<minimax:tool_call>\n<invoke name="write_file">\n<parameter name="path">'
        + value
        + "</parameter>\n</invoke>\n</minimax:tool_call>",
    }
    for form, answer in answers_by_format.items():
        dialect = next(dialect for dialect in DIALECTS if dialect.format is form)
        message, _ = parse(dialect, list(answer), Ending.STOP, inside=False)
        assert [json.loads(call.arguments) for call in message.tool_calls] == [{"path": value}], form


# --- whole answers of each format, written as the models do ------------------------------------------------------------

prose = st.text(alphabet="abc é😀,.!?-\n", max_size=30).map(str.strip)
argument_values = st.fixed_dictionaries(
    {"path": st.text(alphabet="ab \n\t\"\\'{}[],:é😀$", max_size=20)},
    optional={"content": st.text(alphabet="xyz \n;()#", max_size=20), "mode": st.integers() | st.none()},
)
calls = st.lists(argument_values, max_size=3)
Arguments = Mapping[str, str | int | None]


def _xml(arguments: Arguments, element: str, end: str) -> str:
    return "".join(
        element.format(key) + (value if isinstance(value, str) else json.dumps(value)) + end for key, value in arguments.items()
    )


def _gemma(arguments: Arguments) -> str:
    return ",".join(
        f"{key}:" + (f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)) for key, value in arguments.items()
    )


def _python(arguments: Arguments) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())


def written(form: Format, arguments: Arguments) -> str:
    """One call of write_file as models of that format write it."""
    text = json.dumps(arguments, ensure_ascii=False)
    element = _xml(arguments, "<parameter={}>\n", "\n</parameter>\n")
    pairs = _xml(arguments, "<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n")
    named = _xml(arguments, '<parameter name="{}">', "</parameter>\n")
    addressed = "<|start|>assistant<|channel|>commentary to=functions.write_file <|constrain|>json<|message|>"
    fenced = f"function{deepseek.SEPARATOR}write_file\n```json\n{text}\n```"
    return {
        Format.PLAIN: "",
        Format.QWEN3_XML: f"\n<tool_call>\n<function=write_file>\n{element}</function>\n</tool_call>",
        Format.HERMES_JSON: f'\n<tool_call>\n{{"name": "write_file", "arguments": {text}}}\n</tool_call>',
        Format.GLM: f"\n<tool_call>write_file\n{pairs}</tool_call>",
        Format.GEMMA: f"<|tool_call>call:write_file{{{_gemma(arguments)}}}<tool_call|>",
        Format.MISTRAL: f"[TOOL_CALLS]write_file[ARGS]{text}",
        Format.GPT_OSS: f"{addressed}{text}<|call|>",
        Format.LLAMA3_JSON: f'\n<|python_tag|>{{"name": "write_file", "parameters": {text}}}',
        Format.PYTHONIC: f"<|python_start|>[write_file({_python(arguments)})]<|python_end|>",
        Format.DEEPSEEK: f"{deepseek.CALLS}{deepseek.CALL}{fenced}{deepseek.CALL_END}{deepseek.CALLS_END}",
        Format.MINIMAX: f'\n<minimax:tool_call>\n<invoke name="write_file">\n{named}</invoke>\n</minimax:tool_call>',
    }[form]


def answer(dialect: Dialect, thought: str, text: str, arguments: Sequence[Arguments]) -> str:
    calls_text = "".join(written(dialect.format, one) for one in arguments)
    if dialect.format is Format.GPT_OSS:
        analysis = f"<|channel|>analysis<|message|>{thought}<|end|>" if thought else ""
        visible = f"<|start|>assistant<|channel|>commentary<|message|>{text}<|end|>" if text else ""
        return analysis + visible + calls_text
    thinking = dialect.thinking
    before = f"{thinking.open}\n{thought}\n{thinking.close}\n\n" if thinking and thought else ""
    return before + text + calls_text


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from([dialect for dialect in DIALECTS if dialect.format is not Format.PLAIN]),
    prose,
    prose,
    calls,
    st.lists(st.integers(min_value=0, max_value=2000), max_size=12),
    st.sampled_from(Ending),
)
def test_an_answer_comes_back_as_it_was_meant_without_a_scrap_of_markup(
    dialect: Dialect, thought: str, text: str, arguments: list[Arguments], places: list[int], ending: Ending
) -> None:
    has_thoughts = dialect.thinking is not None or dialect.format is Format.GPT_OSS
    whole = answer(dialect, thought, text, arguments)
    message, deltas = parse(dialect, cut(whole, places), ending, inside=False)
    assert (message.reasoning or "") == (thought if has_thoughts else "")
    assert (message.content or "") == text
    assert [json.loads(call.arguments) for call in message.tool_calls] == arguments
    shown = [delta.text for delta in deltas if isinstance(delta, ReasoningDelta | ContentDelta)]
    assert not [piece for piece in shown if set(piece) & set("<>[]|`{}")]


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from([dialect for dialect in DIALECTS if dialect.format is not Format.PLAIN]),
    prose,
    prose,
    argument_values,
    st.integers(min_value=0, max_value=2000),
)
def test_an_answer_cut_by_the_token_limit_shows_no_markup_and_closes_nothing(
    dialect: Dialect, thought: str, text: str, arguments: Arguments, place: int
) -> None:
    if dialect.thinking is None and dialect.format is not Format.GPT_OSS:
        thought = ""
    whole = answer(dialect, thought, text, [arguments])
    part = whole[: place % len(whole)]
    message, deltas = parse(dialect, list(part), Ending.LENGTH, inside=False)
    assert message.finish_reason.value == "length"
    # At the limit, the first character of a tag within a line is taken for itself.
    at_tag = part.endswith(("<", "[")) and not part[:-1].endswith("\n")
    for shown, meant in ((message.reasoning or "", thought), (message.content or "", text)):
        assert meant.startswith(shown.strip()) or (at_tag and meant.startswith(shown.strip()[:-1]))
    for call in message.tool_calls:
        assert json.loads(call.arguments) == arguments
    if not message.tool_calls:
        sent = "".join(delta.text for delta in deltas if isinstance(delta, CallArguments))
        with pytest.raises(ValueError, match=r"^\w"):
            json.loads(sent)


# --- work -------------------------------------------------------------------------------------------------------------

_BODIES = {
    "prose": "Some words, a < sign, and `code`.\n",
    "spaces": " \n",
    "openers": "<tool_call>",
    "closers": "</parameter>\n",
    "backticks": "`",
    "brackets": "}",
    "open_brackets": "[",
    "quotes": '"',
    "escapes": "\\",
    "elements": "<parameter=path>\n",
    "calls": "<tool_call>\n<function=plan>\n</function>\n</tool_call>\n",
    "objects": '{"name": "plan", "arguments": {}}',
    "marks": "<|channel|>",
    "thoughts": "<think>\na\n</think>\n",
    "key_like": ", a",
}
_HEADS = [
    (Format.QWEN3_XML, ""),
    (Format.QWEN3_XML, "```\n"),
    (Format.QWEN3_XML, "<tool_call>\n<function=write_file>\n<parameter=path>\n"),
    (Format.QWEN3_XML, "<tool_call>\n<function=plan>\n<parameter=options>\n"),
    (Format.HERMES_JSON, '<tool_call>\n{"name": "write_file", "arguments": {"path": "'),
    (Format.GLM, "<tool_call>write_file<arg_key>path</arg_key><arg_value>"),
    (Format.GEMMA, '<|tool_call>call:write_file{path:<|"|>'),
    (Format.GEMMA, "<|tool_call>call:write_file{path:a"),
    (Format.GEMMA, "<|tool_call>call:write_file{path:'a"),
    (Format.GPT_OSS, ""),
    (Format.GPT_OSS, "<|channel|>final<|message|>"),
    (Format.MISTRAL, '[TOOL_CALLS]plan[ARGS]{"steps": '),
    (Format.LLAMA3_JSON, ""),
    (Format.PYTHONIC, "[write_file(path='"),
    (Format.MINIMAX, '<minimax:tool_call><invoke name="write_file"><parameter name="path">'),
    (Format.PLAIN, ""),
]


@pytest.mark.parametrize("body", _BODIES)
@pytest.mark.parametrize("inside", [False, True])
def test_twice_the_text_is_twice_the_work(body: str, inside: bool) -> None:
    for form, head in _HEADS:
        dialect = next(dialect for dialect in DIALECTS if dialect.format is form)
        works: list[int] = []
        for count in (20, 40):
            parser = build_parser(dialect, TOOLS, starts_in_reasoning=inside)
            for character in head + _BODIES[body] * count:
                parser.feed(character)
            parser.finish(Ending.STOP)
            works.append(parser.examined)
        assert works[1] <= 2.1 * works[0] + 300, (form, head)
