"""The aiohttp application, put together from its collaborators: one file an API family, each with an `add_routes`."""

from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web
from aiohttp.typedefs import Handler

from daemon.api import chat_completions, completions, messages, models, observing, openapi, responses, tokens
from daemon.api.auth import Authenticator
from daemon.api.context import API, Api
from daemon.api.door import Door
from daemon.api.doorman import Doorman
from daemon.api.meters import Meters, registry
from daemon.api.preparing import Preparing, PromptBuilding
from daemon.api.speech import Speech
from daemon.core.model import AddedToken
from daemon.core.ports import Serving, Tokenizing, Watching
from daemon.core.settings import Settings

_THREADS = 2
_MIB = 2**20


def build(
    *,
    serving: Serving,
    watching: Watching,
    tokenizing: Tokenizing,
    prompts: PromptBuilding,
    added: Sequence[AddedToken],
    settings: Settings,
    version: str,
) -> web.Application:
    """The application. Serve it with `runner`, which notices clients that hang up. `added` are the tokenizer's added tokens
    (`ModelDirectory.added`). Raises ConfigError for damaged keys.
    """
    limit = settings.server.max_body_mib * _MIB
    threads = ThreadPoolExecutor(_THREADS, "exl3d-api")
    hashing = ThreadPoolExecutor(1, "exl3d-keys")
    meters = Meters()
    speech = Speech(prompts.tool_source, added, tokenizing, settings.answers)
    authenticator = Authenticator(settings.keys, hashing)
    doorman = Doorman(authenticator, meters, settings.server.cors_origins, observing.OPEN_PATHS.__contains__)

    @web.middleware
    async def door(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await doorman.handle(request, handler)

    app = web.Application(middlewares=[door], client_max_size=limit)
    app[API] = Api(
        serving=serving,
        watching=watching,
        tokenizing=tokenizing,
        preparing=Preparing(prompts, tokenizing, speech, settings, threads),
        settings=settings,
        door=Door(limit, threads),
        meters=meters,
        threads=threads,
        version=version,
    )
    app[observing.REGISTRY] = registry(meters, watching)
    app[openapi.DOCUMENT] = openapi.document(version, keys=bool(settings.keys))
    for family in (chat_completions, completions, responses, messages, tokens, models, observing, openapi):
        family.add_routes(app.router)

    async def pools(_: web.Application) -> AsyncIterator[None]:
        yield
        threads.shutdown(wait=False, cancel_futures=True)
        hashing.shutdown(wait=False, cancel_futures=True)

    app.cleanup_ctx.append(pools)
    app.on_response_prepare.append(doorman.prepare)
    app.on_response_prepare.append(messages.prepare)
    return app


def runner(app: web.Application) -> web.AppRunner:
    """Serves `app` as it must be served: a handler is cancelled when its client hangs up, so that its request is too."""
    return web.AppRunner(app, handler_cancellation=True, access_log=None)
