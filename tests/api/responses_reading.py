"""Reading what `/v1/responses` sends: events of a stream in their order, and the response they end with."""

from aiohttp import ClientResponse

from tests.api.reading import Json, named_events

PATH = "/v1/responses"
HELLO: Json = {"input": "Hi"}
LAST = {"response.completed", "response.incomplete", "response.failed"}
WHOLE = {
    "response.output_text": "text",
    "response.reasoning_text": "text",
    "response.reasoning_summary_text": "text",
    "response.function_call_arguments": "arguments",
}


async def events(response: ClientResponse) -> list[Json]:
    """The events of a stream, numbered without a gap."""
    found = await named_events(response)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    assert found[-1]["type"] in LAST
    return found


def response_of(events: list[Json]) -> Json:
    """The response at the end, after a check that the events before it say the same."""
    open_items: dict[str, Json] = {}
    texts: dict[str, str] = {}
    done: list[Json] = []
    for event in events:
        kind, _, what = event["type"].rpartition(".")
        if what == "delta":
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
        elif what == "done" and kind in WHOLE:
            assert event[WHOLE[kind]] == texts.get(event["item_id"], "")
        elif event["type"] == "response.output_item.added":
            assert event["output_index"] == len(open_items)
            assert event["item"]["status"] == "in_progress"
            open_items[event["item"]["id"]] = event["item"]
        elif event["type"] == "response.output_item.done":
            assert open_items[event["item"]["id"]]["type"] == event["item"]["type"]
            if not (event["item"]["type"] == "function_call" and event["item"]["status"] == "incomplete"):
                done.append(event["item"])
    response: Json = events[-1]["response"]
    assert response["output"] == done
    return response
