"""Every error exl3d raises, in one tree. Errors carry facts; `api/errors.py` alone knows HTTP.

Exl3dError
├── RequestError                 the request is at fault or cannot be served; its text is shown to the person
│   ├── InvalidRequest           a field is wrong (names it)
│   │   ├── UnsupportedParameter  a known parameter that exl3d does not honour
│   │   ├── ContextTooLong       prompt and answer do not fit the model's context
│   │   ├── BadConstraint        a schema or grammar that does not compile
│   │   └── TemplateFailed       the chat template rejected these messages
│   ├── UnknownModel             no such model here
│   ├── Unauthorized             no key, or a wrong one
│   ├── Forbidden                the key is known but may not do this
│   ├── BodyTooLarge
│   ├── Overloaded               a queue is full; carries when to come back and whose limit it was
│   ├── QuotaExceeded            the person's tokens of today are used up; carries when the count begins anew
│   ├── NotReady                 no engine can serve now (starting, restarting, stopped)
│   ├── RequestTimeout           the deadline passed before the answer was complete
│   ├── ShuttingDown             the daemon stops; the stream was ended, or not begun
│   ├── PoisonousRequest         this request killed an engine while running alone
│   └── GenerationFailed         the engine gave up on this request alone
├── ConfigError                  the configuration or a model directory is at fault; the daemon ends with exit code 78
└── InvariantBroken              a bug of ours
    └── LinkCorrupt              a link carried something that is no message
"""

import math
from dataclasses import dataclass

from daemon.core.wire import FailureClass


class Exl3dError(Exception):
    """Root of the tree."""


class RequestError(Exl3dError):
    """A request that ends without an answer, for a reason the person can read."""


@dataclass(eq=False)
class InvalidRequest(RequestError):
    """A field of a request is wrong. `param` names it in the caller's own words, as in `messages[2].content`."""

    message: str
    param: str | None = None
    code: str | None = None

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class UnsupportedParameter(InvalidRequest):
    """A parameter other servers know and exl3d does not honour."""


@dataclass(eq=False)
class ContextTooLong(InvalidRequest):
    """Prompt and requested answer exceed the context. The wording is vLLM's, which clients parse to shrink a request."""

    message: str = ""
    limit: int = 0
    requested: int = 0
    prompt: int = 0

    def __str__(self) -> str:
        return (
            f"This model's maximum context length is {self.limit} tokens. However, you requested {self.requested} output tokens"
            f" and your prompt contains {self.prompt} input tokens, for a total of {self.prompt + self.requested} tokens."
            " Please reduce the length of the input prompt or the number of requested output tokens."
        )


@dataclass(eq=False)
class BadConstraint(InvalidRequest):
    """A schema, regular expression or grammar that cannot be compiled."""


@dataclass(eq=False)
class TemplateFailed(InvalidRequest):
    """The model's chat template refused these messages or took too long."""


@dataclass(eq=False)
class UnknownModel(RequestError):
    """The request names a model that is not served here."""

    model: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"The model `{self.model}` does not exist here. Models served: {', '.join(self.known)}."


@dataclass(eq=False)
class Unauthorized(RequestError):
    """No key was given, or one that is not known."""

    message: str = "This server needs an API key. Send it as `Authorization: Bearer KEY`."

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class Forbidden(RequestError):
    """The key is known, but its owner may not do this."""

    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class BodyTooLarge(RequestError):
    """The body exceeds `server.max_body_mib`."""

    limit: int
    """Bytes."""

    def __str__(self) -> str:
        return f"The request body is larger than {self.limit // 2**20} MiB, the limit of this server (server.max_body_mib)."


@dataclass(eq=False)
class Overloaded(RequestError):
    """A queue is full."""

    message: str
    retry_after: float
    """Seconds, estimated from measured rates where there are any."""
    own_limit: bool
    """True: the person's own limit (429). False: the server's (503)."""

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class QuotaExceeded(RequestError):
    """A person has no tokens left today, or too few for this prompt."""

    limit: int
    """Tokens a day."""
    left: int
    prompt: int
    """Tokens of the prompt that was refused; 0 where it was not read."""
    resets_in: float
    """Seconds until the count begins anew."""

    def __str__(self) -> str:
        hours, minutes = divmod(math.ceil(self.resets_in / 60), 60)
        if self.left:
            used = f"{self.left} of your {self.limit} tokens of today are left, too few for a prompt of {self.prompt}"
        else:
            used = f"Your {self.limit} tokens of today are used up"
        return f"{used}. The count begins anew at midnight UTC, in {hours} h {minutes} min."


@dataclass(eq=False)
class NotReady(RequestError):
    """No engine can take the request now."""

    message: str
    retry_after: float

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class RequestTimeout(RequestError):
    """The request's deadline, or the time an interrupted request may wait for its engine, has passed."""

    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class ShuttingDown(RequestError):
    """The daemon is stopping and the drain time is over."""

    message: str = "The server is shutting down and cannot complete this answer. Please try again in a moment."

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class PoisonousRequest(RequestError):
    """This very request has killed an engine while it was running alone."""

    message: str = "This request has crashed the engine while running alone and is refused. Change the prompt or its parameters."

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class GenerationFailed(RequestError):
    """The engine gave up on this request; other requests were not affected."""

    kind: FailureClass
    detail: str

    def __str__(self) -> str:
        return f"The engine could not go on with this request ({self.kind.value}): {self.detail}"


@dataclass(eq=False)
class ConfigError(Exl3dError):
    """Configuration, command line or model directory: what is wrong, where, and what to do about it."""

    message: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class InvariantBroken(Exl3dError):
    """Something that cannot happen happened."""


class LinkCorrupt(InvariantBroken):
    """A link carried bytes that are not a message."""
