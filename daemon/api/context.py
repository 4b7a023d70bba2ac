"""What handlers share: the collaborators, handed over once by `application.build`, and what is known about each request."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from aiohttp import web

from daemon.api.door import Door
from daemon.api.in_force import InForce
from daemon.api.meters import Meters
from daemon.api.preparing import Origin, Preparing
from daemon.api.priorities import asked_priority
from daemon.api.rate_limits import Accounts
from daemon.core.errors import UnknownModel
from daemon.core.ports import ModelCard, Serving, Tokenizing, Watching


@dataclass(frozen=True, slots=True)
class Api:
    """Collaborators of the handlers. `threads` is for parsing, rendering and compiling: short work, but not for the loop."""

    serving: Serving
    watching: Watching
    tokenizing: Tokenizing
    preparing: Preparing
    in_force: InForce
    accounts: Accounts
    door: Door
    meters: Meters
    threads: ThreadPoolExecutor
    version: str


API = web.AppKey("api", Api)
OWNER = web.RequestKey("owner", str)
REQUEST_ID = web.RequestKey("request_id", str)
RUNNING = web.RequestKey("running", bool)
"""Present from the moment its streams are asked for."""
OUTCOME = web.RequestKey("outcome", str)
"""How a generation ended, for the count of requests."""


def served(model: str | None, card: ModelCard) -> str:
    """The name to answer under: the one that was asked for, where it means the model served here. Raises UnknownModel."""
    if model is None or model == card.name:
        return card.name
    if model in card.aliases:
        return model
    raise UnknownModel(model, (card.name, *card.aliases))


def origin_of(request: web.Request, prefix: str) -> Origin:
    """A fresh public id, who asks, and how urgently. Raises InvalidRequest for a priority that is none, and QuotaExceeded
    where the person has used up their day already: no work is done for them then.
    """
    request.app[API].accounts.check(request[OWNER])
    priority = asked_priority(request.headers)
    return Origin(f"{prefix}-{uuid.uuid4().hex}", request[OWNER], time.monotonic(), priority, request[REQUEST_ID])
