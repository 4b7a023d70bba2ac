"""Who waits in front of a screen."""

import json
from pathlib import Path
from typing import cast

import pytest

from daemon.api.priorities import PRIORITY_HEADERS
from daemon.core.requests import Priority
from daemon.core.settings import BackgroundRule, Settings, SharingSettings
from tests.api.conftest import Connect
from tests.api.fakes import CARD, FakeServing, application
from tests.api.reading import CHAT, Json, error_of

PATH = "/v1/chat/completions"
TITLE = "### Task:\nGenerate a concise title"
SHAPES = Path(__file__).parents[1] / "cases" / "request_shapes"


@pytest.mark.parametrize(
    ("messages", "stream", "expected"),
    [
        ([{"role": "user", "content": "Hi"}], False, Priority.LIVE),
        ([{"role": "user", "content": TITLE}], False, Priority.BACKGROUND),
        ([{"role": "user", "content": [{"type": "text", "text": TITLE}]}], False, Priority.BACKGROUND),
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": TITLE}], False, Priority.BACKGROUND),
        ([{"role": "system", "content": TITLE}, {"role": "user", "content": "Hi"}], False, Priority.LIVE),
        ([{"role": "user", "content": TITLE}], True, Priority.LIVE),
        ([{"role": "user", "content": "Hi"}, {"role": "user", "content": TITLE}], False, Priority.LIVE),
        ([{"role": "user", "content": TITLE}, {"role": "assistant", "content": "A title"}], False, Priority.LIVE),
    ],
)
async def test_title_requests_of_open_webui_are_background(
    connect: Connect, messages: list[object], stream: bool, expected: Priority
) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    assert (await client.post(PATH, json={"messages": messages, "stream": stream})).status == 200
    assert serving.requests[0].priority is expected


async def test_recorded_message_in_open_webui_is_one_live_request_and_three_others(connect: Connect) -> None:
    """Its titles, tags and follow-ups are not streamed; what people read is."""
    entries = cast("list[Json]", json.loads((SHAPES / "openwebui_client.json").read_text()))
    serving = FakeServing()
    client = await connect(application(serving))
    recorded: list[bool] = []
    for entry in entries:
        if entry["request"] == f"POST {PATH}":
            body: Json = entry["body"]
            lists = [name for name in ("messages", "tools") if name in body]
            kept: Json = {name: [item for item in body[name] if isinstance(item, dict)] for name in lists}
            response = await client.post(PATH, json={**body, **kept, "model": CARD.name})
            await response.read()
            assert response.status == 200
            recorded.append(body["stream"])
    live = [request.priority is Priority.LIVE for request in serving.requests]
    assert live == recorded
    assert live.count(False) >= 3


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"model": CARD.name, "max_tokens": 9, "messages": [{"role": "user", "content": TITLE}], "system": "Hi"}),
        ("/v1/responses", {"input": TITLE, "instructions": "Be brief."}),
    ],
)
async def test_rules_hold_for_the_other_families_of_chats(connect: Connect, path: str, body: Json) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    assert (await client.post(path, json=body)).status == 200
    assert (await client.post(path, json={**body, "stream": True})).status == 200
    assert [request.priority for request in serving.requests] == [Priority.BACKGROUND, Priority.LIVE]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (BackgroundRule(starts_with="Summarise", streamed=None), [True, True, False, False]),
        (BackgroundRule(starts_with="Summarise", streamed=True), [False, True, False, False]),
        (BackgroundRule(starts_with="Summarise", single_message=False), [True, False, True, False]),
        (BackgroundRule(starts_with="summarise", single_message=False, streamed=None), [False, False, False, False]),
    ],
)
async def test_configured_rule_decides_what_is_background(connect: Connect, rule: BackgroundRule, expected: list[bool]) -> None:
    serving = FakeServing()
    client = await connect(application(serving, Settings(sharing=SharingSettings(background=[rule]))))
    one = [{"role": "user", "content": "Summarise this."}]
    chats: list[Json] = [
        {"messages": one},
        {"messages": one, "stream": True},
        {"messages": [*one, {"role": "assistant", "content": "So."}, {"role": "user", "content": "More."}]},
        {"messages": [{"role": "user", "content": TITLE}]},
    ]
    for body in chats:
        await (await client.post(PATH, json=body)).read()
    assert [request.priority is Priority.BACKGROUND for request in serving.requests] == expected


async def test_without_rules_everything_is_live(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving, Settings(sharing=SharingSettings(background=[]))))
    await client.post(PATH, json={"messages": [{"role": "user", "content": TITLE}]})
    assert serving.requests[0].priority is Priority.LIVE


@pytest.mark.parametrize("header", [*PRIORITY_HEADERS, "x-priority"])
async def test_header_decides_over_the_words(connect: Connect, header: str) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    for path in (PATH, "/v1/completions"):
        await client.post(path, json={**CHAT, "prompt": "x"}, headers={header: "Background"})
    await client.post(PATH, json={"messages": [{"role": "user", "content": TITLE}]}, headers={header: "live"})
    assert [request.priority for request in serving.requests] == [Priority.BACKGROUND] * 2 + [Priority.LIVE]
    response = await client.post(PATH, json=CHAT, headers={header: "royal"})
    assert response.status == 400
    assert (await error_of(response))["param"].lower() == header.lower()


async def test_our_own_header_counts_before_the_common_one(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    await client.post(PATH, json=CHAT, headers={"X-Priority": "3", "x-exl3d-priority": "background"})
    assert serving.requests[0].priority is Priority.BACKGROUND
