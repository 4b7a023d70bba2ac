"""Tool choice becomes a constraint: what it says, where it begins, and what is refused."""

import pytest

from daemon.core.model import AddedToken
from daemon.core.wire import Constraint, ConstraintKind
from tests.api.conftest import Client, Connect
from tests.api.fakes import FIRST_CHARACTER, FakePrompts, FakeServing, application, says
from tests.api.reading import error_of

OPEN = "<|im_start|>assistant\n"
TEMPLATE = OPEN + "<think></think><tool_call><function=name><parameter=x></parameter></function></tool_call>"
ADDED = (
    AddedToken(60_001, "<think>", special=False),
    AddedToken(60_002, "</think>", special=False),
    AddedToken(60_003, "<tool_call>", special=False),
    AddedToken(60_004, "</tool_call>", special=False),
)
CALL = "<tool_call>\n<function=look>\n<parameter=at>\nx\n</parameter>\n</function>\n</tool_call>"
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}


def tool(name: str = "look", parameters: object = None, **more: object) -> dict[str, object]:
    """A tool as clients declare it."""
    return {"type": "function", "function": {"name": name, "parameters": parameters or PARAMETERS, **more}}


async def model(connect: Connect, ending: str = OPEN) -> tuple[Client, FakeServing]:
    """A client on a model that writes Qwen's calls."""
    serving = FakeServing(says(CALL))
    prompts = FakePrompts(tool_source=TEMPLATE, ending=ending)
    return await connect(application(serving, prompts=prompts, added=ADDED)), serving


async def asked(client: Client, **fields: object) -> int:
    """One chat; its status."""
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool(), tool("hide")], **fields}
    return (await client.post("/v1/chat/completions", json=body)).status


async def constraint_for(connect: Connect, ending: str = OPEN, **fields: object) -> Constraint | None:
    """The constraint that a chat puts on its answer."""
    client, serving = await model(connect, ending)
    assert await asked(client, **fields) == 200
    return serving.requests[0].constraint


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_free_choice_constrains_nothing(connect: Connect, choice: str) -> None:
    assert await constraint_for(connect, tool_choice=choice) is None


async def test_required_call_may_be_any_and_may_follow_a_thought(connect: Connect) -> None:
    found = await constraint_for(connect, tool_choice="required")
    assert found is not None
    assert (found.kind, found.begins) == (ConstraintKind.LARK, [])
    assert "function=look" in found.text
    assert "function=hide" in found.text
    assert "<[60001]>" in found.text


async def test_named_call_begins_behind_an_open_thought(connect: Connect) -> None:
    named = {"type": "function", "function": {"name": "hide"}}
    found = await constraint_for(connect, OPEN + "<think>\n", tool_choice=named)
    assert found is not None
    assert found.begins == [FIRST_CHARACTER + ord(character) for character in "</think>"]
    assert "function=hide" in found.text
    assert "function=look" not in found.text
    assert "<[60001]>" not in found.text


async def test_strict_tool_is_held_to_its_schema_once_a_call_has_begun(connect: Connect) -> None:
    found = await constraint_for(connect, tools=[tool(strict=True)])
    assert found is not None
    assert found.begins == [60_003]


async def test_form_of_the_answer_may_follow_a_thought(connect: Connect) -> None:
    found = await constraint_for(connect, response_format={"type": "json_object"})
    assert found is not None
    assert (found.kind, found.begins) == (ConstraintKind.LARK, [])
    without = await constraint_for(connect, response_format={"type": "json_object"}, enable_thinking=False)
    assert without is not None
    assert without.kind is ConstraintKind.JSON_SCHEMA


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"not": {"type": "string"}}, "tools[0].function.parameters.properties.at.not"),
        ({"type": "string", "pattern": "(?=x)"}, "tools[0].function.parameters"),
    ],
)
async def test_schema_that_cannot_be_enforced_is_refused_by_name(connect: Connect, schema: object, param: str) -> None:
    client, serving = await model(connect)
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [tool(parameters={"type": "object", "properties": {"at": schema}})],
        "tool_choice": "required",
    }
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status == 400
    assert (await error_of(response))["param"] == param
    assert not serving.requests


@pytest.mark.parametrize(("budget", "left"), [({"reasoning_effort": "low"}, 2048), ({"thinking_budget": 9}, 9), ({}, None)])
async def test_budget_comes_from_whatever_the_request_says(connect: Connect, budget: dict[str, object], left: int | None) -> None:
    client, serving = await model(connect, OPEN + "<think>\n")
    assert await asked(client, **budget) == 200
    reasoning = serving.requests[0].reasoning
    assert reasoning is not None
    assert reasoning.budget_left == left


async def test_thought_that_is_not_wanted_is_closed_at_once(connect: Connect) -> None:
    """Where the template opens one all the same."""
    client, serving = await model(connect, OPEN + "<think>\n")
    assert await asked(client, enable_thinking=False) == 200
    reasoning = serving.requests[0].reasoning
    assert reasoning is not None
    assert (reasoning.budget_left, reasoning.budget_close_ids) == (0, [])
