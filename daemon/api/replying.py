"""Sending an answer, whatever the family: as a stream with errors inside it, or as one body."""

import logging
from collections.abc import Callable, Mapping, Sequence

from aiohttp import web

from daemon.api.context import API, OUTCOME, OWNER, REQUEST_ID, RUNNING
from daemon.api.errors import Answer, Dialect, answer_to, error_json
from daemon.api.limits import CLAMPED_HEADER
from daemon.api.preparing import Prepared
from daemon.api.running import Nowhere, Outlet, Voice, run
from daemon.api.sse import DONE, EventStream, event

_log = logging.getLogger(__name__)


Failure = Callable[[Answer], bytes]
"""What a family sends when an answer breaks in the middle of its stream: the last bytes of it."""


def openai_failure(answer: Answer) -> bytes:
    """The end of a broken stream of chunks."""
    return event(error_json(answer, Dialect.OPENAI)) + DONE


async def stream_reply(
    request: web.Request,
    prepared: Prepared,
    voices: Sequence[Sequence[Voice]],
    last: Callable[[], bytes],
    failure: Failure = openai_failure,
) -> web.StreamResponse:
    """Stream the voices' bytes, then `last()`. An error before the first byte is raised, a later one becomes `failure`."""
    api = request.app[API]
    request[RUNNING] = True
    async with EventStream(request, headers_of(request, prepared), api.in_force.settings.server.keepalive_seconds) as out:
        try:
            await _run(request, prepared, voices, out)
            await out.end(last())
        except ConnectionResetError:
            raise
        except Exception as error:  # every kind of error must reach the client, whose status line is already written
            if not out.begun:
                raise
            answer = answer_to(error, request[REQUEST_ID])
            request[OUTCOME] = answer.code or answer.type
            if answer.code == "internal_error":
                _log.exception("request %s failed inside its stream", request[REQUEST_ID])
            await out.end(failure(answer))
    return out.response


async def whole_reply(
    request: web.Request, prepared: Prepared, voices: Sequence[Sequence[Voice]], body: Callable[[], bytes]
) -> web.Response:
    """Run the voices to their end, then send `body()`."""
    request[RUNNING] = True
    await _run(request, prepared, voices, Nowhere())
    return web.Response(body=body(), content_type="application/json", headers=headers_of(request, prepared))


async def _run(request: web.Request, prepared: Prepared, voices: Sequence[Sequence[Voice]], outlet: Outlet) -> None:
    """Run the voices to their end, and put what they used on the person's account, however it ends."""
    api = request.app[API]
    prompts = sum(group.requests[0].prompt_tokens for group in prepared.groups)
    streams = sum(len(group.requests) for group in prepared.groups)
    with api.accounts.underway(request[OWNER], streams, prompts) as bill:
        try:
            await run(api.serving, prepared.groups, voices, outlet)
        finally:
            bill.tokens = sum(_used(speakers) for speakers in voices)


def _used(speakers: Sequence[Voice]) -> int:
    """Tokens that one prompt and its answers have used: nothing where no engine has begun with it."""
    begun = [speaker.watch for speaker in speakers if speaker.watch.began]
    return (begun[0].prompt if begun else 0) + sum(watch.so_far().completion for watch in begun)


def headers_of(request: web.Request, prepared: Prepared) -> Mapping[str, str]:
    """Headers that say what was done to the request."""
    if prepared.clamped is None:
        return {}
    request.app[API].meters.clamped += 1
    return {CLAMPED_HEADER: prepared.clamped}
