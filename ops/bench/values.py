"""What is asked of a server, and what was seen of one request."""

from dataclasses import dataclass
from enum import Enum


class Endpoint(Enum):
    """Which of OpenAI's two ways to generate."""

    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True)
class Target:
    """A server and the model on it."""

    base_url: str
    """Up to and including `/v1`."""
    model: str
    key: str | None = None
    endpoint: Endpoint = Endpoint.CHAT


@dataclass(frozen=True, slots=True)
class Load:
    """What one level of a ladder sends."""

    streams: int
    """Requests under way at any time."""
    requests: int
    """Requests in all."""
    tokens: int
    """`max_tokens` of each."""
    prompt_tokens: int
    """About how long each prompt is; the server's own count is reported."""
    ignore_eos: bool = True
    """Ask for all `tokens`, whatever the model says. Servers that do not know the parameter may answer less."""
    shared_prompt: bool = False
    """Send the same prompt each time, so that a prefix cache can show itself."""
    temperature: float | None = None
    """None: whatever the server does by default."""
    seed: int = 0
    """Prompts differ from run to run with it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as its client saw it. Times are seconds of one monotonic clock."""

    sent: float
    first: float | None
    """When the first text came; None where none did."""
    last: float
    """When the last text came."""
    gaps: tuple[float, ...]
    """Seconds between one text event and the next."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    problem: str | None = None
    """Why the request failed; the figures are then of no use."""
