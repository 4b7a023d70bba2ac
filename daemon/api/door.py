"""The door: bytes of a body become a checked struct here, or an error that names the field and what was expected of it.

1. The body is read up to the limit, and not unpacked. 2. It is decoded; NaN and infinity, which JSON does not know but Python
clients send, are refused by the name of their field. 3. `null` fields are dropped. 4. Known parameters that are not honoured are
refused, unknown ones warned about once. 5. The rest is converted, and range or type errors are worded from the struct itself.
Large bodies are decoded in a thread, so that nobody's stream waits for somebody's pasted book.
"""

import asyncio
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from typing import TypeVar, cast

import msgspec
from aiohttp import web

from daemon.api.expectations import expectation, integer_fields
from daemon.api.parameters import NO_EFFECT, REFUSED
from daemon.core.errors import BodyTooLarge, InvalidRequest, UnsupportedParameter

T = TypeVar("T", bound=msgspec.Struct)

PATIENCE_SECONDS = 30.0
"""How long a body may stop in its middle."""
_INLINE_BYTES = 64 * 1024
"""Bodies up to this size are decoded on the loop: a thread would cost more than the work."""
_MAX_WARNED = 1024
_NO_PACKING = frozenset({"", "identity"})
_SHOWN = 60
"""Most characters of a wrong number that an error repeats."""
_PATH = re.compile(r" - at `\$(?P<path>.*)`$", re.DOTALL)

_log = logging.getLogger(__name__)


class Door:
    """Reads bodies. One a daemon: it remembers which unknown parameters it has warned about."""

    def __init__(self, limit: int, threads: Executor, patience: float = PATIENCE_SECONDS) -> None:
        """`limit` is the largest body in bytes; `threads` decodes large ones; `patience` in seconds between two pieces."""
        self._limit = limit
        self._patience = patience
        self._threads = threads
        self._warned: set[str] = set()

    async def enter(self, request: web.Request, kind: type[T]) -> T:
        """The request's body as a `kind`. Raises InvalidRequest and BodyTooLarge."""
        raw = await self._read(request)
        if len(raw) <= _INLINE_BYTES:
            body, unknown = parse(raw, kind)
        else:
            body, unknown = await asyncio.get_running_loop().run_in_executor(self._threads, parse, raw, kind)
        for name in unknown:
            self._warn(name, request.path)
        return body

    async def _read(self, request: web.Request) -> bytes:
        packing = request.headers.get("Content-Encoding", "identity").strip().lower()
        if packing not in _NO_PACKING:
            raise InvalidRequest(f"The body is packed (Content-Encoding: {packing[:_SHOWN]}); send it as it is.")
        if (request.content_length or 0) > self._limit:
            raise BodyTooLarge(self._limit)
        body = bytearray()
        try:
            while piece := await self._piece(request):
                body += piece
                if len(body) > self._limit:
                    raise BodyTooLarge(self._limit)
        except web.RequestPayloadError as problem:
            raise InvalidRequest("The body could not be read: it does not keep to HTTP.") from problem
        except TimeoutError as problem:
            raise InvalidRequest(f"The body did not go on for {self._patience:.0f} s.") from problem
        return bytes(body)

    async def _piece(self, request: web.Request) -> bytes:
        """What has come of the body; empty at its end. Where a chunk is broken in its middle, aiohttp says nothing, ever."""
        async with asyncio.timeout(self._patience):
            return await request.content.readany()

    def _warn(self, name: str, path: str) -> None:
        if name in self._warned or len(self._warned) >= _MAX_WARNED:
            return
        self._warned.add(name)
        _log.warning("unknown parameter %r of %s is ignored (said once)", name[:80], path)


def parse(raw: bytes, kind: type[T]) -> tuple[T, list[str]]:
    """A body as `kind`, and the names in it that nobody knows. Raises InvalidRequest. Pure."""
    fields = decode(raw, kind)
    given = {name: value for name, value in fields.items() if value is not None}
    known = kind.__struct_fields__
    strangers = [name for name in given if name not in known]
    for name in strangers:
        _refuse(name, given[name])
    unknown = [name for name in strangers if name not in REFUSED and name not in NO_EFFECT]
    return _convert(given, kind), unknown


def decode(raw: bytes, kind: type[msgspec.Struct]) -> dict[str, object]:
    """A JSON object; `kind` is asked for the range of a number that is none. Raises InvalidRequest."""
    try:
        decoded: object = msgspec.json.decode(raw)
    except RecursionError as problem:
        raise InvalidRequest("The body is nested too deeply.") from problem
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        _refuse_not_finite(raw, kind)
        raise InvalidRequest(f"The body is not valid JSON: {str(problem).removeprefix('JSON is malformed: ')}.") from problem
    if not isinstance(decoded, dict):
        raise InvalidRequest(f"The body must be a JSON object, not {_kind_of(decoded)}.")
    return cast("dict[str, object]", decoded)


def _convert(given: dict[str, object], kind: type[T]) -> T:
    for name in integer_fields(kind):
        value = given.get(name)
        if isinstance(value, float) and value.is_integer():
            given[name] = int(value)
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as problem:
        raise _worded(problem, given, kind) from problem


def _worded(problem: msgspec.ValidationError, given: Mapping[str, object], kind: type[msgspec.Struct]) -> InvalidRequest:
    text = str(problem)
    missing = re.match(r"Object missing required field `(?P<name>[^`]+)`$", text)
    if missing:
        name = missing["name"]
        return InvalidRequest(f"`{name}` is required: {expectation(kind, name)}.", name, "missing_required_parameter")
    found = _PATH.search(text)
    path = found["path"].lstrip(".") if found else ""
    name = re.split(r"[.\[]", path, maxsplit=1)[0]
    if name not in given:
        return InvalidRequest(text)
    param = path.replace("[...]", "")
    told = text[: found.start()] if found else text
    wanted = expectation(kind, name)
    if param == name and (not isinstance(given[name], dict | list) or not given[name]):
        return InvalidRequest(f"`{param}` is {_shown(given[name])}; expected {wanted}.", param, "invalid_value")
    return InvalidRequest(f"`{param}`: {told[0].lower()}{told[1:]}. `{name}` must be {wanted}.", param, "invalid_value")


def _refuse(name: str, value: object) -> None:
    refusal = REFUSED.get(name)
    if refusal is None or any(_same(value, usual) for usual in refusal.neutral):
        return
    raise UnsupportedParameter(f"`{name}` is not supported: {refusal.reason}.", name)


def _same(value: object, usual: object) -> bool:
    """Equality as JSON has it: 1 and 1.0 are one number, and true is none."""
    return value == usual and isinstance(value, bool) == isinstance(usual, bool)


def _refuse_not_finite(raw: bytes, kind: type[msgspec.Struct]) -> None:
    """Name the field if all that is wrong with the body is a NaN, an infinity, or a number of more digits than can be read."""
    try:
        lenient: object = json.loads(raw, parse_int=float)
    except (ValueError, RecursionError):
        return
    for path, value in _numbers(lenient, ""):
        if not math.isfinite(value):
            wanted = expectation(kind, path) if path in kind.__struct_fields__ else "a finite number"
            raise InvalidRequest(f"`{path}` is {value}; expected {wanted}.", path or None, "invalid_value")


def _numbers(value: object, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, dict):
        for name, inner in cast("dict[str, object]", value).items():
            yield from _numbers(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, inner in enumerate(cast("list[object]", value)):
            yield from _numbers(inner, f"{path}[{index}]")


def _kind_of(value: object) -> str:
    return "an empty array" if value == [] else _KINDS.get(type(value), "an object")


_KINDS: Mapping[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "an array",
    type(None): "null",
}


def _shown(value: object) -> str:
    """A wrong value as it may be shown: short, and never the text of a prompt."""
    if isinstance(value, bool | int | float):
        text = json.dumps(value)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return "empty" if value == "" else _kind_of(value)
