"""The admin application, served on a UNIX socket that only the daemon's own user can open: `GET /status` for `exl3ctl`."""

import msgspec
from aiohttp import web

from daemon.core.ports import Watching

WATCHING = web.AppKey("watching", Watching)


def build_admin(watching: Watching) -> web.Application:
    """The application. It asks for no keys: the socket's permissions decide."""
    app = web.Application()
    app[WATCHING] = watching
    app.router.add_get("/status", status)
    app.router.add_get("/health", health)
    return app


async def status(request: web.Request) -> web.Response:
    """`core.ports.Status` as JSON."""
    body = msgspec.json.encode(request.app[WATCHING].status())
    return web.Response(body=body, content_type="application/json")


async def health(request: web.Request) -> web.Response:
    """`core.ports.Health` of readiness as JSON; always 200, since the question was answered."""
    body = msgspec.json.encode(request.app[WATCHING].ready())
    return web.Response(body=body, content_type="application/json")
