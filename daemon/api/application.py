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
from daemon.api.exposition import Exposition
from daemon.api.in_force import InForce
from daemon.api.meters import Meters
from daemon.api.preparing import Preparing, PromptBuilding
from daemon.api.rate_limits import Accounts, MemoryLedger
from daemon.api.speech import Speech
from daemon.core.model import AddedToken
from daemon.core.people import People, merge
from daemon.core.ports import Acquaintance, Serving, Tokenizing, TokenLedger, Watching
from daemon.core.settings import Settings

_THREADS = 2
_MIB = 2**20


class _Settled:
    """People who never change."""

    def __init__(self, people: People) -> None:
        self._people = people

    def current(self) -> People:
        """See Acquaintance."""
        return self._people


def build(
    *,
    serving: Serving,
    watching: Watching,
    tokenizing: Tokenizing,
    prompts: PromptBuilding,
    added: Sequence[AddedToken],
    settings: Settings,
    version: str,
    people: Acquaintance | None = None,
    ledger: TokenLedger | None = None,
) -> web.Application:
    """The application. Serve it with `runner`, which notices clients that hang up. `added` are the tokenizer's added tokens
    (`ModelDirectory.added`). Without `people` they are those of `settings`, for good; without `ledger` tokens of the day are
    counted from the start. Give new settings to `app[API].in_force.reload`. Raises ConfigError for damaged keys.
    """
    limit = settings.server.max_body_mib * _MIB
    threads = ThreadPoolExecutor(_THREADS, "exl3d-api")
    hashing = ThreadPoolExecutor(1, "exl3d-keys")
    meters = Meters()
    speech = Speech(prompts.tool_source, added, tokenizing, settings.answers)
    in_force = InForce(settings)
    acquaintance = people or _Settled(merge(settings.keys, settings.people, settings.sharing))
    accounts = Accounts(acquaintance, ledger or MemoryLedger(), in_force)
    doorman = Doorman(
        authenticator=Authenticator(acquaintance, hashing),
        acquaintance=acquaintance,
        accounts=accounts,
        meters=meters,
        in_force=in_force,
        open_path=observing.OPEN_PATHS.__contains__,
    )

    @web.middleware
    async def door(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await doorman.handle(request, handler)

    app = web.Application(middlewares=[door], client_max_size=limit)
    app[API] = Api(
        serving=serving,
        watching=watching,
        tokenizing=tokenizing,
        preparing=Preparing(prompts, tokenizing, speech, in_force, accounts, threads),
        in_force=in_force,
        accounts=accounts,
        door=Door(limit, threads),
        meters=meters,
        threads=threads,
        version=version,
    )
    app[observing.EXPOSITION] = Exposition(meters, watching)
    app[openapi.DOCUMENT] = openapi.document(version, keys=not acquaintance.current().open)
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
