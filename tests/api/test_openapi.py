"""`/openapi.json` tells the truth: about routes, about limits, and under thousands of requests made from it."""

from pathlib import Path
from typing import cast

import msgspec
import pytest

from daemon.api.openapi import document
from daemon.api.schemas import ChatBody
from tests.api.conftest import Connect
from tests.api.fakes import application
from tests.api.reading import Json
from tests.api.schemathesis_run import ask, served
from tests.api.test_doorman import KEY, WITH_KEYS

TOLD: Json = msgspec.json.decode(document("9.9.9", keys=False))


def test_operations_are_the_routes_of_the_application() -> None:
    routes = {
        (route.method.lower(), route.resource.canonical)
        for route in application().router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert {(method, path) for path, methods in TOLD["paths"].items() for method in methods} == routes


def test_every_reference_leads_somewhere() -> None:
    names = {f"#/components/schemas/{name}" for name in TOLD["components"]["schemas"]}
    assert set(references(TOLD)) <= names


def references(value: object) -> list[str]:
    if isinstance(value, dict):
        items = cast("Json", value)
        own = [items["$ref"]] if isinstance(items.get("$ref"), str) else []
        return own + [found for inner in items.values() for found in references(inner)]
    return [found for inner in cast("list[object]", value) for found in references(inner)] if isinstance(value, list) else []


def test_limits_and_descriptions_are_those_of_the_structs() -> None:
    properties = TOLD["components"]["schemas"]["ChatBody"]["properties"]
    assert set(properties) == set(ChatBody.__struct_fields__)
    assert all("description" in schema for schema in properties.values())
    assert properties["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert TOLD["components"]["schemas"]["MessagesBody"]["required"] == ["messages", "max_tokens"]


async def test_document_is_served_and_says_whether_keys_are_needed(connect: Connect) -> None:
    client = await connect(application())
    open_ = await (await client.get("/openapi.json")).json()
    assert open_["openapi"] == "3.1.0"
    assert "securitySchemes" not in open_["components"]
    with_keys = await connect(application(chosen=WITH_KEYS))
    assert (await with_keys.get("/openapi.json")).status == 401
    told = await (await with_keys.get("/openapi.json", headers={"x-api-key": KEY})).json()
    assert told["paths"]["/v1/messages"]["post"]["security"] == [{"bearer": []}, {"header": []}]
    assert "security" not in told["paths"]["/health"]["get"]


SMALL = "^/(v1/completions|v1/models.*|tokenize|detokenize|apply-template|health.*|version|metrics)$"
"""Paths with few fields: every limit of theirs is tried in seconds. `schemathesis_run` tries those of all."""


@pytest.mark.parametrize(
    "options", [("--phases", "fuzzing", "--max-examples", "2"), ("--phases", "coverage", "--include-path-regex", SMALL)]
)
async def test_requests_made_from_the_document_are_answered_as_it_says(tmp_path: Path, options: tuple[str, ...]) -> None:
    async with served() as url:
        status, text = await ask(url, tmp_path, *options)
    assert status == 0, text
    assert "passed" in text
