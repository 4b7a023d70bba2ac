"""Logging: how lines look, and the one line every request gets. Prompts and answers are never logged."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from daemon.core.settings import LogFormat, LogSettings, Settings

_requests = logging.getLogger("exl3d.request")


class RequestSummary(msgspec.Struct, frozen=True):
    """What is remembered of a request when it has ended. Times in seconds; None where it never came so far."""

    owner: str
    name: str
    outcome: str
    """stop, length, cancelled, stalled, or the class of the error."""
    prompt: int
    cached: int
    completion: int
    queued: float | None
    first_token: float | None
    """From acceptance to the first token."""
    rate: float | None
    """Tokens a second after the first one."""
    total: float
    attempts: int
    """Times it was given to an engine: once, and again after each time it was set aside or lost its engine."""
    request_id: str = ""
    """The `x-request-id` of its HTTP request."""


def log_request(summary: RequestSummary) -> None:
    """The canonical line of a request."""
    if not _requests.isEnabledFor(logging.INFO):
        return
    _requests.info(
        "%s of %s: %s, in %d (%d cached) out %d, queue %s, first token %s, rate %s, total %s%s%s",
        summary.name,
        summary.owner,
        summary.outcome,
        summary.prompt,
        summary.cached,
        summary.completion,
        _seconds(summary.queued),
        _seconds(summary.first_token),
        "-" if summary.rate is None else f"{summary.rate:.1f}/s",
        _seconds(summary.total),
        f", begun {summary.attempts} times" if summary.attempts > 1 else "",
        f", id {summary.request_id}" if summary.request_id else "",
        extra={"request": msgspec.structs.asdict(summary)},
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


class _TextFormatter(logging.Formatter):
    """`time level logger: message`; no time where the journal adds its own."""

    def __init__(self, *, timed: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s" if timed else "%(levelname)-7s %(message)s")
        self.default_msec_format = "%s.%03d"


class _JsonFormatter(logging.Formatter):
    """One JSON object a line; a request's line carries its fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request: object = getattr(record, "request", None)
        if request is not None:
            line["request"] = request
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up_logging(settings: LogSettings, stream: TextIO | None = None, *, journal: bool = False) -> None:
    """Send everything to `stream` (stderr by default). `journal`: lines go to systemd's journal, which keeps the time."""
    handler = logging.StreamHandler(stream or sys.stderr)
    match settings.format:
        case LogFormat.TEXT:
            handler.setFormatter(_TextFormatter(timed=not journal))
        case LogFormat.JSON:
            handler.setFormatter(_JsonFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(settings.level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


class Logging:
    """The log as a part that can be reloaded."""

    def __init__(self, *, journal: bool) -> None:
        self._journal = journal

    def reload(self, settings: Settings) -> None:
        """Take over level and format."""
        set_up_logging(settings.log, journal=self._journal)
