"""What is wrong is named, in OpenAI's shape, and nothing of it reaches an engine."""

import asyncio
import io
import logging
from collections.abc import AsyncIterator

import msgspec
import pytest

from daemon.api.expectations import integer_fields
from daemon.api.messages_schemas import MessagesBody
from daemon.api.parameters import NO_EFFECT, REFUSED
from daemon.api.responses_schemas import ResponsesBody
from daemon.api.schemas import MAX_COUNT, MAX_REACH, MAX_TOP_K, ChatBody, CompletionBody
from daemon.core.settings import EngineSettings, ServerSettings, Settings
from daemon.core.wire import Submit
from tests.api.conftest import Connect
from tests.api.fakes import FakeServing, FakeTokenizing, application, settings
from tests.api.reading import CHAT, error_of, until

PATH = "/v1/chat/completions"
BOTH = (PATH, "/v1/completions")


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("temperature", "hot", "0 to 2"),
        ("temperature", -0.1, "0 to 2"),
        ("temperature", 2.5, "0 to 2"),
        ("temperature", True, "0 to 2"),
        ("top_p", 1.01, "0 to 1"),
        ("top_p", [], "0 to 1"),
        ("top_k", -2, "from -1"),
        ("min_p", 2, "0 to 1"),
        ("max_tokens", 0, "from 1"),
        ("max_tokens", 1.5, "an integer"),
        ("max_tokens", "16", "an integer"),
        ("min_tokens", -1, "from 0"),
        ("seed", "x", "an integer"),
        ("frequency_penalty", 2.1, "-2 to 2"),
        ("presence_penalty", -2.1, "-2 to 2"),
        ("repetition_penalty", 0, "above 0"),
        ("n", 0, "1 to 16"),
        ("n", 17, "1 to 16"),
        ("stop", "", "non-empty"),
        ("stop", 3, "non-empty"),
        ("stop", ["x"] * 17, "at most 16"),
        ("stream", "yes", "true or false"),
        ("logit_bias", [], "an object"),
        ("logit_bias", {"5": 101}, "-100 to 100"),
        ("logprobs", "x", "expected"),
        ("timeout", 0, "above 0"),
        ("response_format", "json", "an object"),
        ("xtc_probability", 2, "0 to 1"),
        ("dry_base", 0.5, "1 to 100"),
    ],
)
async def test_wrong_value_is_refused_by_name_with_what_was_expected(
    connect: Connect, field: str, value: object, wanted: str
) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    for path in BOTH:
        response = await client.post(path, json={**CHAT, "prompt": "x", field: value})
        assert response.status == 400, await response.text()
        error = await error_of(response)
        assert error["param"] == field
        assert error["type"] == "invalid_request_error"
        assert field in error["message"]
        assert wanted in error["message"]
    assert serving.requests == []


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("stop", ["a", 3], "stop[1]"),
        ("stop_token_ids", [70_000], "stop_token_ids[0]"),
        ("logit_bias", {"70000": 1}, "logit_bias.70000"),
        ("logit_bias", {"x": 1}, "logit_bias.x"),
        ("logit_bias", {"9" * 5000: 1}, "logit_bias." + "9" * 20),
        ("stream_options", {"include_usage": 3}, "stream_options.include_usage"),
        ("stream_options", {"include_usage": True}, "stream_options"),
        ("top_logprobs", 2, "top_logprobs"),
        ("top_logprobs", 21, "top_logprobs"),
        ("min_tokens", 5000, None),
        ("response_format", {"type": "yaml"}, "response_format.type"),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema"),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objec"}}},
            "response_format.json_schema.schema",
        ),
        ("guided_regex", "a(", "guided_regex"),
        ("guided_json", "{", "guided_json"),
        ("structured_outputs", {"yaml": "x"}, "structured_outputs.yaml"),
        ("model", 3, "model"),
        ("messages", [], "messages"),
        ("messages", "x", "messages"),
        ("messages", None, "messages"),
        ("messages", [3], "messages[0]"),
        ("messages", [{"role": "wizard", "content": "x"}], "messages[0].role"),
        ("messages", [{"role": "user", "content": 3}], "messages[0].content"),
        (
            "messages",
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,xx"}}]}],
            "messages[0].content[0]",
        ),
        ("tools", [{"type": "function"}], "tools[0].function"),
    ],
)
async def test_wrong_part_of_a_chat_is_named(connect: Connect, field: str, value: object, param: str | None) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    response = await client.post(PATH, json={**CHAT, field: value, **({"max_tokens": 9} if field == "min_tokens" else {})})
    assert response.status == 400, await response.text()
    error = await error_of(response)
    if param is not None:
        assert error["param"] == param
    assert serving.requests == []


BIG = 2**70
"""More than a message on the link can carry."""
BODIES: list[tuple[str, type[msgspec.Struct], dict[str, object]]] = [
    (PATH, ChatBody, CHAT),
    ("/v1/completions", CompletionBody, {"prompt": "x"}),
    ("/v1/messages", MessagesBody, {**CHAT, "max_tokens": 9}),
    ("/v1/responses", ResponsesBody, {"input": "x"}),
]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [pytest.param(path, body, name, id=f"{path} {name}") for path, kind, body in BODIES for name in sorted(integer_fields(kind))],
)
async def test_number_too_big_for_the_link_is_refused_by_the_name_of_its_field(
    connect: Connect, path: str, body: dict[str, object], field: str
) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    for number in (BIG, -BIG, 1e30, 10**4000):
        response = await client.post(path, json={**body, field: number})
        assert response.status == 400, await response.text()
        error = (await response.json())["error"]
        assert field in error["message"]
        assert len(error["message"]) < 500
    assert serving.requests == []


async def test_empty_conversation_is_refused_in_words_for_people(connect: Connect) -> None:
    client = await connect(application(FakeServing()))
    error = await error_of(await client.post(PATH, json={"messages": []}))
    assert error["message"] == "`messages` is an empty array; expected a non-empty array."
    assert (error["param"], error["code"]) == ("messages", "invalid_value")


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        (PATH, {"stop_token_ids": [BIG]}, "stop_token_ids[0]"),
        (PATH, {"logit_bias": {str(BIG): 1}}, "logit_bias"),
        ("/v1/completions", {"prompt": [BIG]}, "prompt"),
        ("/v1/completions", {"prompt": [[3, BIG]]}, "prompt"),
        ("/v1/messages", {"max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": BIG}}, "thinking.budget_tokens"),
        ("/detokenize", {"tokens": [BIG]}, "tokens[0]"),
    ],
)
async def test_number_too_big_inside_a_field_is_refused_by_name_too(
    connect: Connect, path: str, fields: dict[str, object], named: str
) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    response = await client.post(path, json={**CHAT, **fields})
    assert response.status == 400, await response.text()
    assert named in (await response.json())["error"]["message"]
    assert serving.requests == []


async def test_greatest_number_of_each_field_can_be_written_to_the_link(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    fields = {
        "top_k": MAX_TOP_K,
        "dry_multiplier": 1,
        **dict.fromkeys(("dry_allowed_length", "dry_penalty_last_n"), MAX_REACH),
        **dict.fromkeys(("max_tokens", "min_tokens", "reasoning_budget", "seed"), MAX_COUNT),
    }
    response = await client.post(PATH, json={**CHAT, **fields})
    assert response.status == 200, await response.text()
    (request,) = serving.requests
    assert request.sampler.top_k == MAX_TOP_K
    assert request.seed == MAX_COUNT
    submit = Submit(
        1, 1, [], 0, request.max_tokens, request.min_tokens, request.sampler, request.seed, reasoning=request.reasoning
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(submit), type=Submit) == submit


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "-" + "9" * 5000])
async def test_number_that_is_none_is_refused_by_the_name_and_range_of_its_field(connect: Connect, number: str) -> None:
    client = await connect(application())
    response = await client.post(PATH, data='{"messages":[{"role":"user","content":"x"}],"temperature":' + number + "}")
    assert response.status == 400
    error = await error_of(response)
    assert error["param"] == "temperature"
    assert "a number from 0 to 2" in error["message"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe\x00", b'{"messages": "\xff"}', b"[" * 100_000, b'{"a":' * 100_000],
    ids=["empty", "cut", "array", "string", "null", "bytes", "utf8", "deep array", "deep object"],
)
async def test_body_that_is_no_json_object_is_refused(connect: Connect, body: bytes) -> None:
    client = await connect(application())
    for path in BOTH:
        response = await client.post(path, data=body, headers={"Content-Type": "application/json"})
        assert response.status == 400
        assert "body" in (await error_of(response))["message"].lower()


async def test_body_over_the_limit_is_refused_announced_or_not(connect: Connect) -> None:
    client = await connect(application(chosen=settings(max_body_mib=1)))
    big = b'{"messages": "' + b"x" * 2**20 + b'"}'

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(big), 65536):
            yield big[start : start + 65536]

    for body in (io.BytesIO(big), pieces()):
        response = await client.post(PATH, data=body)
        assert response.status == 413
        error = await error_of(response)
        assert error["code"] == "body_too_large"
        assert "1 MiB" in error["message"]


async def test_large_body_is_read_off_the_loop_and_answered(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    response = await client.post(PATH, json={**CHAT, "user": "u" * 100_000})
    assert response.status == 200
    assert len(serving.requests) == 1


async def test_unknown_model_is_not_found_and_an_alias_is(connect: Connect) -> None:
    client = await connect(application())
    response = await client.post(PATH, json={**CHAT, "model": "gpt-4"})
    assert response.status == 404
    error = await error_of(response)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "fake-model" in error["message"]
    assert (await (await client.post(PATH, json={**CHAT, "model": "other-name"})).json())["model"] == "other-name"


@pytest.mark.parametrize("name", sorted(REFUSED))
async def test_known_parameter_that_is_not_honoured_is_refused_by_name(connect: Connect, name: str) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    response = await client.post(PATH, json={**CHAT, name: ["something", 5]})
    assert response.status == 400
    error = await error_of(response)
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert serving.requests == []
    for usual in (None, *REFUSED[name].neutral):
        assert (await client.post(PATH, json={**CHAT, name: usual})).status == 200


async def test_unknown_parameter_is_ignored_with_one_warning(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    client = await connect(application())
    with caplog.at_level(logging.WARNING, logger="daemon.api"):
        for _ in range(3):
            assert (await client.post(PATH, json={**CHAT, "frobnicate": 1})).status == 200
    assert [record.getMessage() for record in caplog.records if "frobnicate" in record.getMessage()] == [
        "unknown parameter 'frobnicate' of /v1/chat/completions is ignored (said once)"
    ]


async def test_parameters_without_effect_pass_in_silence(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    client = await connect(application())
    with caplog.at_level(logging.WARNING, logger="daemon.api"):
        assert (await client.post(PATH, json={**CHAT, **dict.fromkeys(NO_EFFECT, "x")})).status == 200
    assert caplog.records == []


def test_no_parameter_is_in_two_tables() -> None:
    fields = {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__}
    assert not fields & set(REFUSED)
    assert not fields & set(NO_EFFECT)
    assert not set(REFUSED) & set(NO_EFFECT)


async def test_more_bodies_at_once_than_may_run_and_queue_are_turned_away(connect: Connect) -> None:
    go = asyncio.Event()

    class Slow(FakeTokenizing):
        waiting = 0

        async def encode_plain(self, text: str) -> tuple[int, ...]:
            self.waiting += 1
            await go.wait()
            return await super().encode_plain(text)

    slow = Slow()
    chosen = Settings(server=ServerSettings(max_queued=1), engine=EngineSettings(max_batch=1))
    client = await connect(application(chosen=chosen, tokenizing=slow))
    asked = [asyncio.create_task(client.post("/v1/completions", json={"prompt": "x"})) for _ in range(2)]
    await until(lambda: slow.waiting == len(asked))
    refused = await client.post("/v1/completions", json={"prompt": "y"})
    assert refused.status == 503
    assert (await error_of(refused))["code"] == "overloaded"
    assert refused.headers["Retry-After"]
    go.set()
    assert [(await each).status for each in asked] == [200, 200]


@pytest.mark.parametrize(("value", "status"), [(1, 200), (1.0, 200), (True, 400), (2, 400)])
async def test_value_that_asks_for_nothing_is_told_apart_as_json_does(connect: Connect, value: object, status: int) -> None:
    client = await connect(application())
    assert (await client.post(PATH, json={**CHAT, "typical_p": value})).status == status
