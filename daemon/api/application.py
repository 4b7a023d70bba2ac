"""The aiohttp application, put together from its collaborators: one file an API family, each with an `add_routes`."""

from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from daemon.api import chat_completions, completions, messages, models, observing, openapi, responses, tokens
from daemon.api.auth import Authenticator
from daemon.api.connection_log import connection_log
from daemon.api.context import API, Api
from daemon.api.door import Door
from daemon.api.doorman import Doorman
from daemon.api.exposition import Exposition
from daemon.api.in_force import InForce
from daemon.api.meters import Meters
from daemon.api.preparing import Preparing, PromptBuilding
from daemon.api.rate_limits import Accounts
from daemon.api.speech import Speech
from daemon.core.model import AddedToken
from daemon.core.ports import Acquaintance, Serving, Tokenizing, TokenLedger, Watching
from daemon.core.settings import Settings

_THREADS = 2
_MIB = 2**20
_FAMILIES = (chat_completions, completions, responses, messages, tokens, models, observing, openapi)


@dataclass(frozen=True, slots=True)
class _Pools:
    """Threads of the application, gone when it is: `work` for parsing, rendering and compiling, `keys` for hashing."""

    work: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_THREADS, "exl3d-api"))
    keys: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "exl3d-keys"))

    async def lent(self, _: web.Application) -> AsyncIterator[None]:
        """A cleanup context of aiohttp."""
        yield
        for pool in (self.work, self.keys):
            pool.shutdown(wait=False, cancel_futures=True)


def build(
    *,
    serving: Serving,
    watching: Watching,
    tokenizing: Tokenizing,
    prompts: PromptBuilding,
    added: Sequence[AddedToken],
    settings: Settings,
    version: str,
    people: Acquaintance,
    ledger: TokenLedger,
) -> web.Application:
    """The application. Serve it with `runner`, which notices clients that hang up. `added` are the tokenizer's added tokens
    (`ModelDirectory.added`). Give new settings to `app[API].in_force.reload`.
    """
    limit = settings.server.max_body_mib * _MIB
    pools, meters, in_force = _Pools(), Meters(), InForce(settings)
    speech = Speech(prompts.tool_source, added, tokenizing, settings.answers)
    accounts = Accounts(people, ledger, in_force)
    doorman = Doorman(
        authenticator=Authenticator(people, pools.keys),
        acquaintance=people,
        accounts=accounts,
        meters=meters,
        in_force=in_force,
        open_path=observing.OPEN_PATHS.__contains__,
    )
    app = web.Application(middlewares=[_past(doorman)], client_max_size=limit)
    app[API] = Api(
        serving=serving,
        watching=watching,
        tokenizing=tokenizing,
        preparing=Preparing(prompts, tokenizing, speech, in_force, accounts, pools.work),
        in_force=in_force,
        accounts=accounts,
        door=Door(limit, pools.work),
        meters=meters,
        threads=pools.work,
        version=version,
    )
    app[observing.EXPOSITION] = Exposition(meters, watching)
    app[openapi.DOCUMENT] = openapi.document(version, keys=not people.current().open)
    for family in _FAMILIES:
        family.add_routes(app.router)
    app.cleanup_ctx.append(pools.lent)
    app.on_response_prepare.extend((doorman.prepare, messages.prepare))
    return app


def _past(doorman: Doorman) -> Middleware:
    """Every request passes the doorman."""

    @web.middleware
    async def door(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await doorman.handle(request, handler)

    return door


def runner(app: web.Application) -> web.AppRunner:
    """Serves `app` as it must be served: a handler is cancelled when its client hangs up, so that its request is too. Bodies are
    left as they come: aiohttp would unpack compressed ones on the loop, also those of clients without a key, and a megabyte that
    means a gigabyte holds everybody up for seconds.
    """
    return web.AppRunner(
        app, handler_cancellation=True, access_log=None, auto_decompress=False, logger=connection_log("exl3d.http")
    )
