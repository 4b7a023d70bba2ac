"""What real clients sent, recorded: every chat and completion of theirs is answered."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.api.conftest import Connect
from tests.api.fakes import FakeServing, application, says
from tests.api.reading import Json, error_of, events

SHAPES = Path(__file__).parents[1] / "cases" / "request_shapes"
PATHS = {"POST /v1/chat/completions", "POST /v1/completions"}


def recorded() -> Iterator[tuple[str, Json]]:
    for path in sorted(SHAPES.glob("*.json")):
        for index, entry in enumerate(cast("list[Json]", json.loads(path.read_text()))):
            if entry["request"] in PATHS:
                yield f"{path.stem}-{index}", entry


def whole(body: Json) -> Json:
    """The recording shortens long lists, with a note in the place of what it left out."""
    kept: dict[str, list[Json]] = {
        name: [item for item in body[name] if isinstance(item, dict)] for name in ("messages", "tools") if name in body
    }
    return {**body, **kept, "model": "fake-model"}


def is_wrong(body: Json) -> bool:
    return body.get("messages") == [] or body.get("temperature") == "hot"


@pytest.mark.parametrize("entry", [pytest.param(entry, id=name) for name, entry in recorded()])
async def test_recorded_request_is_answered(connect: Connect, entry: Json) -> None:
    serving = FakeServing(says("Hello", "."))
    client = await connect(application(serving))
    body = whole(entry["body"])
    path = entry["request"].split()[1]
    response = await client.post(path, data=json.dumps(body), headers=entry["headers"])
    if is_wrong(body):
        assert response.status == 400
        assert (await error_of(response))["param"] in {"messages", "temperature"}
        return
    assert response.status == 200, await response.text()
    count = body.get("n") or 1
    assert len(serving.requests) == count
    if body.get("stream"):
        chunks = await events(response)
        asked: Json = body.get("stream_options") or {}
        assert bool(chunks[-1].get("usage")) == bool(asked.get("include_usage"))
    else:
        assert len((await response.json())["choices"]) == count


def test_recordings_are_there() -> None:
    assert len(list(recorded())) > 40
