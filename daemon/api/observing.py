"""`/health…`, `/metrics` and `/version`: answered in milliseconds from what is known, whatever the engine does."""

from http import HTTPStatus

import msgspec
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from daemon.api.context import API
from daemon.api.exposition import Exposition
from daemon.core.ports import Health

EXPOSITION = web.AppKey("exposition", Exposition)
OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/health/deep", "/version"})
"""Paths that need no key."""
_RETRY = "1"


def add_routes(router: web.UrlDispatcher) -> None:
    """Put the family's paths on a router."""
    router.add_get("/health", ready)
    router.add_get("/health/ready", ready)
    router.add_get("/health/live", live)
    router.add_get("/health/deep", deep)
    router.add_get("/metrics", metrics)
    router.add_get("/version", version)


async def live(request: web.Request) -> web.Response:
    """Whoever can answer is alive."""
    del request
    return _told(Health(ok=True, reason="the front process answers"))


async def ready(request: web.Request) -> web.Response:
    """Whether requests are accepted and the engine makes progress."""
    return _told(request.app[API].watching.ready())


async def deep(request: web.Request) -> web.Response:
    """Whether a token was produced lately."""
    return _told(await request.app[API].watching.deep())


async def metrics(request: web.Request) -> web.Response:
    """Prometheus text."""
    body = await request.app[EXPOSITION].text()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def version(request: web.Request) -> web.Response:
    """The daemon's version, as vLLM has it."""
    return web.Response(body=msgspec.json.encode({"version": request.app[API].version}), content_type="application/json")


def _told(health: Health) -> web.Response:
    body = msgspec.json.encode({"status": "ok" if health.ok else "unavailable", "reason": health.reason})
    if health.ok:
        return web.Response(body=body, content_type="application/json")
    return web.Response(
        body=body, content_type="application/json", status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": _RETRY}
    )
