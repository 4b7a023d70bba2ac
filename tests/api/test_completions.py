"""POST /v1/completions over a scripted Serving."""

import pytest
from aiohttp import ClientResponse

from daemon.core.events import Ending
from daemon.core.wire import TokenSpan
from tests.api.conftest import Client, Connect
from tests.api.fakes import CARD, FIRST_CHARACTER, FakeServing, application, says
from tests.api.reading import Json, error_of, events

PATH = "/v1/completions"


async def ask(client: Client, prompt: object, **fields: object) -> ClientResponse:
    return await client.post(PATH, json={"prompt": prompt, **fields})


def ids_of(text: str) -> list[int]:
    return [FIRST_CHARACTER + ord(character) for character in text]


def texts_of(chunks: list[Json]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


async def test_text_prompt_answers_with_text_and_usage(connect: Connect) -> None:
    serving = FakeServing(says(" good", ".", ending=Ending.LENGTH))
    client = await connect(application(serving))
    body = await (await ask(client, "Bread is", max_tokens=2)).json()
    assert body["object"] == "text_completion"
    assert body["choices"][0]["text"] == " good."
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["prompt_tokens"] == len("Bread is")
    assert body["usage"]["total_tokens"] == len("Bread is") + 2


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        (ids_of("ab"), ["ab"]),
        ([ids_of("ab"), ids_of("c")], ["ab", "c"]),
        (["ab", ids_of("c")], ["ab", "c"]),
    ],
)
async def test_every_form_of_prompt_reaches_the_engine_as_ids(connect: Connect, prompt: object, expected: list[str]) -> None:
    serving = FakeServing(says("x"))
    client = await connect(application(serving))
    body = await (await ask(client, prompt)).json()
    assert [request.spans for request in serving.requests] == [(TokenSpan(ids_of(text)),) for text in expected]
    assert [choice["index"] for choice in body["choices"]] == list(range(len(expected)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, expected))


async def test_choices_are_numbered_through_all_prompts(connect: Connect) -> None:
    client = await connect(application(FakeServing(lambda request: says(f"{request.prompt_tokens}")(request))))
    body = await (await ask(client, ["a", "bb"], n=2)).json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, "1"), (1, "1"), (2, "2"), (3, "2")]
    assert body["usage"]["prompt_tokens"] == 3
    assert body["usage"]["completion_tokens"] == 4
    assert texts_of(await events(await ask(client, ["a", "bb"], n=2, stream=True))) == {0: "1", 1: "1", 2: "2", 3: "2"}


async def test_echo_begins_with_the_prompt_streamed_and_whole(connect: Connect) -> None:
    client = await connect(application(FakeServing(says(" c", "d"))))
    assert (await (await ask(client, "ab", echo=True)).json())["choices"][0]["text"] == "ab cd"
    assert (await (await ask(client, ids_of("ab"), echo=True)).json())["choices"][0]["text"] == "ab cd"
    assert texts_of(await events(await ask(client, "ab", echo=True, stream=True))) == {0: "ab cd"}


async def test_echo_of_an_empty_answer_is_the_prompt(connect: Connect) -> None:
    client = await connect(application(FakeServing(says())))
    assert texts_of(await events(await ask(client, "ab", echo=True, stream=True))) == {0: "ab"}


async def test_logprobs_have_the_old_shape_with_offsets(connect: Connect) -> None:
    client = await connect(application(FakeServing(says("x", "y"))))
    body = await (await ask(client, "ab", logprobs=2, echo=True)).json()
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["x", "y"]
    assert logprobs["token_logprobs"] == [-0.5, -0.5]
    assert logprobs["text_offset"] == [2, 3]
    assert len(logprobs["top_logprobs"]) == 2
    chunks = await events(await ask(client, "ab", logprobs=2, stream=True))
    streamed = [choice["logprobs"]["tokens"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert streamed == [["x"], ["y"]]


async def test_stream_ends_with_usage_where_asked(connect: Connect) -> None:
    client = await connect(application(FakeServing(says("x", "y", cached=1))))
    chunks = await events(await ask(client, "ab", stream=True, stream_options={"include_usage": True}))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    assert chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 1
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"


WRONG_PROMPTS: list[tuple[object, str]] = [
    ("", "prompt"),
    ([], "prompt"),
    ([[]], "prompt[0]"),
    ([1, "a"], "prompt[0]"),
    ([CARD.vocabulary], "prompt"),
    ([-1], "prompt"),
    ([1.5], "prompt[0]"),
    ({}, "prompt"),
    (3, "prompt"),
]


@pytest.mark.parametrize(("prompt", "param"), WRONG_PROMPTS)
async def test_wrong_prompt_is_named(connect: Connect, prompt: object, param: str) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    response = await ask(client, prompt)
    assert response.status == 400
    assert (await error_of(response))["param"] == param
    assert serving.requests == []


async def test_more_answers_than_the_bound_are_refused(connect: Connect) -> None:
    client = await connect(application())
    response = await ask(client, ["a"] * 65, n=2)
    assert response.status == 400
    assert "130" in (await error_of(response))["message"]
