"""Records of the kernel log as journalctl and /dev/kmsg write them, taken apart. Any bytes are allowed; none raise."""

import re
from dataclasses import dataclass

import msgspec

LONGEST_RECORD = 1 << 20
"""Bytes of a line that are read at all."""
LONGEST_TEXT = 4096
"""Characters of a message that are kept: no rule looks further."""

_BYTE = 255
_DIGITS = 18
"""Of a number that fits 64 bits."""


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One message."""

    text: str
    t: float | None
    """When it was logged, in seconds of CLOCK_MONOTONIC."""
    cursor: str | None
    """Its place in the journal."""
    kernels_own: bool
    """Whether the kernel printed it, and not a program that wrote to /dev/kmsg: the kernel gives no program facility 0."""


class _Entry(msgspec.Struct, frozen=True):
    cursor: str = msgspec.field(default="", name="__CURSOR")
    monotonic: str = msgspec.field(default="", name="__MONOTONIC_TIMESTAMP")
    transport: str = msgspec.field(default="", name="_TRANSPORT")
    facility: str = msgspec.field(default="", name="SYSLOG_FACILITY")
    message: str | list[int | str] | None = msgspec.field(default=None, name="MESSAGE")
    """Bytes where it is not UTF-8, several where the field stands several times, null where it is too long for journalctl."""


_ENTRY = msgspec.json.Decoder(_Entry)


def _clean(text: str) -> str:
    return text[:LONGEST_TEXT].replace("\0", "").strip()


def _message(message: str | list[int | str] | None) -> str:
    match message:
        case None:
            return ""
        case str():
            return message
        case list():
            data = bytes(part for part in message if isinstance(part, int) and 0 <= part <= _BYTE)
            words = [part for part in message if isinstance(part, str)]
            return words[0] if words else data.decode(errors="replace")


def _seconds(microseconds: str) -> float | None:
    sane = microseconds.isascii() and microseconds.isdecimal() and len(microseconds) <= _DIGITS
    return int(microseconds) / 1e6 if sane else None


def journal_record(line: bytes) -> KernelRecord | None:
    """A line of `journalctl --output=json`; None for anything that is no message from the kernel's transport."""
    try:
        entry = _ENTRY.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if entry.transport != "kernel":
        return None
    text = _clean(_message(entry.message))
    return KernelRecord(text, _seconds(entry.monotonic), entry.cursor or None, entry.facility == "0" and bool(text))


_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_KMSG = re.compile(rb"(?P<priority>\d{1,10}),\d{1,20},(?P<microseconds>\d{1,18}),[^;\n]{0,100};(?P<text>[^\n]*)")


def kmsg_record(data: bytes) -> KernelRecord | None:
    """A record of /dev/kmsg: `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT`, then lines that describe the device."""
    found = _KMSG.match(data)
    if found is None:
        return None
    raw = _ESCAPED.sub(lambda escape: bytes((int(escape[1], 16),)), found["text"])
    text = _clean(raw.decode(errors="replace"))
    facility = int(found["priority"]) >> 3
    return KernelRecord(text, int(found["microseconds"]) / 1e6, None, facility == 0 and bool(text))


class LineSplitter:
    """Lines out of a stream of bytes. A line longer than `longest` is dropped, however long it gets."""

    def __init__(self, longest: int = LONGEST_RECORD) -> None:
        self._longest = longest
        self._rest = b""
        self._dropping = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete with `data`."""
        *lines, rest = (self._rest + data).split(b"\n")
        if lines and self._dropping:
            lines, self._dropping = lines[1:], False
        if len(rest) > self._longest:
            rest, self._dropping = b"", True
        self._rest = b"" if self._dropping else rest
        return [line for line in lines if len(line) <= self._longest]
