"""How large the result of an operation would be, asked before the operation runs.

Only what can make much out of little is here: multiplication, padding, joining, replacing, formatting. Everything else
gives results no larger than what it is given.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, cast

from daemon.chat.sandbox_budget import Budget, LimitReached

MAX_WIDTH: Final = 100_000
"""Largest number given to a filter or method of text: a width, an index, a count."""
MAX_INT_BITS: Final = 4096

TEXT_METHODS: Final = frozenset(
    {
        "capitalize",
        "casefold",
        "center",
        "count",
        "endswith",
        "expandtabs",
        "find",
        "format",
        "format_map",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "isidentifier",
        "islower",
        "isnumeric",
        "isprintable",
        "isspace",
        "istitle",
        "isupper",
        "join",
        "ljust",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rindex",
        "rjust",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
        "zfill",
    }
)
FILTERS: Final = frozenset(
    {
        "abs",
        "attr",
        "batch",
        "capitalize",
        "center",
        "count",
        "d",
        "default",
        "dictsort",
        "e",
        "escape",
        "filesizeformat",
        "first",
        "float",
        "forceescape",
        "format",
        "groupby",
        "indent",
        "int",
        "items",
        "join",
        "last",
        "length",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "replace",
        "reverse",
        "round",
        "safe",
        "select",
        "selectattr",
        "slice",
        "sort",
        "string",
        "sum",
        "title",
        "tojson",
        "trim",
        "truncate",
        "unique",
        "upper",
        "urlencode",
        "wordcount",
        "wordwrap",
    }
)
"""Jinja's filters without those for web pages and those that are random or slow."""

_FORMAT_FIELD = re.compile(r"\{[^{}]*(?:\d{5}|\{)")
_PERCENT_FIELD = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(?:\*|\d{5}|\d*\.(?:\*|\d{5}))")


def before_operator(budget: Budget, operator: str, left: object, right: object) -> None:
    """Check `left operator right`. Raises LimitReached."""
    budget.step()
    match operator, left, right:
        case "%", str(), _:
            before_percent(budget, left, right)
        case "*", (str() | list() | tuple()), int():
            budget.expect(budget.weigh(cast("object", left)) * max(right, 0))
        case "*", int(), (str() | list() | tuple()):
            budget.expect(budget.weigh(cast("object", right)) * max(left, 0))
        case "**", _, (int() | float()) if abs(right) > MAX_INT_BITS:
            raise LimitReached("it raises to a power beyond measure")
        case (("+" | "*" | "**" | "-" | "//"), int(), int()):
            if max(left.bit_length(), right.bit_length()) > MAX_INT_BITS:
                raise LimitReached("it computes with enormous numbers")
        case "+", _, _:
            budget.expect(budget.weigh(left) + budget.weigh(right))
        case _:
            pass


def before_percent(budget: Budget, text: str, values: object) -> None:
    """Check `text % values`. Raises LimitReached."""
    if _PERCENT_FIELD.search(text):
        raise LimitReached("it formats with an enormous width")
    budget.expect(len(text) + text.count("%") * budget.weigh(values))


def before_text_method(budget: Budget, text: str, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Check `text.name(…)`. Raises LimitReached."""
    if name not in TEXT_METHODS:
        raise LimitReached(f"it calls str.{name}, which is not for templates")
    given = list(chain(args, kwargs.values()))
    _check_numbers(given)
    match name:
        case "format" | "format_map":
            if _FORMAT_FIELD.search(text):
                raise LimitReached("it formats with an enormous or computed width")
            budget.expect(len(text) + text.count("{") * budget.weigh(given))
        case "join":
            _before_join(budget, text, given[0] if given else ())
        case "replace":
            _before_replace(budget, text, given)
        case "expandtabs":
            budget.expect(len(text) + text.count("\t") * _largest(given, 8))
        case _:
            budget.expect(len(text) + _largest(given, 0))


def before_filter(budget: Budget, name: str, value: object, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Check `value | name(…)`. Raises LimitReached."""
    budget.step()
    given = list(chain(args, kwargs.values()))
    _check_numbers(given)
    weight = budget.weigh(value)
    budget.expect(weight)
    match name:
        case "join":
            _before_join(budget, str(given[0]) if given else "", value)
        case "replace":
            _before_replace(budget, str(value), [str(item) for item in given])
        case "format":
            before_percent(budget, str(value), given)
        case "indent" | "wordwrap":
            longest = max((len(item) for item in given if isinstance(item, str)), default=0)
            budget.expect(
                weight * (1 + longest) if name == "wordwrap" else weight + _lines(value) * (_largest(given, 4) + longest)
            )
        case "tojson":
            budget.expect(weight * (1 + min(_largest(given, 0), 16)))
        case "sum" if any(not isinstance(item, (int, float, str)) for item in given):
            raise LimitReached("it sums up lists")
        case "center" | "batch" | "slice":
            budget.expect(weight + _largest(given, 80) * budget.weigh(given))
        case _:
            pass


def _before_join(budget: Budget, glue: str, items: object) -> None:
    if isinstance(items, (list, tuple, dict)):
        budget.expect(budget.weigh(cast("object", items)) + len(glue) * len(cast("Sequence[object]", items)))
    elif len(glue) > MAX_WIDTH:
        raise LimitReached("it joins with enormous glue")


def _before_replace(budget: Budget, text: str, given: Sequence[object]) -> None:
    match given:
        case [str() as old, str() as new, *_]:
            budget.expect(len(text) + (text.count(old) if old else len(text) + 1) * len(new))
        case _:
            pass


def _check_numbers(given: Iterable[object]) -> None:
    for item in given:
        if isinstance(item, int) and abs(item) > MAX_WIDTH:
            raise LimitReached(f"it asks for a width or count beyond {MAX_WIDTH}")


def _largest(given: Iterable[object], default: int) -> int:
    return max((abs(item) for item in given if isinstance(item, int)), default=default)


def _lines(value: object) -> int:
    return value.count("\n") + 1 if isinstance(value, str) else 1
