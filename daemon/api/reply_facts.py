"""What the bodies and chunks of one answer share, in OpenAI's families."""

import time
from dataclasses import dataclass, field

import msgspec

from daemon.api.schemas import Generation
from daemon.api.usage import Timings, usage_body
from daemon.api.watch import Watch
from daemon.core.errors import InvalidRequest
from daemon.core.events import Ended, Usage
from daemon.core.ports import Tokenizing

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class ReplyFacts:
    """Who answers whom, and when."""

    id: str
    model: str
    eos: tuple[int, ...]
    """The model's own stop ids, which are not worth telling."""
    tokens: Tokenizing
    created: int = field(default_factory=lambda: int(time.time()))


@dataclass(frozen=True, slots=True)
class StreamStyle:
    """What `stream_options` asks for."""

    include_usage: bool = False
    continuous_usage: bool = False


def style_of(body: Generation) -> StreamStyle:
    """What `stream_options` asks for. Raises InvalidRequest where there is no stream to have them."""
    options = body.stream_options
    if options is None:
        return StreamStyle()
    if not body.stream:
        raise InvalidRequest("`stream_options` needs `stream` to be true.", "stream_options")
    return StreamStyle(options.include_usage or False, options.continuous_usage_stats or False)


class Wrapping:
    """What stands around the text in the chunks of one choice: bytes that are prepared once a stream. `kind` is the chunks'
    `object`.
    """

    __slots__ = ("_close", "_continuous", "_eos", "_watch", "head")

    def __init__(self, facts: ReplyFacts, kind: str, index: int, watch: Watch, style: StreamStyle) -> None:
        head = {"id": facts.id, "object": kind, "created": facts.created, "model": facts.model}
        self.head = b"data: " + _encode(head)[:-1] + b',"choices":[{"index":%d,' % index
        """All up to the choice's own fields."""
        self._close = b',"usage":null}\n\n' if style.include_usage else b"}\n\n"
        self._continuous = style.continuous_usage
        self._watch = watch
        self._eos = facts.eos

    @property
    def constant(self) -> bytes | None:
        """All behind the choices, where it is the same in every chunk."""
        return None if self._continuous else self._close

    def close(self) -> bytes:
        """All behind the choices."""
        if not self._continuous:
            return self._close
        return b',"usage":' + _encode(usage_body(self._watch.so_far())) + b"}\n\n"

    def last(self, ended: Ended, finish_reason: str, logprobs: msgspec.Struct | None) -> bytes:
        """All behind the text or delta of the chunk that ends the choice."""
        tail: dict[str, object] = {"logprobs": logprobs, "finish_reason": finish_reason}
        stop = stop_reason(ended, self._eos)
        if stop is not None:
            tail["stop_reason"] = stop
        if ended.detail is not None:
            tail["stop_detail"] = ended.detail
        return b"," + _encode(tail)[1:] + b"]" + self.close()


def usage_chunk(facts: ReplyFacts, kind: str, usage: Usage, timings: Timings) -> bytes:
    """The chunk that `include_usage` asks for: the last one, without choices. `kind` is its `object`."""
    head: dict[str, object] = {"id": facts.id, "object": kind, "created": facts.created, "model": facts.model, "choices": []}
    return b"data: " + _encode({**head, "usage": usage_body(usage), "timings": timings}) + b"\n\n"


def stop_reason(ended: Ended, eos: tuple[int, ...]) -> str | int | None:
    """The stop string or stop id of the request that ended an answer; None for the model's own end."""
    return None if ended.stop in eos else ended.stop
