"""`GET /openapi.json`: the API in OpenAPI's words, made from the structs that validate requests and write answers.

Limits in the document are those that are enforced, since both come from the same annotations. `null` always means not given.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import cast

import msgspec
from aiohttp import web

from daemon.api.doorman import REQUEST_ID_HEADER, dialect_of
from daemon.api.errors import Dialect
from daemon.api.openapi_operations import Operation, operations
from daemon.api.openapi_shapes import AnthropicErrorAnswer, ChatMessage, ChatTool, ErrorAnswer
from daemon.api.responses_schemas import FunctionCallItem, FunctionOutputItem, MessageItem, ReasoningItem

PATH = "/openapi.json"
DOCUMENT = web.AppKey("document", bytes)

_Schema = dict[str, object]
_TEMPLATE = "#/components/schemas/{name}"
_ANY: _Schema = {"description": "Any JSON value"}

_ITEMS: Mapping[tuple[str, str], tuple[type[msgspec.Struct], ...]] = {
    ("ChatBody", "messages"): (ChatMessage,),
    ("ChatBody", "tools"): (ChatTool,),
    ("TokenizeBody", "messages"): (ChatMessage,),
    ("TokenizeBody", "tools"): (ChatTool,),
    ("TemplateBody", "messages"): (ChatMessage,),
    ("TemplateBody", "tools"): (ChatTool,),
    ("ResponsesBody", "input"): (MessageItem, FunctionCallItem, FunctionOutputItem, ReasoningItem),
}
"""What the elements of arrays are that the structs leave open, since another part of the API reads them one by one."""


def add_routes(router: web.UrlDispatcher) -> None:
    """Put the family's path on a router."""
    router.add_get(PATH, answer)


async def answer(request: web.Request) -> web.Response:
    """The document, which never changes."""
    return web.Response(body=request.app[DOCUMENT], content_type="application/json")


def document(version: str, *, keys: bool) -> bytes:
    """The document as JSON. `keys`: whether requests need a key."""
    every = list(operations())
    paths: dict[str, _Schema] = {}
    for operation in every:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, keys=keys)
    components: _Schema = {"schemas": _schemas(every)}
    if keys:
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    info = {"title": "exl3d", "version": version, "description": "One language model for several people; see docs/API.md"}
    return msgspec.json.encode({"openapi": "3.1.0", "info": info, "paths": paths, "components": components})


def _operation(operation: Operation, *, keys: bool) -> _Schema:
    described: _Schema = {"summary": operation.summary, "responses": _responses(operation)}
    if operation.parameter is not None:
        text = {"type": "string", "minLength": 1}
        described["parameters"] = [{"name": operation.parameter, "in": "path", "required": True, "schema": text}]
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _json(_reference(operation.body))}
    if keys and not operation.open:
        described["security"] = [{"bearer": list[str]()}, {"header": list[str]()}]
    return described


def _responses(operation: Operation) -> _Schema:
    content: _Schema
    if operation.answer is not None:
        content = _json(_reference(operation.answer))
    elif operation.path == PATH:
        content = _json({"type": "object"})
    else:
        content = {"text/plain": {"schema": {"type": "string"}}}
    if operation.streams:
        content["text/event-stream"] = {}
    headers = {
        REQUEST_ID_HEADER: {
            "description": "Name of the request, the client's own where it sent one",
            "schema": {"type": "string"},
        }
    }
    found: _Schema = {"200": {"description": "The answer", "headers": headers, "content": content}}
    for status in sorted(operation.statuses):
        found[str(status.value)] = {"description": status.phrase, "content": _json(_reference(_error_of(operation, status)))}
    return found


def _error_of(operation: Operation, status: HTTPStatus) -> type[msgspec.Struct]:
    if operation.answer is not None and operation.body is None and status is HTTPStatus.SERVICE_UNAVAILABLE:
        return operation.answer  # a health check says in its own shape that something is wrong
    match dialect_of(operation.path):
        case Dialect.OPENAI:
            return ErrorAnswer
        case Dialect.ANTHROPIC:
            return AnthropicErrorAnswer


def _schemas(every: Sequence[Operation]) -> dict[str, _Schema]:
    kinds = {kind for operation in every for kind in (operation.body, operation.answer) if kind is not None}
    kinds |= {ErrorAnswer, AnthropicErrorAnswer} | {kind for row in _ITEMS.values() for kind in row}
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    _, found = msgspec.json.schema_components(ordered, schema_hook=_schema_of, ref_template=_TEMPLATE)
    schemas = cast("dict[str, _Schema]", found)
    for (name, field), row in _ITEMS.items():
        references = [_reference(kind) for kind in row]
        _array_of(schemas[name], field)["items"] = references[0] if len(references) == 1 else {"anyOf": references}
    # The one item whose type may be left out, as clients do with plain messages.
    message = schemas[MessageItem.__name__]
    cast("list[str]", message["required"]).remove("type")
    cast("_Schema", message["properties"])["type"] = {"enum": [MessageItem.__struct_config__.tag, None]}
    return schemas


def _array_of(schema: _Schema, field: str) -> _Schema:
    """The array in the schema of a field."""
    found = cast("dict[str, _Schema]", schema["properties"])[field]
    choices = cast("list[_Schema]", found.get("anyOf", [found]))
    return next(choice for choice in choices if choice.get("type") == "array")


def _schema_of(kind: type) -> _Schema:
    if kind is object:
        return _ANY
    raise NotImplementedError


def _reference(kind: type[msgspec.Struct]) -> _Schema:
    return {"$ref": _TEMPLATE.format(name=kind.__name__)}


def _json(schema: _Schema) -> _Schema:
    return {"application/json": {"schema": schema}}
