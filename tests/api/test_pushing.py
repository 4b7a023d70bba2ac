"""Pushing events into a connection: what goes over the wire, and when the reader's pace counts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from daemon.api.sse import EventStream
from tests.api.conftest import Connect

Tell = Callable[[EventStream], Awaitable[None]]
Raw = tuple[asyncio.StreamReader, asyncio.StreamWriter]
BIG = b"x" * 65536


@pytest.fixture
async def dial(connect: Connect) -> AsyncIterator[Callable[[Tell, bytes], Awaitable[Raw]]]:
    """Opens a bare connection to a server whose only answer is an event stream, and asks for it."""
    opened: list[asyncio.StreamWriter] = []

    async def ask(tell: Tell, version: bytes) -> Raw:
        async def answer(request: web.Request) -> web.StreamResponse:
            async with EventStream(request, {}, 60.0) as out:
                await tell(out)
            return out.response

        app = web.Application()
        app.router.add_get("/", answer)
        address = (await connect(app)).make_url("/")
        reader, writer = await asyncio.open_connection(address.host, address.port)
        opened.append(writer)
        writer.write(b"GET / HTTP/" + version + b"\r\nHost: x\r\n\r\n")
        return reader, writer

    yield ask
    for writer in opened:
        writer.close()
        await writer.wait_closed()


async def body(reader: asyncio.StreamReader, end: bytes) -> bytes:
    """What comes behind the headers, up to `end`."""
    await reader.readuntil(b"\r\n\r\n")
    return await asyncio.wait_for(reader.readuntil(end), 60)


async def test_pushed_events_are_chunks_like_those_sent(dial: Callable[[Tell, bytes], Awaitable[Raw]]) -> None:
    async def tell(out: EventStream) -> None:
        assert not out.push(b"too early")
        await out.send(b"one")
        assert out.push(b"sixteen bytes ..")
        await out.send(b"three")

    reader, _ = await dial(tell, b"1.1")
    assert await body(reader, b"0\r\n\r\n") == b"3\r\none\r\n10\r\nsixteen bytes ..\r\n5\r\nthree\r\n0\r\n\r\n"


async def test_client_of_http_1_0_gets_no_chunks(dial: Callable[[Tell, bytes], Awaitable[Raw]]) -> None:
    async def tell(out: EventStream) -> None:
        await out.send(b"one ")
        assert not out.push(b"never")
        await out.send(b"two.")

    reader, _ = await dial(tell, b"1.0")
    await reader.readuntil(b"\r\n\r\n")
    assert await asyncio.wait_for(reader.read(), 60) == b"one two."


async def test_lagging_reader_is_pushed_to_again_once_it_reads(dial: Callable[[Tell, bytes], Awaitable[Raw]]) -> None:
    """Pushing stops at a bounded number of bytes, and sending waits until they are read."""
    lagging = asyncio.Event()
    pushed = 0

    async def tell(out: EventStream) -> None:
        nonlocal pushed
        await out.send(b"begin")
        while out.push(BIG):
            pushed += 1
            assert pushed < 1000
        sending = asyncio.create_task(out.send(BIG))
        await asyncio.sleep(0)
        assert not sending.done()
        lagging.set()
        await sending
        assert out.push(b"the end")

    reader, _ = await dial(tell, b"1.1")
    await asyncio.wait_for(lagging.wait(), 60)
    whole = await _read_all(reader)
    assert whole.count(BIG) == pushed + 1
    assert whole.endswith(b"7\r\nthe end\r\n0\r\n\r\n")


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    read = b""
    async with asyncio.timeout(60):
        while not read.endswith(b"\r\n0\r\n\r\n"):
            read += await reader.read(1 << 20)
    return read


async def test_nothing_is_pushed_behind_the_end(
    dial: Callable[[Tell, bytes], Awaitable[Raw]],
) -> None:
    streams: list[EventStream] = []

    async def tell(out: EventStream) -> None:
        streams.append(out)
        await out.send(b"all")

    reader, _ = await dial(tell, b"1.1")
    assert await body(reader, b"0\r\n\r\n") == b"3\r\nall\r\n0\r\n\r\n"
    assert not streams[0].push(b"late")


async def test_last_events_and_the_end_go_out_together_and_nothing_follows(
    dial: Callable[[Tell, bytes], Awaitable[Raw]],
) -> None:
    streams: list[EventStream] = []

    async def tell(out: EventStream) -> None:
        streams.append(out)
        await out.send(b"one")
        await out.end(b"two")
        assert not out.push(b"late")

    reader, _ = await dial(tell, b"1.1")
    assert await body(reader, b"0\r\n\r\n") == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    assert not streams[0].push(b"late")


async def test_reader_that_never_takes_the_end_is_cut_off(connect: Connect) -> None:
    """The writing stops with an error instead of waiting for good."""
    ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            async with EventStream(request, {}, 60.0, stall=0.05) as out:
                await out.send(b"begin")
                while out.push(BIG):
                    pass
                await out.end(BIG)
        except (ConnectionResetError, asyncio.CancelledError) as problem:
            ended.set_result(problem)
            raise
        return out.response

    app = web.Application()
    app.router.add_get("/", answer)
    address = (await connect(app)).make_url("/")
    _, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert isinstance(await asyncio.wait_for(ended, 60), ConnectionResetError | asyncio.CancelledError)
    writer.transport.abort()
