"""What happens to every request before and after its handler: its id, who asks, CORS, rate limits, and the shape of errors.

1. A request id: the client's own where it is sane, else a new one; it is in every answer. 2. A preflight of an allowed web origin
is answered. 3. The key, and below ADMIN_PREFIX its owner's role. 4. The handler. 5. Whatever it raised becomes an answer in the
caller's dialect. 6. The count. A request that was refused before it became a stream gets its log line here; streams have theirs
from the registry.
"""

import asyncio
import logging
import re
import uuid
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler

from daemon.api.auth import Authenticator
from daemon.api.context import OUTCOME, OWNER, REQUEST_ID, RUNNING
from daemon.api.errors import RETRY_HEADER, Answer, Dialect, answer_to, error_json, protocol_error, unknown_url, wrong_method
from daemon.api.in_force import InForce
from daemon.api.meters import Meters
from daemon.api.rate_limits import EXPOSED, Accounts
from daemon.core.errors import Forbidden, NotReady, Overloaded
from daemon.core.ports import Acquaintance
from daemon.core.settings import Role

REQUEST_ID_HEADER = "x-request-id"
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_CORS_METHODS = "GET, POST, OPTIONS"
_EXPOSED = f"x-request-id, x-exl3d-max-tokens-clamped, {EXPOSED}"
ADMIN_PREFIX = "/admin/"
"""What is below this is for admins, who are known by their key."""
GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})
"""Paths whose answers say where a person stands with their limits."""
_UNCOUNTED = "-"
_LOGGED = 80
"""Characters of a field's name in the log."""

_log = logging.getLogger(__name__)


class Doorman:
    """The middleware. `open_path` says which paths need no key."""

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        acquaintance: Acquaintance,
        accounts: Accounts,
        meters: Meters,
        in_force: InForce,
        open_path: Callable[[str], bool],
    ) -> None:
        self._authenticator = authenticator
        self._acquaintance = acquaintance
        self._accounts = accounts
        self._meters = meters
        self._in_force = in_force
        self._open_path = open_path

    async def handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through, and make an answer of whatever comes back."""
        own = request.headers.get(REQUEST_ID_HEADER, "")
        request[REQUEST_ID] = own if _SANE_ID.fullmatch(own) else f"req_{uuid.uuid4().hex}"
        try:
            if self._is_preflight(request):
                return web.Response(status=HTTPStatus.NO_CONTENT)
            request[OWNER] = "" if self._open_path(request.path) else await self._authenticator.owner(request)
            if request.path.startswith(ADMIN_PREFIX):
                self._refuse_users(request[OWNER])
            response = await handler(request)
        except asyncio.CancelledError:
            self._count(request, "cancelled")
            raise
        except ConnectionResetError:
            self._count(request, "cancelled")
            raise
        except Exception as error:  # noqa: BLE001  # the last line of defence: every error gets its shape and its log line here
            return self._answer(request, error)
        self._count(request, request.get(OUTCOME, _UNCOUNTED))
        return response

    async def prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        """Headers of every answer, put on just before it goes out (a signal of aiohttp)."""
        response.headers[REQUEST_ID_HEADER] = request.get(REQUEST_ID, "")
        if request.path in GENERATING and OWNER in request:
            told = response.headers.get(RETRY_HEADER)
            wait = None if told is None else float(told) / 1000
            response.headers.update(self._accounts.headers(request[OWNER], dialect_of(request.path), wait))
        origin = request.headers.get("Origin")
        if origin is not None and self._allows(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Vary"] = "Origin"
            response.headers["Access-Control-Expose-Headers"] = _EXPOSED
            if request.method == "OPTIONS":
                response.headers["Access-Control-Allow-Methods"] = _CORS_METHODS
                response.headers["Access-Control-Allow-Headers"] = request.headers.get("Access-Control-Request-Headers", "*")
                response.headers["Access-Control-Max-Age"] = "600"

    def _refuse_users(self, owner: str) -> None:
        people = self._acquaintance.current()
        if people.open or people.of(owner).role is not Role.ADMIN:
            raise Forbidden("This needs the key of a person whose role is admin.")

    def _answer(self, request: web.Request, error: Exception) -> web.Response:
        answer = _worded(request, error)
        self._count(request, answer.code or answer.type)
        self._meters.refused(error, request.get(OWNER, ""))
        if answer.code == "internal_error":
            _log.error("request %s: %s %s failed", request[REQUEST_ID], request.method, request.path, exc_info=error)
        elif request.method == "POST" and (RUNNING not in request or isinstance(error, Overloaded | NotReady)):
            _log_refusal(request, answer)
        return web.Response(
            body=error_json(answer, dialect_of(request.path)),
            status=answer.status,
            content_type="application/json",
            headers=answer.headers,
        )

    def _is_preflight(self, request: web.Request) -> bool:
        asked = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        return asked and self._allows(request.headers.get("Origin", ""))

    def _allows(self, origin: str) -> bool:
        origins = self._in_force.settings.server.cors_origins
        return origin in origins or "*" in origins

    def _count(self, request: web.Request, outcome: str) -> None:
        resource = request.match_info.route.resource
        if outcome == _UNCOUNTED or resource is None or request.method != "POST":
            return
        self._meters.answered(resource.canonical, request.get(OWNER, ""), outcome)


def dialect_of(path: str) -> Dialect:
    """Which shape of error the callers of a path expect."""
    return Dialect.ANTHROPIC if path == "/v1/messages" or path.startswith("/v1/messages/") else Dialect.OPENAI


def _log_refusal(request: web.Request, answer: Answer) -> None:
    """Names and numbers only: the words of an error may quote what somebody wrote."""
    _log.info(
        "refused %s of %s, POST %s: %d %s%s",
        request[REQUEST_ID],
        request.get(OWNER) or _UNCOUNTED,
        request.match_info.route.resource.canonical if request.match_info.route.resource else "unknown path",
        answer.status,
        answer.code or answer.type,
        "" if answer.param is None else f" {answer.param[:_LOGGED]!r}",
    )


def _worded(request: web.Request, error: Exception) -> Answer:
    match error:
        case web.HTTPNotFound():
            return unknown_url(request.method, request.path)
        case web.HTTPMethodNotAllowed():
            return wrong_method(request.method, request.path, ", ".join(sorted(error.allowed_methods)))
        case web.HTTPException():
            return protocol_error(error.status, error.reason)
        case _:
            return answer_to(error, request[REQUEST_ID])
