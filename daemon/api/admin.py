"""The admin application, served on a UNIX socket that only the daemon's own user can open: what `exl3ctl` asks and commands.

`GET /status`, `/top`, `/health` and `/incidents` tell; `POST /restart`, `/drain`, `/resume` and `/reload` do. Every answer is a
value of `core` as JSON; a command that could not be carried out is answered with 409, since the question itself was good.
"""

from http import HTTPStatus

import msgspec
from aiohttp import web

from daemon.core.incidents import Incidents
from daemon.core.operating import Operating, Outcome
from daemon.core.ports import Health, Watching

WATCHING = web.AppKey("watching", Watching)
OPERATING = web.AppKey("operating", Operating)
INCIDENTS = web.AppKey("incidents", Incidents)
DEFAULT_INCIDENTS = 50
MOST_INCIDENTS = 10_000
_DIGITS = 9


def build_admin(watching: Watching, operating: Operating, incidents: Incidents) -> web.Application:
    """The application. It asks for no keys: the socket's permissions decide."""
    app = web.Application()
    app[WATCHING] = watching
    app[OPERATING] = operating
    app[INCIDENTS] = incidents
    app.router.add_get("/status", status)
    app.router.add_get("/top", top)
    app.router.add_get("/health", health)
    app.router.add_get("/incidents", recent_incidents)
    app.router.add_post("/restart", restart)
    app.router.add_post("/drain", drain)
    app.router.add_post("/resume", resume)
    app.router.add_post("/reload", reload)
    return app


async def status(request: web.Request) -> web.Response:
    """`core.ports.Status`."""
    return _json(request.app[WATCHING].status())


async def top(request: web.Request) -> web.Response:
    """`core.ports.Overview`."""
    return _json(request.app[WATCHING].overview())


async def health(request: web.Request) -> web.Response:
    """`core.ports.Health`: of readiness, or of `?depth=live` or `?depth=deep`; always 200, since the question was answered."""
    watching = request.app[WATCHING]
    match request.query.get("depth", "ready"):
        case "live":
            return _json(Health(ok=True, reason="the daemon answers"))
        case "ready":
            return _json(watching.ready())
        case "deep":
            return _json(await watching.deep())
        case _:
            return _refused("depth is live, ready or deep")


async def recent_incidents(request: web.Request) -> web.Response:
    """The newest `?limit=` `core.incidents.IncidentRecord`s, newest first."""
    limit = _number(request.query.get("limit", str(DEFAULT_INCIDENTS)))
    if limit is None or not 0 < limit <= MOST_INCIDENTS:
        return _refused(f"limit is a number from 1 to {MOST_INCIDENTS}")
    return _json(await request.app[INCIDENTS].recent(limit))


async def restart(request: web.Request) -> web.Response:
    """Replace the engines, or the one of `?engine=`; `core.operating.Outcome`."""
    given = request.query.get("engine")
    engine = None if given is None else _number(given)
    if given is not None and engine is None:
        return _refused("engine is a number, as status shows it")
    return _outcome(request.app[OPERATING].restart_engines(engine))


async def drain(request: web.Request) -> web.Response:
    """Close the intake; `core.operating.Outcome`."""
    return _outcome(request.app[OPERATING].drain())


async def resume(request: web.Request) -> web.Response:
    """Open the intake; `core.operating.Outcome`."""
    return _outcome(request.app[OPERATING].resume())


async def reload(request: web.Request) -> web.Response:
    """Read the configuration again; `core.operating.Reloaded`, with 409 for a bad one."""
    reloaded = await request.app[OPERATING].reload()
    return _json(reloaded, HTTPStatus.CONFLICT if reloaded.problem else HTTPStatus.OK)


def _number(text: str) -> int | None:
    """A number in a query; None for anything else, and for more digits than any number has that is asked for here."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None


def _outcome(outcome: Outcome) -> web.Response:
    return _json(outcome, HTTPStatus.OK if outcome.done else HTTPStatus.CONFLICT)


def _refused(words: str) -> web.Response:
    return _json(Outcome(done=False, words=words), HTTPStatus.BAD_REQUEST)


def _json(value: object, code: HTTPStatus = HTTPStatus.OK) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=code, content_type="application/json")
