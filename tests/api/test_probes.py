"""What clients ask before they talk: whose server this is, how long its context is, what a path can do."""

import json
from pathlib import Path
from typing import cast

import pytest
from aiohttp import web

from tests.api.conftest import Connect
from tests.api.fakes import CARD, FakeServing, application
from tests.api.reading import Json, error_of
from tests.api.test_doorman import KEY, WITH_KEYS

FOREIGN = ("/props", "/v1/props", "/slots", "/api/tags", "/api/version", "/api/ps", "/api/v1/models", "/api/v0/models")
"""By a 200 on one of these clients take a server for llama-server, Ollama or LM Studio."""
SHAPES = Path(__file__).parents[1] / "cases" / "request_shapes" / "hermes_client.json"
CONTEXT_NAMES = (
    "context_length",
    "context_window",
    "context_size",
    "max_context_length",
    "max_position_embeddings",
    "max_model_len",
)
"""Where an agent looks for the context length, in its order."""


@pytest.mark.parametrize("path", FOREIGN)
async def test_question_for_another_server_is_404_at_once(connect: Connect, path: str) -> None:
    client = await connect(application(FakeServing(hold=0)))
    for method in ("GET", "HEAD", "POST"):
        response = await client.request(method, path)
        assert response.status == 404
        if method != "HEAD":
            assert (await error_of(response))["code"] == "unknown_url"
    with_keys = await connect(application(chosen=WITH_KEYS))
    assert (await with_keys.get(path)).status == 401
    assert (await with_keys.get(path, headers={"Authorization": f"Bearer {KEY}"})).status == 404


async def test_showing_a_model_as_ollama_does_is_404(connect: Connect) -> None:
    client = await connect(application())
    assert (await client.post("/api/show", json={"name": CARD.name})).status == 404


async def test_probes_of_an_agent_find_the_server_and_its_context(connect: Connect) -> None:
    """The recorded questions in their order: all but the last two are for other servers."""
    client = await connect(application())
    asked = [entry for entry in cast("list[Json]", json.loads(SHAPES.read_text())) if entry["request"].startswith("GET")]
    found: dict[str, Json] = {}
    for entry in asked:
        path = entry["request"].split()[1]
        response = await client.get(path, headers=entry["headers"])
        if response.status == 200:
            found[path] = await response.json()
        else:
            assert response.status == 404
    assert set(found) == {"/version", "/v1/models"}
    assert set(found["/version"]) == {"version"}
    model = found["/v1/models"]["data"][0]
    assert next(model[name] for name in CONTEXT_NAMES if name in model) == CARD.context


def posts() -> list[str]:
    return sorted(
        route.resource.canonical
        for route in application().router.routes()
        if route.method == "POST" and isinstance(route.resource, web.PlainResource)
    )


@pytest.mark.parametrize("path", posts())
async def test_wrong_method_on_a_path_for_posting_is_405_with_allow(connect: Connect, path: str) -> None:
    client = await connect(application())
    for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY"):
        response = await client.request(method, path)
        assert response.status == 405, method
        assert response.headers["Allow"] == "POST"


@pytest.mark.parametrize("path", ["/metrics", "/health", "/version", "/v1/models", f"/v1/models/{CARD.name}"])
async def test_path_for_getting_answers_head_and_refuses_the_rest(connect: Connect, path: str) -> None:
    client = await connect(application())
    got, head = await client.get(path), await client.head(path)
    assert got.status == head.status == 200
    assert head.headers["Content-Type"] == got.headers["Content-Type"]
    assert await head.read() == b""
    for method in ("POST", "TRACE", "QUERY"):
        response = await client.request(method, path)
        assert response.status == 405, method
        assert response.headers["Allow"] == "GET, HEAD"
