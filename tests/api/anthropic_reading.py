"""Reading what `/v1/messages` sends: events of a stream, the message they add up to, and errors in Anthropic's shape."""

import json

from aiohttp import ClientResponse

from tests.api.reading import Json, named_events

PATH = "/v1/messages"
DELTAS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
HELLO: Json = {"max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]}


async def events(response: ClientResponse) -> list[Json]:
    """The events of a stream; pings are left out."""
    return [event for event in await named_events(response) if event["type"] != "ping"]


def message_of(events: list[Json]) -> Json:
    """The message that a client puts together; blocks that are never closed are left out."""
    message: Json = {}
    blocks: list[Json] = []
    for event in events:
        index: int = event.get("index", 0)
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert index == len(blocks)
                blocks.append({**event["content_block"], "partial_json": ""})
            case "content_block_delta":
                delta = event["delta"]
                field = DELTAS[delta["type"]]
                blocks[index][field] += delta[field]
            case "content_block_stop":
                block = blocks[index]
                arguments = block.pop("partial_json")
                message["content"].append({**block, "input": json.loads(arguments)} if block["type"] == "tool_use" else block)
            case "message_delta":
                message |= {**event["delta"], "usage": event["usage"]}
            case other:
                assert other == "message_stop"
    return message


async def error_of(response: ClientResponse) -> Json:
    """The error in a body, whose shape is checked."""
    body = await response.json()
    assert set(body) == {"type", "error"}, body
    assert body["type"] == "error"
    assert {"type", "message"} <= set(body["error"]) <= {"type", "message", "details"}
    assert response.headers["request-id"] == response.headers["x-request-id"]
    return body["error"]
