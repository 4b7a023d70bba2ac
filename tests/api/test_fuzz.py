"""Whatever is in a body: an answer or a named error, never a bug."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from aiohttp.test_utils import TestClient, TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.api.parameters import NO_EFFECT, REFUSED
from daemon.api.schemas import ChatBody, CompletionBody
from tests.api.conftest import Client
from tests.api.fakes import application

NAMES = sorted({*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, *REFUSED, *NO_EFFECT, "other"})
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", "x"])}, optional={"text": VALUES, "image_url": VALUES}
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "x"])},
    optional={
        "content": st.text(max_size=8) | st.lists(PARTS | VALUES, max_size=3) | VALUES,
        "tool_calls": VALUES,
        "name": VALUES,
    },
)


def merged(parts: tuple[dict[str, object], dict[str, object]]) -> dict[str, object]:
    return {**parts[0], **parts[1]}


BASE: st.SearchStrategy[dict[str, object]] = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGES, min_size=1, max_size=3) | VALUES, "prompt": st.text(min_size=1, max_size=5) | VALUES}
)
OTHERS: st.SearchStrategy[dict[str, object]] = st.dictionaries(
    st.sampled_from([name for name in NAMES if name not in {"messages", "prompt"}]), VALUES, max_size=5
)
BODIES = st.tuples(BASE, OTHERS).map(merged)
ALLOWED = {200, 400, 404}


@asynccontextmanager
async def client() -> AsyncGenerator[Client]:
    async with TestClient(TestServer(application())) as made:
        yield made


@settings(max_examples=30, deadline=None, suppress_health_check=(HealthCheck.too_slow,))
@given(st.lists(BODIES, min_size=1, max_size=8))
def test_any_body_is_answered_or_refused(bodies: list[dict[str, object]]) -> None:
    async def post() -> None:
        async with client() as made:
            for body in bodies:
                for path in ("/v1/chat/completions", "/v1/completions"):
                    response = await made.post(path, data=json.dumps(body))
                    text = await response.text()
                    assert response.status in ALLOWED, text
                    if response.status != 200:
                        assert json.loads(text)["error"]["message"]

    asyncio.run(post())


@settings(max_examples=30, deadline=None, suppress_health_check=(HealthCheck.too_slow,))
@given(st.lists(st.binary(max_size=200) | st.text(max_size=100).map(str.encode), min_size=1, max_size=8))
def test_any_bytes_are_refused(bodies: list[bytes]) -> None:
    async def post() -> None:
        async with client() as made:
            for body in bodies:
                assert (await made.post("/v1/chat/completions", data=body)).status == 400

    asyncio.run(post())
