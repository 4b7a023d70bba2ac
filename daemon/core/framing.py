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
        self._rest = bytearray()
        """The beginning of a message."""

    def feed(self, data: bytes) -> list[M]:
        """The messages completed by `data`, in order. Raises LinkCorrupt."""
        rest = self._rest
        if rest:
            rest += data
            if not _begins_whole(rest):
                return []
            data = bytes(rest)
            rest.clear()
        messages: list[M] = []
        view = memoryview(data)
        while _begins_whole(view):
            end = _LENGTH.size + _LENGTH.unpack_from(view)[0]
            messages.append(self._decode(view[_LENGTH.size : end]))
            view = view[end:]
        rest += view
        return messages

    def _decode(self, body: memoryview) -> M:
        try:
            return self._decoder.decode(body)
        except msgspec.DecodeError as problem:
            raise LinkCorrupt(f"a frame of {len(body)} bytes is not a message: {problem}") from problem


def _begins_whole(data: bytearray | memoryview) -> bool:
    """Whether a whole frame stands at the beginning. Raises LinkCorrupt."""
    if len(data) < _LENGTH.size:
        return False
    (length,) = _LENGTH.unpack_from(data)
    if length > MAX_FRAME:
        raise LinkCorrupt(f"a frame of {length} bytes was announced; the limit is {MAX_FRAME}")
    return len(data) >= _LENGTH.size + length


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
