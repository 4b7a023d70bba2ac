"""Length-prefixed msgpack frames for the link. Pure: bytes in, messages out.

A frame is a little-endian unsigned 32-bit length, then that many bytes of msgpack. A stream that breaks the rule is a
broken invariant of ours, not of a client, so it raises `LinkCorrupt`.
"""

import struct
from typing import Generic, TypeVar

import msgspec

from daemon.core.errors import LinkCorrupt
from daemon.core.wire import Command, Report

MAX_FRAME = 256 * 1024 * 1024
"""Bytes; above any prompt with images that the API accepts. A larger length can only be garbage."""

_LENGTH = struct.Struct("<I")

M = TypeVar("M")


class FrameReader(Generic[M]):
    """Collects bytes as they come and gives whole messages of the wire union `kind`."""

    def __init__(self, kind: type[M]) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """The messages completed by `data`, in order. Raises LinkCorrupt."""
        buffer = self._buffer
        buffer += data
        messages: list[M] = []
        offset = 0
        while len(buffer) - offset >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, offset)
            if length > MAX_FRAME:
                raise LinkCorrupt(f"a frame of {length} bytes was announced; the limit is {MAX_FRAME}")
            end = offset + _LENGTH.size + length
            if len(buffer) < end:
                break
            messages.append(self._decode(bytes(buffer[offset + _LENGTH.size : end])))
            offset = end
        del buffer[:offset]
        return messages

    def _decode(self, body: bytes) -> M:
        try:
            return self._decoder.decode(body)
        except msgspec.DecodeError as problem:
            raise LinkCorrupt(f"a frame of {len(body)} bytes is not a message: {problem}") from problem


def command_reader() -> FrameReader[Command]:
    """For the engine's end of a link."""
    return FrameReader[Command](Command)  # pyright: ignore[reportArgumentType]  # msgspec takes unions, `type` does not


def report_reader() -> FrameReader[Report]:
    """For the front's end of a link."""
    return FrameReader[Report](Report)  # pyright: ignore[reportArgumentType]  # msgspec takes unions, `type` does not


_ENCODER = msgspec.msgpack.Encoder()


def frame(message: Command | Report) -> bytes:
    """One message as it goes over the link."""
    body = _ENCODER.encode(message)
    return _LENGTH.pack(len(body)) + body
