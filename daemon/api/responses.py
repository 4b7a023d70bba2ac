"""`POST /v1/responses`: OpenAI's newer API, without a memory: every request carries the whole conversation."""

from dataclasses import replace

import msgspec
from aiohttp import web

from daemon.api.context import API, OUTCOME, origin_of, served
from daemon.api.replying import stream_reply, whole_reply
from daemon.api.responses_prompt import chat_of
from daemon.api.responses_reply import ResponseDraft, ResponseFacts, ResponseVoice
from daemon.api.responses_schemas import ResponsesBody
from daemon.api.watch import Watch
from daemon.core.errors import InvariantBroken

PATH = "/v1/responses"


def add_routes(router: web.UrlDispatcher) -> None:
    """Put the family's paths on a router."""
    router.add_post(PATH, answer)


async def answer(request: web.Request) -> web.StreamResponse:
    """Answer, streamed or whole."""
    api = request.app[API]
    body = await api.door.enter(request, ResponsesBody)
    card = api.serving.card()
    model = served(body.model, card)
    asked = chat_of(body)
    origin = origin_of(request, "resp")
    origin = replace(origin, name=origin.name.replace("-", "_", 1))
    with asked.names.spoken():
        prepared = await api.preparing.chat(asked.body, card, origin)
    if prepared.parsing is None:
        raise InvariantBroken("a chat was prepared without a parser")
    first = prepared.groups[0].requests[0]
    facts = ResponseFacts(origin.name, model, body, first.sampler)
    watch = Watch(api.meters, api.meters.person(origin.owner), first.prompt_tokens, origin.arrived)
    parser = prepared.parsing.parser()
    if body.stream:
        voice = ResponseVoice(facts, watch, parser)
        return await stream_reply(request, prepared, [[voice]], lambda: _noted(request, voice, b""), voice.failure)
    draft = ResponseDraft(facts, watch, parser)
    return await whole_reply(request, prepared, [[draft]], lambda: _noted(request, draft, msgspec.json.encode(draft.response())))


def _noted(request: web.Request, told: ResponseVoice | ResponseDraft, data: bytes) -> bytes:
    request[OUTCOME] = told.finish_reason
    return data
