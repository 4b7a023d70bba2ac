"""What a field of a body may be, in words, read from the struct's own annotations: for errors and for docs/API.md."""

from functools import cache
from typing import cast

import msgspec
from msgspec import inspect

_ANY = "any value"


@cache
def expectation(kind: type[msgspec.Struct], name: str) -> str:
    """As in `a number from 0 to 2`. Raises KeyError for a name that is no field of `kind`."""
    return _words(_fields(kind)[name].type)


@cache
def description(kind: type[msgspec.Struct], name: str) -> str:
    """The field's line of documentation."""
    found = _described(_fields(kind)[name].type)
    if found is None:
        raise KeyError(name)
    return found


@cache
def integer_fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Fields that hold an integer: `100.0` is one too, as JSON has it from some languages."""
    return frozenset(name for name, field in _fields(kind).items() if _is_integer(field.type))


@cache
def required(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Fields without which a body makes no sense."""
    return frozenset(name for name, field in _fields(kind).items() if field.required)


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, inspect.Field]:
    info = inspect.type_info(kind)
    if not isinstance(info, inspect.StructType):
        raise TypeError(f"{kind.__name__} is not a struct")
    return {field.name: field for field in info.fields}


def _bare(type_: inspect.Type) -> inspect.Type:
    return _bare(type_.type) if isinstance(type_, inspect.Metadata) else type_


def _is_integer(type_: inspect.Type) -> bool:
    bare = _bare(type_)
    if isinstance(bare, inspect.UnionType):
        return all(_is_integer(part) or isinstance(_bare(part), inspect.NoneType) for part in bare.types)
    return isinstance(bare, inspect.IntType)


def _described(type_: inspect.Type) -> str | None:
    while isinstance(type_, inspect.Metadata):
        extra = cast("dict[str, object]", type_.extra_json_schema or {})
        if "description" in extra:
            return str(extra["description"])
        type_ = type_.type
    return None


def _words(type_: inspect.Type) -> str:
    match _bare(type_):
        case inspect.UnionType(types):
            kinds = [_words(part) for part in types if not isinstance(_bare(part), inspect.NoneType)]
            return " or ".join(sorted(kinds, key=lambda words: " array" in words.partition(":")[0]))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() as number:
            return "an integer" + _range(number)
        case inspect.FloatType() as number:
            return "a number" + _range(number)
        case inspect.StrType(min_length=least):
            return "a non-empty string" if least else "a string"
        case inspect.ListType(item, least, most):
            limit = f" of at most {most}" if most is not None else ""
            array = f"a non-empty array{limit}" if least else f"an array{limit}"
            return array if _words(item) == _ANY else f"{array}: each {_words(item)}"
        case inspect.DictType(_, value):
            return "an object" if _words(value) == _ANY else f"an object: each value {_words(value)}"
        case inspect.StructType(cls):
            return f"an object with {', '.join(cls.__struct_fields__)}"
        case _:
            return _ANY


def _range(number: inspect.IntType | inspect.FloatType) -> str:
    if isinstance(number, inspect.IntType) and number.ge is not None and number.le is not None:
        return f" from {number.ge} to {number.le}"
    if number.ge is not None and number.le is not None:
        return f" from {number.ge:g} to {number.le:g}"
    if number.gt is not None and number.le is not None:
        return f" above {number.gt:g}, at most {number.le:g}"
    return f" of at least {number.ge:g}" if number.ge is not None else ""
