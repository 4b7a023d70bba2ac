"""A small OpenAI-compatible server for the load generator: says what it is told, and remembers what it was asked."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias, cast

from aiohttp import web

Body: TypeAlias = dict[str, object]


class Server:
    """Streams one event a token; `spoil` may change or drop an event, by its number."""

    def __init__(self) -> None:
        self.asked: list[Body] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.together = 0
        self.most_together = 0
        self.status = 200
        self.spoil: Callable[[int, bytes], bytes] = lambda _number, event: event
        self.base_url = ""

    async def models(self, _request: web.Request) -> web.Response:
        """`GET /v1/models`."""
        return web.json_response({"object": "list", "data": [{"id": "tiny"}, {"id": "other"}]})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Both ways to generate."""
        body = cast("Body", await request.json())
        self.asked.append(body)
        self.paths.append(request.path)
        self.keys.append(request.headers.get("Authorization"))
        if self.status != 200:
            return web.json_response({"error": {"message": "no room"}}, status=self.status)
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number, event in enumerate(self.events(body, chat=request.path.endswith("chat/completions"))):
            await asyncio.sleep(0)
            await response.write(self.spoil(number, event))
        self.together -= 1
        return response

    def events(self, body: Body, *, chat: bool) -> list[bytes]:
        """A role, one event a token, the reason, usage, and the end."""
        tokens = cast("int", body["max_tokens"])
        texts: list[Body] = [{"delta": {"content": "a"}} if chat else {"text": "a"} for _ in range(tokens)]
        first: list[Body] = [{"delta": {"role": "assistant", "content": ""}}] if chat else []
        last: Body = {"delta": {}, "finish_reason": "length"} if chat else {"text": "", "finish_reason": "length"}
        usage = {"prompt_tokens": 10, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 4}}
        chunks: list[Body] = [{"choices": [choice]} for choice in (*first, *texts, last)]
        chunks.append({"choices": [], "usage": usage})
        return [*(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks), b"data: [DONE]\n\n"]


@asynccontextmanager
async def serving() -> AsyncGenerator[Server]:
    """The server on a port of its own."""
    server = Server()
    app = web.Application()
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/chat/completions", server.generate)
    app.router.add_post("/v1/completions", server.generate)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = cast("tuple[str, int]", runner.addresses[0])
    server.base_url = f"http://{host}:{port}/v1"
    yield server
    await runner.cleanup()
