"""Whether what people are promised fits the cache that is configured: told before minutes go by loading. Pure."""

from daemon.core.admission_values import Policy
from daemon.core.admission_views import guarantee_problem
from daemon.core.people import People
from daemon.core.settings import Settings
from daemon.core.vram_model import PAGE


def sharing_policy(people: People, settings: Settings) -> Policy:
    """Who may have what, for admission."""
    return Policy.of(people, settings.server, settings.engine)


def promise_problem(people: People, settings: Settings, engines: int) -> str | None:
    """Why the promises cannot be kept by so many engines; None where they can, or where the cache has no configured size."""
    tokens = settings.engine.cache_tokens
    return None if tokens is None else guarantee_problem(sharing_policy(people, settings), [(tokens // PAGE, PAGE)] * engines)
