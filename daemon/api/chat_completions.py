"""`POST /v1/chat/completions`."""

import msgspec
from aiohttp import web

from daemon.api.chat_reply import CHUNK_OBJECT, ChatCompletion, ChatDraft, ChatVoice
from daemon.api.context import API, OUTCOME, origin_of, served
from daemon.api.preparing import Prepared
from daemon.api.reply_facts import ReplyFacts, StreamStyle, style_of, usage_chunk
from daemon.api.replying import stream_reply, whole_reply
from daemon.api.schemas import ChatBody
from daemon.api.speech import Parser
from daemon.api.sse import DONE
from daemon.api.usage import timings, total, usage_body
from daemon.api.watch import Watch
from daemon.core.errors import InvariantBroken

PATH = "/v1/chat/completions"


def add_routes(router: web.UrlDispatcher) -> None:
    """Put the family's paths on a router."""
    router.add_post(PATH, answer)


async def answer(request: web.Request) -> web.StreamResponse:
    """Answer a chat, streamed or whole."""
    api = request.app[API]
    body = await api.door.enter(request, ChatBody)
    card = api.serving.card()
    model = served(body.model, card)
    style = style_of(body)
    origin = origin_of(request, "chatcmpl")
    prepared = await api.preparing.chat(body, card, origin)
    facts = ReplyFacts(origin.name, model, card.eos, api.tokenizing)
    person = api.meters.person(origin.owner)
    watches = [Watch(api.meters, person, one.prompt_tokens, origin.arrived) for one in prepared.groups[0].requests]
    if body.stream:
        return await _streamed(request, prepared, facts, watches, style)
    return await _whole(request, prepared, facts, watches)


def _parser(prepared: Prepared) -> Parser:
    if prepared.parsing is None:
        raise InvariantBroken("a chat was prepared without a parser")
    return prepared.parsing.parser()


async def _streamed(
    request: web.Request, prepared: Prepared, facts: ReplyFacts, watches: list[Watch], style: StreamStyle
) -> web.StreamResponse:
    logprobs = prepared.groups[0].requests[0].logprobs is not None
    voices = [
        ChatVoice(facts, index, watch, _parser(prepared), logprobs=logprobs, style=style) for index, watch in enumerate(watches)
    ]

    def last() -> bytes:
        request[OUTCOME] = voices[0].finish_reason
        if not style.include_usage:
            return DONE
        usages = [watch.so_far() for watch in watches]
        return usage_chunk(facts, CHUNK_OBJECT, total(usages[:1], usages), timings(watches)) + DONE

    return await stream_reply(request, prepared, [voices], last)


async def _whole(request: web.Request, prepared: Prepared, facts: ReplyFacts, watches: list[Watch]) -> web.Response:
    logprobs = prepared.groups[0].requests[0].logprobs is not None
    drafts = [ChatDraft(facts, index, watch, _parser(prepared), logprobs=logprobs) for index, watch in enumerate(watches)]

    def body() -> bytes:
        request[OUTCOME] = drafts[0].finish_reason
        usages = [watch.so_far() for watch in watches]
        return msgspec.json.encode(
            ChatCompletion(
                id=facts.id,
                object="chat.completion",
                created=facts.created,
                model=facts.model,
                choices=[draft.choice() for draft in drafts],
                usage=usage_body(total(usages[:1], usages)),
                timings=timings(watches),
            )
        )

    return await whole_reply(request, prepared, [drafts], body)
