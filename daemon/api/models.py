"""`GET /v1/models` and `GET /v1/models/{id}`: what is served, with the context length under every name that clients look for."""

from dataclasses import replace

import msgspec
from aiohttp import web

from daemon.api.context import API, OWNER, served
from daemon.api.limits import own_context
from daemon.core.ports import ModelCard

PATH = "/v1/models"
CONTEXT_NAMES = ("context_length", "max_context_length", "context_window", "max_model_len", "max_input_tokens", "n_ctx")
"""Names under which clients look for the context length of a model."""


def add_routes(router: web.UrlDispatcher) -> None:
    """Put the family's paths on a router."""
    router.add_get(PATH, listed)
    router.add_get(PATH + "/{id:.+}", one)


async def listed(request: web.Request) -> web.Response:
    """Every name that may be asked for."""
    card = _card(request)
    entries = [entry(card, name) for name in (card.name, *card.aliases)]
    return _json({"object": "list", "data": entries})


async def one(request: web.Request) -> web.Response:
    """One of them, by name or alias."""
    card = _card(request)
    return _json(entry(card, served(request.match_info["id"], card)))


def _card(request: web.Request) -> ModelCard:
    """What is served, with the context that this person may use: clients cut their conversations to it."""
    api = request.app[API]
    card = api.serving.card()
    return replace(card, context=own_context(card, api.accounts.person(request[OWNER])))


def entry(card: ModelCard, name: str) -> dict[str, object]:
    """A model as OpenAI has it, and what others add."""
    modalities = ["text"] if card.pictures is None else ["text", "image"]
    return {
        "id": name,
        "object": "model",
        "created": card.created,
        "owned_by": "exl3d",
        "root": card.name,
        **dict.fromkeys(CONTEXT_NAMES, card.context),
        "architecture": {"name": card.architecture, "input_modalities": modalities, "output_modalities": ["text"]},
    }


def _json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
