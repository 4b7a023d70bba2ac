"""What the log says about connections on which no HTTP is spoken: port scanners, TLS on a plain port, broken clients.

aiohttp writes a traceback for each, with the bytes it stumbled over. Those may be a key in a header, and a scanner would fill the
journal; so such a record becomes one line that quotes nothing. Everything else passes as it is.
"""

import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError


class _Unquoted(logging.Filter):
    """Takes the words out of records about bytes that are no HTTP."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Every record passes."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
            record.msg, record.args = "refused what is no HTTP (%s)", (type(error).__name__,)
            record.exc_info = None
        return True


def connection_log(name: str) -> logging.Logger:
    """The logger of that name, for aiohttp to write to."""
    logger = logging.getLogger(name)
    if not any(isinstance(known, _Unquoted) for known in logger.filters):
        logger.addFilter(_Unquoted())
    return logger
