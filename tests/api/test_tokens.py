"""`/tokenize`, `/detokenize` and `/apply-template`: prompts, seen without being run."""

import pytest

from tests.api.conftest import Connect
from tests.api.fakes import CARD, FIRST_CHARACTER, FakeServing, application
from tests.api.reading import CHAT, Json, error_of

RENDERED = "UserMessage: Hi\n"


def ids_of(text: str) -> list[int]:
    return [FIRST_CHARACTER + ord(character) for character in text]


@pytest.mark.parametrize("name", ["prompt", "content"])
async def test_text_is_tokenized_under_both_names(connect: Connect, name: str) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    body = await (await client.post("/tokenize", json={name: "ab"})).json()
    assert body == {"tokens": ids_of("ab"), "count": 2, "max_model_len": CARD.context, "token_strs": None}
    assert serving.requests == []


async def test_empty_text_has_no_tokens(connect: Connect) -> None:
    client = await connect(application())
    assert (await (await client.post("/tokenize", json={"prompt": ""})).json())["count"] == 0


async def test_chat_is_tokenized_as_it_would_be_run(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    counted = await (await client.post("/tokenize", json=CHAT)).json()
    assert counted["tokens"] == ids_of(RENDERED)
    await client.post("/v1/chat/completions", json=CHAT)
    assert counted["count"] == serving.requests[0].prompt_tokens


async def test_tokens_come_with_their_texts_where_asked_for(connect: Connect) -> None:
    client = await connect(application())
    vllm = await (await client.post("/tokenize", json={"prompt": "ab", "return_token_strs": True})).json()
    assert (vllm["tokens"], vllm["token_strs"]) == (ids_of("ab"), ["a", "b"])
    llama = await (await client.post("/tokenize", json={"content": "ab", "with_pieces": True})).json()
    assert llama["tokens"] == [{"id": token, "piece": piece} for token, piece in zip(ids_of("ab"), "ab", strict=True)]


async def test_template_is_applied_without_a_request(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    body = await (await client.post("/apply-template", json={**CHAT, "chat_template_kwargs": {"x": 1}})).json()
    assert body == {"prompt": RENDERED}
    assert serving.requests == []


async def test_ids_become_text_again(connect: Connect) -> None:
    client = await connect(application())
    body = await (await client.post("/detokenize", json={"tokens": ids_of("añ")})).json()
    assert body == {"prompt": "añ", "content": "añ"}
    assert (await (await client.post("/detokenize", json={"tokens": []})).json())["content"] == ""


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {**CHAT, "prompt": "x"}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "wizard"}]}, "messages[0].role"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {**CHAT, "tools": [{"type": "x"}]}, "tools[0].type"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [CARD.vocabulary]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": ["x"]}, "tokens[0]"),
    ],
)
async def test_wrong_field_is_named(connect: Connect, path: str, body: Json, param: str) -> None:
    client = await connect(application())
    response = await client.post(path, json=body)
    assert response.status == 400, await response.text()
    assert (await error_of(response))["param"] == param


@pytest.mark.parametrize(
    ("path", "body"), [("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": []}), ("/apply-template", CHAT)]
)
async def test_unknown_model_is_not_found(connect: Connect, path: str, body: Json) -> None:
    client = await connect(application())
    assert (await client.post(path, json={**body, "model": "nothing"})).status == 404
    assert (await client.post(path, json={**body, "model": CARD.aliases[0]})).status == 200
