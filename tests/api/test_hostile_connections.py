"""Bytes that are no HTTP, packed bodies and endless stop strings cost their sender's connection, and nobody else anything."""

import asyncio
import gzip
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from daemon.api.door import Door
from daemon.api.sampling import MAX_STOP_CHARACTERS
from daemon.api.schemas import CompletionBody
from daemon.core.errors import InvalidRequest
from tests.api.conftest import Client, Connect
from tests.api.fakes import FakeServing, application
from tests.api.reading import CHAT, error_of

PATH = "/v1/chat/completions"
SECRET = "exl3d-0123-very-secret"


async def connection(url: URL) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A plain connection to a test's server."""
    return await asyncio.open_connection(url.host, url.port)


async def said_to(client: Client, sent: bytes) -> bytes:
    """What the server answers to raw bytes, until it closes the connection."""
    reader, writer = await connection(client.make_url("/"))
    writer.write(sent)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    "sent",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + SECRET.encode() + b"\x0b\r\n\r\n",
        b"GET /" + SECRET.encode() * 1000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nabc\r\n",
    ],
    ids=["http2", "bad header", "long path", "negative length", "bad chunk"],
)
async def test_bytes_that_are_no_http_are_400_and_one_line_that_quotes_nothing(
    connect: Connect, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    client = await connect(application())
    with caplog.at_level(logging.INFO):
        answer = await said_to(client, sent)
    assert answer.startswith(b"HTTP/1.0 400 ")
    (record,) = [record for record in caplog.records if record.name == "exl3d.http"]
    assert record.levelno == logging.INFO
    assert record.getMessage().startswith("refused what is no HTTP (")
    assert "Traceback" not in caplog.text
    assert SECRET not in caplog.text


async def test_tls_on_the_plain_port_is_told_so(connect: Connect) -> None:
    hello = b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(160)
    assert b"HTTPS" in await said_to(await connect(application()), hello)


async def test_body_that_stops_in_its_middle_is_not_waited_for_for_ever() -> None:
    """Nor is one with a broken chunk, of whose end aiohttp never tells."""

    async def enter(request: web.Request) -> web.Response:
        with ThreadPoolExecutor(1) as threads, pytest.raises(InvalidRequest) as refused:
            await Door(1024, threads, patience=0.05).enter(request, CompletionBody)
        return web.Response(text=str(refused.value))

    app = web.Application()
    app.router.add_post("/", enter)
    async with TestServer(app) as server:
        reader, writer = await connection(server.make_url("/"))
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        assert b"The body did not go on" in await reader.readuntil(b"did not go on")
        writer.close()


@pytest.mark.parametrize("packing", ["gzip", "br", "zstd", "deflate", "foo"])
async def test_packed_body_is_refused_by_name_and_not_unpacked(connect: Connect, packing: str) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    body = gzip.compress(b'{"messages": [{"role": "user", "content": "hi"}]}')
    response = await client.post(PATH, data=body, headers={"Content-Encoding": packing, "Content-Type": "application/json"})
    assert response.status == 400
    assert packing in (await error_of(response))["message"]
    assert serving.requests == []


async def test_body_that_says_it_is_not_packed_is_read(connect: Connect) -> None:
    client = await connect(application())
    assert (await client.post(PATH, json=CHAT, headers={"Content-Encoding": "identity"})).status == 200


async def test_stop_strings_are_bounded_together(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    half = MAX_STOP_CHARACTERS // 2
    assert (await client.post(PATH, json={**CHAT, "stop": ["a" * half, "b" * half]})).status == 200
    response = await client.post(PATH, json={**CHAT, "stop": ["a" * half, "b" * half, "c"]})
    assert response.status == 400
    error = await error_of(response)
    assert error["param"] == "stop"
    assert str(MAX_STOP_CHARACTERS) in error["message"]
    assert len(serving.requests) == 1
