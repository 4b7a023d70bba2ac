"""`POST /v1/completions`."""

import msgspec
from aiohttp import web

from daemon.api.completion_reply import OBJECT, TextCompletion, TextDraft, TextVoice
from daemon.api.context import API, OUTCOME, origin_of, served
from daemon.api.preparing import Prepared
from daemon.api.reply_facts import ReplyFacts, style_of, usage_chunk
from daemon.api.replying import stream_reply, whole_reply
from daemon.api.schemas import CompletionBody
from daemon.api.sse import DONE
from daemon.api.usage import timings, total, usage_body
from daemon.api.watch import Watch
from daemon.core.events import Usage

PATH = "/v1/completions"


def add_routes(router: web.UrlDispatcher) -> None:
    """Put the family's paths on a router."""
    router.add_post(PATH, answer)


async def answer(request: web.Request) -> web.StreamResponse:
    """Answer the prompts of a completion, streamed or whole. Choices are numbered through all prompts."""
    api = request.app[API]
    body = await api.door.enter(request, CompletionBody)
    card = api.serving.card()
    model = served(body.model, card)
    style = style_of(body)
    origin = origin_of(request, "cmpl")
    prepared = await api.preparing.completion(body, card, origin)
    facts = ReplyFacts(origin.name, model, card.eos, api.tokenizing)
    person = api.meters.person(origin.owner)
    watches = [
        [Watch(api.meters, person, one.prompt_tokens, origin.arrived) for one in group.requests] for group in prepared.groups
    ]
    if not body.stream:
        return await _whole(request, prepared, facts, watches)
    index = iter(range(sum(map(len, watches))))
    voices = [
        [TextVoice(facts, next(index), watch, group.echo, style) for watch in row]
        for group, row in zip(prepared.groups, watches, strict=True)
    ]

    def last() -> bytes:
        request[OUTCOME] = voices[0][0].finish_reason
        return (usage_chunk(facts, OBJECT, _usage(watches), timings(_flat(watches))) if style.include_usage else b"") + DONE

    return await stream_reply(request, prepared, voices, last)


async def _whole(request: web.Request, prepared: Prepared, facts: ReplyFacts, watches: list[list[Watch]]) -> web.Response:
    index = iter(range(sum(map(len, watches))))
    drafts = [
        [TextDraft(facts, next(index), watch, group.echo) for watch in row]
        for group, row in zip(prepared.groups, watches, strict=True)
    ]

    def body() -> bytes:
        request[OUTCOME] = drafts[0][0].finish_reason
        return msgspec.json.encode(
            TextCompletion(
                id=facts.id,
                object=OBJECT,
                created=facts.created,
                model=facts.model,
                choices=[draft.choice() for row in drafts for draft in row],
                usage=usage_body(_usage(watches)),
                timings=timings(_flat(watches)),
            )
        )

    return await whole_reply(request, prepared, drafts, body)


def _flat(watches: list[list[Watch]]) -> list[Watch]:
    return [watch for row in watches for watch in row]


def _usage(watches: list[list[Watch]]) -> Usage:
    return total([row[0].so_far() for row in watches], [watch.so_far() for watch in _flat(watches)])
