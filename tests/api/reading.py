"""Reading what the API sends: events of a stream, and errors in OpenAI's shape."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from aiohttp import ClientResponse

Json = dict[str, Any]
CHAT: Json = {"messages": [{"role": "user", "content": "Hi"}]}


async def events(response: ClientResponse) -> list[Json]:
    """The events of a stream that ended with [DONE], without comments."""
    assert response.status == 200, await response.text()
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    blocks = (await response.text()).split("\n\n")
    assert blocks[-1] == ""
    data = [block.removeprefix("data: ") for block in blocks[:-1] if not block.startswith(":")]
    assert data[-1] == "[DONE]"
    return [json.loads(one) for one in data[:-1]]


async def named_events(response: ClientResponse) -> list[Json]:
    """The events of a stream in which each is named as its data is, without comments."""
    assert response.status == 200, await response.text()
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    blocks = (await response.text()).split("\n\n")
    assert blocks.pop() == ""
    found: list[Json] = []
    for block in blocks:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        event: Json = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


async def error_of(response: ClientResponse) -> Json:
    """The error in a body, whose shape is checked."""
    body = await response.json()
    assert set(body) == {"error"}, body
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    assert body["error"]["message"]
    assert response.headers["x-request-id"]
    return body["error"]


def text_of(chunks: list[Json], index: int = 0) -> str:
    """The content that a chat's chunks add up to."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # conditions of the code under test set no event
            await asyncio.sleep(0.005)
