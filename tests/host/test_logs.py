"""Log lines: one a request, for people or for machines."""

import io
import json
import logging
from collections.abc import Generator

import pytest

from daemon.core.settings import LogFormat, LogSettings
from daemon.host.command_line import parse_options
from daemon.host.logs import RequestSummary, log_request, set_up_logging

SUMMARY = RequestSummary("ann", "chatcmpl-1", "stop", 1200, 1024, 80, 0.25, 0.5, 40.0, 2.5, 2, "req-7")


@pytest.fixture
def restored() -> Generator[None]:
    """The root logger as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(settings: LogSettings, *, journal: bool = False) -> str:
    """What one request leaves in the log."""
    stream = io.StringIO()
    set_up_logging(settings, stream, journal=journal)
    log_request(SUMMARY)
    return stream.getvalue()


def test_request_line_tells_owner_tokens_times_and_outcome(restored: None) -> None:
    line = logged(LogSettings(), journal=True)
    assert line == (
        "INFO    chatcmpl-1 of ann: stop, in 1200 (1024 cached) out 80, queue 0.250 s, first token 0.500 s,"
        " rate 40.0/s, total 2.500 s, begun 2 times, id req-7\n"
    )


def test_json_line_carries_the_fields(restored: None) -> None:
    line = json.loads(logged(LogSettings(format=LogFormat.JSON)))
    assert line["request"]["completion"] == 80
    assert line["level"] == "info"


def test_level_silences_requests(restored: None) -> None:
    assert logged(LogSettings(level="warning")) == ""


def test_exceptions_keep_their_traceback_in_json(restored: None) -> None:
    stream = io.StringIO()
    set_up_logging(LogSettings(format=LogFormat.JSON), stream)
    try:
        json.loads("{boom")
    except ValueError:
        logging.getLogger("x").exception("failed")
    assert "JSONDecodeError" in json.loads(stream.getvalue())["traceback"]


def test_options_become_settings_in_order_of_precision() -> None:
    options = parse_options(["--set", "port=1", "--port", "2", "--model", "it's", "--host", "::1"], "1")
    assert options.overrides == ("port=1", "model='it''s'", "host='::1'", "port=2")
