"""What every answer has: an id, a shape for errors, keys, CORS."""

import os

import pytest

from daemon.core.errors import ConfigError, NotReady, Overloaded, PoisonousRequest, RequestError
from daemon.core.keys import SALT_BYTES, SECRET_BYTES, hash_key, new_key
from daemon.core.settings import KeySettings, Settings
from tests.api.conftest import Connect
from tests.api.fakes import FakeServing, application, breaks, settings
from tests.api.reading import CHAT, error_of

PATH = "/v1/chat/completions"
SALT = os.urandom(SALT_BYTES)
KEY = new_key(SALT, os.urandom(SECRET_BYTES))
OWN_KEY = "a key that somebody made up"
WITH_KEYS = Settings(
    keys=[
        KeySettings(name="ann", hash=hash_key(KEY, SALT)),
        KeySettings(name="bob", hash=hash_key(OWN_KEY, os.urandom(SALT_BYTES))),
    ]
)


REFUSALS: list[tuple[dict[str, object], RequestError | None, str]] = [
    ({"max_tokens": "many"}, None, "400 invalid_value 'max_tokens'"),
    ({"model": "gpt"}, None, "404 model_not_found 'model'"),
    ({"messages": [{"role": "user"}]}, None, "'messages[0].content'"),
    ({}, Overloaded("Too many people.", 3, own_limit=False), "503 overloaded"),
    ({}, NotReady("No engine.", 3), "503 not_ready"),
]


@pytest.mark.parametrize(("fields", "refusal", "told"), REFUSALS)
async def test_refused_request_leaves_one_line_with_its_id_and_no_text(
    connect: Connect, caplog: pytest.LogCaptureFixture, fields: dict[str, object], refusal: RequestError | None, told: str
) -> None:
    caplog.set_level("INFO", "daemon.api.doorman")
    client = await connect(application(FakeServing(refusal=refusal)))
    for stream in (False, True):
        caplog.clear()
        body = {"messages": [{"role": "user", "content": "a secret"}], "stream": stream, **fields}
        response = await client.post(PATH, json=body, headers={"x-request-id": "mine"})
        assert response.status >= 400
        (line,) = [record.getMessage() for record in caplog.records if record.name == "daemon.api.doorman"]
        assert line.startswith(f"refused mine of local, POST {PATH}: ")
        assert told in line
        assert "secret" not in line


async def test_request_that_broke_while_it_ran_has_no_second_line(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "daemon.api.doorman")
    client = await connect(application(FakeServing(breaks(PoisonousRequest(), "Hel"))))
    assert (await client.post(PATH, json=CHAT)).status == 422
    assert [record for record in caplog.records if record.name == "daemon.api.doorman"] == []


async def test_unknown_path_is_404_in_openais_shape(connect: Connect) -> None:
    client = await connect(application())
    for path in ("/", "/v2/x", "/api/v1/models", "/api/tags", "/props", "/v1/props"):
        response = await client.get(path)
        assert response.status == 404
        error = await error_of(response)
        assert error["code"] == "unknown_url"
        assert path in error["message"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEAD"])
async def test_wrong_method_is_405_with_allow(connect: Connect, method: str) -> None:
    client = await connect(application())
    response = await client.request(method, PATH)
    assert response.status == 405
    assert response.headers["Allow"] == "POST"
    if method != "HEAD":
        assert (await error_of(response))["code"] == "method_not_allowed"


async def test_head_is_answered_where_get_is(connect: Connect) -> None:
    client = await connect(application())
    for path in ("/metrics", "/health", "/v1/models"):
        assert (await client.head(path)).status == 200


async def test_request_id_of_the_client_comes_back_where_it_is_sane(connect: Connect) -> None:
    client = await connect(application())
    for path in ("/health", "/nothing"):
        assert (await client.get(path, headers={"x-request-id": "abc-1.2"})).headers["x-request-id"] == "abc-1.2"
        for bad in ("x" * 200, "a b", "é"):
            assert (await client.get(path, headers={"x-request-id": bad})).headers["x-request-id"].startswith("req_")
    streamed = await client.post(PATH, json={**CHAT, "stream": True}, headers={"x-request-id": "mine"})
    assert streamed.headers["x-request-id"] == "mine"


async def test_bug_is_500_with_the_requests_id_and_no_detail(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    def script(_: object) -> list[object]:
        raise ZeroDivisionError("secret detail")

    client = await connect(application(FakeServing(script)))  # pyright: ignore[reportArgumentType]  # broken on purpose
    response = await client.post(PATH, json=CHAT, headers={"x-request-id": "find-me"})
    assert response.status == 500
    error = await error_of(response)
    assert "find-me" in error["message"]
    assert "secret" not in error["message"]
    assert "secret detail" in caplog.text


async def test_without_keys_everybody_is_local_whatever_they_send(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": "Basic eA=="}, {"x-api-key": "x"}):
        assert (await client.post(PATH, json=CHAT, headers=headers)).status == 200
    assert {request.owner for request in serving.requests} == {"local"}


async def test_key_names_its_owner_in_both_headers(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving, WITH_KEYS))
    for headers in ({"Authorization": f"Bearer {KEY}"}, {"authorization": f"bearer {KEY}"}, {"x-api-key": OWN_KEY}):
        assert (await client.post(PATH, json=CHAT, headers=headers)).status == 200
    assert [request.owner for request in serving.requests] == ["ann", "ann", "bob"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": f"Basic {KEY}"},
        {"x-api-key": "nonsense"},
        {"x-api-key": "x" * 5000},
        {"Authorization": "Bearer é"},
    ],
)
async def test_missing_or_wrong_key_is_401(connect: Connect, headers: dict[str, str]) -> None:
    serving = FakeServing()
    client = await connect(application(serving, WITH_KEYS))
    for _ in range(2):
        response = await client.post(PATH, json=CHAT, headers=headers)
        assert response.status == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert (await error_of(response))["code"] == "invalid_api_key"
    assert serving.requests == []


async def test_health_and_version_need_no_key_and_the_rest_does(connect: Connect) -> None:
    client = await connect(application(chosen=WITH_KEYS))
    for path in ("/health", "/health/live", "/health/ready", "/health/deep", "/version"):
        assert (await client.get(path)).status == 200
    for path in ("/metrics", "/v1/models", "/v1/models/fake-model", "/nothing"):
        assert (await client.get(path)).status == 401
        assert (await client.get(path, headers={"x-api-key": KEY})).status in {200, 404}


def test_damaged_hash_in_the_configuration_is_a_config_error() -> None:
    for damaged in ("scrypt$zz$00", "bcrypt$00$" + "00" * 32, "scrypt$00$00", "plain"):
        with pytest.raises(ConfigError, match="scrypt"):
            application(chosen=Settings(keys=[KeySettings(name="ann", hash=damaged)]))


async def test_cors_is_off_by_default(connect: Connect) -> None:
    client = await connect(application())
    headers = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST"}
    assert (await client.options(PATH, headers=headers)).status == 405
    answer = await client.get("/v1/models", headers={"Origin": "https://chat.example"})
    assert "Access-Control-Allow-Origin" not in answer.headers


async def test_cors_admits_configured_origins_only_and_needs_no_key_for_the_preflight(connect: Connect) -> None:
    chosen = Settings(keys=WITH_KEYS.keys, server=settings(cors_origins=["https://chat.example"]).server)
    client = await connect(application(chosen=chosen))
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight = await client.options(PATH, headers={"Origin": "https://chat.example", **asked})
    assert preflight.status == 204
    assert preflight.headers["Access-Control-Allow-Origin"] == "https://chat.example"
    assert preflight.headers["Access-Control-Allow-Headers"] == "authorization"
    refused = await client.post(PATH, json=CHAT, headers={"Origin": "https://chat.example"})
    assert refused.status == 401
    assert refused.headers["Access-Control-Allow-Origin"] == "https://chat.example"
    assert "Access-Control-Allow-Origin" not in (await client.options(PATH, headers={"Origin": "https://evil", **asked})).headers
