"""Fixtures of the API tests: a client on the real application over fakes, with blocking calls on the loop forbidden."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web_runner import BaseRunner
from blockbuster import BlockBuster, blockbuster_ctx

from daemon.api.application import runner

Client = TestClient[web.Request, web.Application]
Connect = Callable[[web.Application], Awaitable[Client]]


class _Server(TestServer):
    """Runs the application as the daemon does."""

    async def _make_runner(self, **_: object) -> BaseRunner:
        return runner(self.app)


@pytest.fixture(autouse=True)
def no_blocking() -> Iterator[BlockBuster]:
    """A blocking call on the event loop fails the test."""
    with blockbuster_ctx(scanned_modules=["daemon"]) as blocked:
        yield blocked


@asynccontextmanager
async def on_a_port(app: web.Application) -> AsyncGenerator[str]:
    """An application on a port of its own, served as the daemon serves it, for clients that are no part of the test; its URL."""
    served = runner(app)
    await served.setup()
    try:
        await web.TCPSite(served, "127.0.0.1", 0).start()
        host, port = served.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await served.cleanup()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes clients for applications, served as the daemon serves them."""
    clients: list[Client] = []

    async def make(app: web.Application) -> Client:
        client = TestClient(_Server(app))
        await client.start_server()
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.close()
