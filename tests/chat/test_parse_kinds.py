"""Kinds of faults beyond the reported cases, one line each: what models write, and what becomes of it."""
# ruff: noqa: E501  # a table reads best with one answer a line

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import pytest

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
    build_parser,
    fold,
)
from daemon.chat.tool_schemas import Tool, parse_tools
from daemon.core.events import Ending


def tool(name: str, required: list[str], **properties: object) -> dict[str, object]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


STRING = {"type": "string"}
TOOLS = parse_tools(
    [
        tool("bash", ["command"], command=STRING, timeout={"type": "integer"}),
        tool("write_file", ["path", "content"], path=STRING, content=STRING),
        tool("get_weather", ["city"], city=STRING, days={"type": "integer"}),
        tool("list_tabs", []),
        tool(
            "configure",
            [],
            count={"type": "integer"},
            ratio={"type": "number"},
            on={"type": "boolean"},
            tags={"type": "array"},
            options={"type": "object"},
            note={"type": ["string", "null"]},
        ),
    ]
)
DIALECTS = {form: Dialect(form, THINK) for form in Format} | {
    Format.GEMMA: Dialect(Format.GEMMA, CHANNEL),
    Format.MISTRAL: Dialect(Format.MISTRAL, BRACKETS),
    Format.GPT_OSS: Dialect(Format.GPT_OSS, None),
}


def parse(
    form: Format, text: str, *, inside: bool = False, ending: Ending = Ending.STOP, tools: tuple[Tool, ...] = TOOLS
) -> tuple[Message, list[Delta]]:
    """The message, checked to be the same whole and by character; the deltas of the latter."""
    results: list[tuple[Message, list[Delta]]] = []
    for pieces in ([text], list(text)):
        ids = iter(range(100))
        parser = build_parser(DIALECTS[form], tools, starts_in_reasoning=inside, new_id=lambda ids=ids: f"call_{next(ids)}")
        deltas = [delta for piece in pieces for delta in parser.feed(piece)]
        final = parser.finish(ending)
        results.append((fold(deltas, final), [*deltas, *final.deltas]))
    assert results[0][0] == results[1][0]
    return results[1]


@dataclass(frozen=True, slots=True)
class Kind:
    """An answer and its message. Calls are name and arguments."""

    name: str
    form: Format
    text: str
    calls: tuple[tuple[str, Mapping[str, object]], ...] = ()
    content: str | None = None
    reasoning: str | None = None
    inside: bool = False
    ending: Ending = Ending.STOP


def xml(name: str, **values: str) -> str:
    elements = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{elements}</function>\n</tool_call>"


LS = ("bash", {"command": "ls"})
OSLO = ("get_weather", {"city": "Oslo"})
NOTHING: Mapping[str, object] = {}
TABS = ("list_tabs", NOTHING)
Q, H, G, M, GO = Format.QWEN3_XML, Format.HERMES_JSON, Format.GLM, Format.MISTRAL, Format.GPT_OSS
GE, L, P, MM, DS = Format.GEMMA, Format.LLAMA3_JSON, Format.PYTHONIC, Format.MINIMAX, Format.DEEPSEEK
LENGTH = Ending.LENGTH
_BAR, _GAP = "\uff5c", "\u2581"


def deepseek(*words: str) -> str:
    return f"<{_BAR}{_GAP.join(words)}{_BAR}>"


KINDS = [
    # Qwen: closing tags forgotten
    Kind("last parameter unclosed", Q, "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</function>\n</tool_call>", (LS,)),
    Kind("parameter and function unclosed", Q, "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</tool_call>", (LS,)),
    Kind("ends behind a parameter", Q, "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n", (LS,)),
    Kind("ends behind the function", Q, "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>", (LS,)),
    Kind(
        "ends inside a value", Q, "<tool_call>\n<function=bash>\n<parameter=command>\nls",
        content="<tool_call>\n<function=bash>\n<parameter=command>\nls",
    ),
    Kind("no opening tag", Q, "Now.\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>", (LS,), "Now."),
    # Qwen: values that hold markup
    Kind("closing tags in a value", Q, xml("write_file", path="a", content="x</function></tool_call> y"),
         (("write_file", {"path": "a", "content": "x</function></tool_call> y"}),)),
    Kind("function's closing tag on a line", Q, xml("write_file", path="a", content="x\n</function>\ny"),
         (("write_file", {"path": "a", "content": "x\n</function>\ny"}),)),
    Kind("an element mentioned, then a real one", Q, xml("write_file", content="a <parameter=x> b", path="a"),
         (("write_file", {"content": "a <parameter=x> b", "path": "a"}),)),
    Kind("a function mentioned, then another call", Q, xml("write_file", path="a", content="<function=x>") + "\n" + xml("bash", command="ls"),
         (("write_file", {"path": "a", "content": "<function=x>"}), LS)),
    Kind("carriage returns", Q, xml("bash", command="ls").replace("\n", "\r\n"), (LS,)),
    Kind("a value of white space", Q, xml("bash", command="  \n "), (("bash", {"command": "  \n "}),)),
    Kind("python literals", Q, xml("configure", options="{'a': True, 'b': None}", tags="['x', 1,]", on="FALSE"),
         (("configure", {"options": {"a": True, "b": None}, "tags": ["x", 1], "on": False}),)),
    Kind("an object written into a string", Q, xml("configure", options='"{\\"a\\": 1}"'), (("configure", {"options": {"a": 1}}),)),
    Kind("attributes for names", Q, '<tool_call>\n<function name="bash">\n<parameter name="command">\nls\n</parameter>\n</function>\n</tool_call>', (LS,)),
    Kind("a line break in the tag", Q, "<tool_call>\n<function=\nbash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>", (LS,)),
    Kind("an element twice", Q, "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n<parameter=command>\nrm\n</parameter>\n</function>\n</tool_call>", (LS,)),
    # Qwen: cut by the token limit
    Kind("limit behind a parameter", Q, "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n", ending=LENGTH),
    Kind("limit behind the function", Q, "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>", (LS,), ending=LENGTH),
    Kind("limit inside the opening tag", Q, "Sure.\n<tool_", content="Sure.\n", ending=LENGTH),
    Kind("limit inside the name", Q, "Sure.\n<tool_call>\n<function=ba", content="Sure.", ending=LENGTH),
    Kind("limit in a call in a thought", Q, "Plan.\n<tool_call>\n<function=bash>\n<parameter=command>\nls", reasoning="Plan.", inside=True, ending=LENGTH),
    Kind("limit behind a less-than sign", Q, "a <", content="a <", ending=LENGTH),
    # Qwen, examples and mentions in text
    Kind("an example in a fence", Q, "So:\n```xml\n" + xml("bash", command="ls") + "\n```\nDone.",
         content="So:\n```xml\n" + xml("bash", command="ls") + "\n```\nDone."),
    Kind("a fence never closed, then a call", Q, "So:\n```\nfoo\n" + xml("bash", command="ls"), (LS,), "So:\n```\nfoo"),
    Kind("a function in prose", Q, "Use <function=bash> here.", content="Use <function=bash> here."),
    Kind("a code span at the start of a line", Q, "```ls``` it is:\n" + xml("bash", command="ls"), (LS,), "```ls``` it is:"),
    Kind("text in the envelope", Q, "<tool_call>\nplease run ls\n</tool_call>", content="<tool_call>\nplease run ls\n</tool_call>"),
    # Thoughts, closed and not:
    Kind("two calls in a thought", Q, "Plan.\n" + xml("bash", command="ls") + "\n" + xml("list_tabs"), (LS, TABS), reasoning="Plan.", inside=True),
    Kind("a call in a thought, then an answer", Q, "Plan " + xml("bash", command="ls") + "\n</think>\nAnswer.",
         content="Answer.", reasoning="Plan " + xml("bash", command="ls"), inside=True),
    Kind("a mention of the tag in a thought", Q, "They ask about <think>.\n</think>\n\nIt is a tag.",
         content="It is a tag.", reasoning="They ask about <think>.", inside=True),
    Kind("the opening tag again", Q, "<think>\nhm\n</think>\n\nHi", content="Hi", reasoning="hm", inside=True),
    Kind("tags in prose", Format.PLAIN, "Use <think> first and </think> last.", content="Use <think> first and </think> last."),
    Kind("tags in code", Format.PLAIN, "Use `<think>` and `</think>`.", content="Use `<think>` and `</think>`."),
    Kind("indentation behind a thought", Format.PLAIN, "a\n</think>\n\n    code", content="    code", reasoning="a", inside=True),
    Kind("a thought that never ends", Format.PLAIN, "a\n", reasoning="a", inside=True, ending=LENGTH),
    # Hermes
    Kind("arguments before the name", H, '<tool_call>\n{"arguments": {"city": "Oslo"}, "name": "get_weather"}\n</tool_call>', (OSLO,)),
    Kind("arguments in a string", H, '<tool_call>\n{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}\n</tool_call>', (OSLO,)),
    Kind("single quotes", H, "<tool_call>\n{'name': 'get_weather', 'arguments': {'city': 'Oslo', 'days': None}}\n</tool_call>",
         (("get_weather", {"city": "Oslo", "days": None}),)),
    Kind("bare", H, '{"name": "get_weather", "arguments": {"city": "Oslo"}}', (OSLO,)),
    Kind("bare behind a thought", H, 'ok</think>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}', (OSLO,), reasoning="ok", inside=True),
    Kind("bare, then prose", H, '{"name": "list_tabs", "arguments": {}}\nis how.', content='{"name": "list_tabs", "arguments": {}}\nis how.'),
    Kind("bare and unknown", H, '{"name": "nope", "arguments": {}}', content='{"name": "nope", "arguments": {}}'),
    Kind("bare and cut", H, '{"name": "get_weather", "arguments": {"city": "Os', ending=LENGTH),
    Kind("a JSON answer, cut", H, '{"name": "Ali', content='{"name": "Ali', ending=LENGTH),
    Kind("as OpenAI has it", H, '<tool_call>{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}</tool_call>', (OSLO,)),
    Kind("no closing tag", H, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}', (OSLO,)),
    Kind("no closing tag and a brace short", H, '<tool_call>\n{"name": "list_tabs", "arguments": {}', content='<tool_call>\n{"name": "list_tabs", "arguments": {}'),
    Kind("limit and a brace short", H, '<tool_call>\n{"name": "list_tabs", "arguments": {}', ending=LENGTH),
    Kind("a list", H, '<tool_call>\n[{"name": "list_tabs", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "Oslo"}}]\n</tool_call>', (TABS, OSLO)),
    Kind("no quotes at all", H, "<tool_call>\n{name: list_tabs}\n</tool_call>", content="<tool_call>\n{name: list_tabs}\n</tool_call>"),
    Kind("a fence in the envelope", H, '<tool_call>\n```json\n{"name": "list_tabs", "arguments": {}}\n```\n</tool_call>', (TABS,)),
    Kind("no name", H, '<tool_call>\n{"arguments": {}}\n</tool_call>', content='<tool_call>\n{"arguments": {}}\n</tool_call>'),
    Kind("code with quotes unescaped", H, '<tool_call>{"name": "bash", "arguments": {"command": "print("hi", x)"}}</tool_call>',
         (("bash", {"command": 'print("hi", x)'}),)),
    Kind("a whole float for an integer", H, '<tool_call>{"name": "bash", "arguments": {"command": "ls", "timeout": 5.0}}</tool_call>',
         (("bash", {"command": "ls", "timeout": 5}),)),
    Kind("a string for an integer", H, '<tool_call>{"name": "bash", "arguments": {"command": "ls", "timeout": "5"}}</tool_call>',
         (("bash", {"command": "ls", "timeout": 5}),)),
    Kind("arguments one by one", H, '<tool_call>{"name": "get_weather", "city": "Oslo", "other": 1}</tool_call>', (OSLO,)),
    Kind("a namespace before the name", H, '<tool_call>{"name": "functions.list_tabs", "arguments": {}}</tool_call>', (TABS,)),
    # GLM
    Kind("exact white space", G, "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls\n  -l\n</arg_value>\n</tool_call>", (("bash", {"command": "ls\n  -l\n"}),)),
    Kind("a value unclosed", G, "<tool_call>write_file<arg_key>path</arg_key><arg_value>a\n<arg_key>content</arg_key><arg_value>b</arg_value></tool_call>",
         (("write_file", {"path": "a", "content": "b"}),)),
    Kind("a closing tag in a value", G, "<tool_call>bash<arg_key>command</arg_key><arg_value>x</arg_value> and </tool_call> y</arg_value></tool_call>",
         (("bash", {"command": "x</arg_value> and </tool_call> y"}),)),
    Kind("a call unclosed", G, "<tool_call>bash<arg_key>command</arg_key><arg_value>ls</arg_value>\n<tool_call>list_tabs</tool_call>", (LS, TABS)),
    Kind("limit in a value", G, "<tool_call>bash<arg_key>command</arg_key><arg_value>l", ending=LENGTH),
    # Mistral
    Kind("two calls", M, 'Hi[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]list_tabs[ARGS]{}', (OSLO, TABS), "Hi"),
    Kind("before v11", M, '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}, {"name": "list_tabs", "arguments": {}}]', (OSLO, TABS)),
    Kind("a call id", M, '[TOOL_CALLS]get_weather[CALL_ID]abc123456[ARGS]{"city": "Oslo"}', (OSLO,)),
    Kind("no marker before the arguments", M, '[TOOL_CALLS]get_weather{"city": "Oslo"}', (OSLO,)),
    Kind("the marker in prose", M, "The marker [TOOL_CALLS] is used.", content="The marker [TOOL_CALLS] is used."),
    # Gemma
    Kind("JSON in the braces", GE, '<|tool_call>call:get_weather{"city":"Oslo"}<tool_call|>', (OSLO,)),
    Kind("a comma in bare text", GE, '<|tool_call>call:get_weather{city:Oslo, Norway<|"|>,days:2}<tool_call|>', (("get_weather", {"city": "Oslo, Norway", "days": 2}),)),
    Kind("no closing delimiter", GE, '<|tool_call>call:get_weather{city:<|"|>Oslo}<tool_call|>', (OSLO,)),
    Kind("no closing brace", GE, '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|><tool_call|>', (OSLO,)),
    Kind("no braces", GE, "<|tool_call>call:list_tabs<tool_call|>", (TABS,)),
    Kind("limit in a string", GE, '<|tool_call>call:get_weather{city:<|"|>Os', ending=LENGTH),
    Kind("a thought behind text", GE, "Hm.<|channel>thought\nplan<channel|>Hi", content="Hm.Hi", reasoning="plan"),
    Kind("the word in prose", GE, "call me; call:other{}", content="call me; call:other{}"),
    Kind("brackets at the end of a string", GE, '<|tool_call>call:bash{command:<|"|>{"a":[1]}<|"|>}<tool_call|>', (("bash", {"command": '{"a":[1]}'}),)),
    # gpt-oss
    Kind("a recipient first of all", GO, ' to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{"city": "Oslo"}<|call|>', (OSLO,)),
    Kind("no frame at all", GO, "Hello there", content="Hello there"),
    Kind("prompt inside the thought", GO, "hm<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>", content="Hi", reasoning="hm", inside=True),
    Kind("no message mark", GO, "<|channel|>final Hello", content=" Hello"),
    Kind("broken arguments", GO, "<|channel|>commentary to=functions.get_weather<|message|>{city: x}<|call|>", content="{city: x}"),
    Kind("limit in arguments", GO, '<|channel|>commentary to=functions.get_weather<|message|>{"city": "Os', ending=LENGTH),
    Kind("two messages", GO, "<|channel|>commentary<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>B", content="A\n\nB"),
    # Llama, Python, DeepSeek, MiniMax
    Kind("a type first", L, '{"type": "function", "name": "get_weather", "parameters": {"city": "Oslo"}}', (OSLO,)),
    Kind("behind prose", L, 'Sure:\n{"name": "get_weather", "parameters": {"city": "Oslo"}}', (OSLO,), "Sure:"),
    Kind("in a function tag", L, '<function=get_weather>{"city": "Oslo"}</function>', (OSLO,)),
    Kind("code behind the tag", L, "<|python_tag|>print(1)", content="<|python_tag|>print(1)"),
    Kind("in tags", P, '<|python_start|>[get_weather(city="Oslo")]<|python_end|>', (OSLO,)),
    Kind("nested literals", P, "[configure(options={'a': (1, [2,]), \"b\": None}, tags=['x\\n'], ratio=-1.5)]",
         (("configure", {"options": {"a": [1, [2]], "b": None}, "tags": ["x\n"], "ratio": -1.5}),)),
    Kind("positional", P, "[get_weather('Oslo')]", (OSLO,)),
    Kind("triple quotes", P, '[bash(command="""a\n"b" \'c\'""")]', (("bash", {"command": "a\n\"b\" 'c'"}),)),
    Kind("a list that is an answer", P, "[1, 2, 3]", content="[1, 2, 3]"),
    Kind("limit in a call", P, "[get_weather(city='Os", ending=LENGTH),
    Kind("V3.1", DS, deepseek("tool", "calls", "begin") + deepseek("tool", "call", "begin") + "get_weather" + deepseek("tool", "sep")
         + '{"city": "Oslo"}' + deepseek("tool", "call", "end") + deepseek("tool", "calls", "end"), (OSLO,)),
    Kind("V3.2", DS, '<|DSML|function_calls>\n<|DSML|invoke name="get_weather">\n<|DSML|parameter name="city" string="true">Oslo</|DSML|parameter>\n'
         "</|DSML|invoke>\n</|DSML|function_calls>", (OSLO,)),
    Kind("an element unclosed", MM, '<minimax:tool_call>\n<invoke name="write_file">\n<parameter name="path">a\n<parameter name="content">b</parameter>\n</invoke>\n</minimax:tool_call>',
         (("write_file", {"path": "a", "content": "b"}),)),
    Kind("limit in an element", MM, '<minimax:tool_call>\n<invoke name="bash">\n<parameter name="command">l', ending=LENGTH),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=[f"{kind.form.value}: {kind.name}" for kind in KINDS])
def test_a_kind_of_answer_is_taken_apart_as_expected(kind: Kind) -> None:
    text = kind.text.replace("<|DSML|", f"<{_BAR}DSML{_BAR}").replace("</|DSML|", f"</{_BAR}DSML{_BAR}")
    message, _ = parse(kind.form, text, inside=kind.inside, ending=kind.ending)
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == list(kind.calls)
    assert message.content == kind.content
    assert message.reasoning == kind.reasoning
    reason = "length" if kind.ending is LENGTH else "tool_calls" if kind.calls else "stop"
    assert message.finish_reason.value == reason


# --- streams ----------------------------------------------------------------------------------------------------------


def pieces(deltas: list[Delta]) -> list[str]:
    return [delta.text for delta in deltas if isinstance(delta, CallArguments)]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Q, xml("bash", command="0123456789" * 5)),
        (H, '<tool_call>\n{"name": "bash", "arguments": {"command": "' + "0123456789" * 5 + '"}}\n</tool_call>'),
        (G, "<tool_call>bash<arg_key>command</arg_key><arg_value>" + "0123456789" * 5 + "</arg_value></tool_call>"),
        (M, '[TOOL_CALLS]bash[ARGS]{"command": "' + "0123456789" * 5 + '"}'),
        (GE, '<|tool_call>call:bash{command:<|"|>' + "0123456789" * 5 + '<|"|>}<tool_call|>'),
        (GO, '<|channel|>commentary to=functions.bash<|message|>{"command": "' + "0123456789" * 5 + '"}<|call|>'),
        (L, '{"name": "bash", "parameters": {"command": "' + "0123456789" * 5 + '"}}'),
        (P, "[bash(command='" + "0123456789" * 5 + "')]"),
        (MM, '<minimax:tool_call><invoke name="bash"><parameter name="command">' + "0123456789" * 5 + "</parameter></invoke></minimax:tool_call>"),
    ],
    ids=lambda value: value.value if isinstance(value, Format) else "",
)  # fmt: skip
def test_a_long_string_argument_is_streamed_as_it_comes(form: Format, text: str) -> None:
    _, deltas = parse(form, text)
    assert isinstance(deltas[0], CallStart)
    assert isinstance(deltas[-1], CallEnd)
    assert len(pieces(deltas)) >= 50
    assert json.loads("".join(pieces(deltas))) == {"command": "0123456789" * 5}


def test_a_nullable_string_is_streamed_once_it_cannot_be_null() -> None:
    _, deltas = parse(Q, xml("configure", note="nothing of that kind"))
    assert pieces(deltas)[:2] == ['{"note": "no', "t"]


def test_text_is_not_held_longer_than_a_tag_could_begin() -> None:
    parser = build_parser(DIALECTS[Q], TOOLS, starts_in_reasoning=False)
    assert parser.feed("a <tool") == [ContentDelta("a")]
    assert parser.feed("s> b") == [ContentDelta(" <tools> b")]


def test_a_cut_call_is_never_closed() -> None:
    message, deltas = parse(H, '<tool_call>\n{"name": "bash", "arguments": {"command": "ls", "timeout": 5', ending=LENGTH)
    assert message.tool_calls == ()
    with pytest.raises(ValueError, match="Expecting"):
        json.loads("".join(pieces(deltas)))
    assert not [delta for delta in deltas if isinstance(delta, CallEnd)]


def test_without_tools_markup_is_text() -> None:
    for form, text in (
        (Q, xml("bash", command="ls")),
        (H, '<tool_call>{"name": "bash"}</tool_call>'),
        (M, "[TOOL_CALLS]a[ARGS]{}"),
    ):
        message, _ = parse(form, text, tools=())
        assert (message.content, message.tool_calls) == (text, ())


def test_the_final_says_whether_the_answer_ended_inside_a_thought() -> None:
    for text, expected in (("hm", True), ("hm</think>Hi", False), ("hm</think>", False)):
        parser = build_parser(DIALECTS[Q], TOOLS, starts_in_reasoning=True)
        parser.feed(text)
        assert parser.finish(Ending.STOP).inside_reasoning is expected


def test_call_ids_are_unique_without_a_source_of_them() -> None:
    parser = build_parser(DIALECTS[Q], TOOLS, starts_in_reasoning=False)
    deltas = parser.feed(xml("list_tabs") + xml("list_tabs"))
    ids = {delta.id for delta in deltas if isinstance(delta, CallStart)}
    assert len(ids) == 2
    assert all(call_id.startswith("call_") for call_id in ids)


def test_deeply_nested_values_are_refused_without_an_exception() -> None:
    for form, text in (
        (H, '<tool_call>{"name": "configure", "arguments": {"options": ' + '{"a":' * 5000),
        (H, '<tool_call>{"name": "configure", "arguments": {"tags": ' + "[" * 5000),
        (H, "<tool_call>" + '{"function":' * 5000),
        (GE, "<|tool_call>call:configure{tags:" + "[" * 5000),
        (GE, "<|tool_call>call:configure{" + "a:{" * 5000),
        (P, "[configure(tags=" + "[" * 5000),
        (Q, "<tool_call>\n<function=configure>\n<parameter=tags>\n" + "[" * 5000 + "\n</parameter>\n</function>\n</tool_call>"),
    ):
        message, _ = parse(form, text)
        if form is Q:
            assert json.loads(message.tool_calls[0].arguments) == {"tags": "[" * 5000}
        else:
            assert message.tool_calls == ()
            assert text in cast("str", message.content)
