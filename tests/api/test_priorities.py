"""Who waits in front of a screen."""

import pytest

from daemon.core.requests import Priority
from tests.api.conftest import Connect
from tests.api.fakes import FakeServing, application
from tests.api.reading import CHAT, error_of

PATH = "/v1/chat/completions"
TITLE = "### Task:\nGenerate a concise title"


@pytest.mark.parametrize(
    ("messages", "stream", "expected"),
    [
        ([{"role": "user", "content": "Hi"}], False, Priority.LIVE),
        ([{"role": "user", "content": TITLE}], False, Priority.BACKGROUND),
        ([{"role": "user", "content": [{"type": "text", "text": TITLE}]}], False, Priority.BACKGROUND),
        ([{"role": "user", "content": TITLE}], True, Priority.LIVE),
        ([{"role": "user", "content": "Hi"}, {"role": "user", "content": TITLE}], False, Priority.LIVE),
    ],
)
async def test_title_requests_of_open_webui_are_background(
    connect: Connect, messages: list[object], stream: bool, expected: Priority
) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    assert (await client.post(PATH, json={"messages": messages, "stream": stream})).status == 200
    assert serving.requests[0].priority is expected


async def test_header_decides_over_the_words(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    for path in (PATH, "/v1/completions"):
        await client.post(path, json={**CHAT, "prompt": "x"}, headers={"x-exl3d-priority": "Background"})
    assert [request.priority for request in serving.requests] == [Priority.BACKGROUND] * 2
    response = await client.post(PATH, json=CHAT, headers={"x-exl3d-priority": "royal"})
    assert response.status == 400
    assert (await error_of(response))["param"] == "x-exl3d-priority"
