"""What the bodies and chunks of one answer share, in OpenAI's families."""

import time
from dataclasses import dataclass, field

import msgspec

from daemon.api.schemas import Generation
from daemon.api.usage import Timings, usage_body
from daemon.core.errors import InvalidRequest
from daemon.core.events import Ended, Usage
from daemon.core.ports import Tokenizing


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


def usage_chunk(facts: ReplyFacts, kind: str, usage: Usage, timings: Timings) -> bytes:
    """The chunk that `include_usage` asks for: the last one, without choices. `kind` is its `object`."""
    head: dict[str, object] = {"id": facts.id, "object": kind, "created": facts.created, "model": facts.model, "choices": []}
    return b"data: " + msgspec.json.encode({**head, "usage": usage_body(usage), "timings": timings}) + b"\n\n"


def stop_reason(ended: Ended, eos: tuple[int, ...]) -> str | int | None:
    """The stop string or stop id of the request that ended an answer; None for the model's own end."""
    return None if ended.stop in eos else ended.stop
