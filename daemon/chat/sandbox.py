"""Hugging Face's Jinja dialect in a sandbox with limits.

The dialect: `trim_blocks`, `lstrip_blocks`, `break` and `continue`, `{% generation %}`, `tojson` that escapes nothing,
`raise_exception`, `strftime_now`. The sandbox: Jinja's immutable one, with fewer filters and methods. The limits: the
syntax tree is rewritten before it is compiled, so that loop rounds, macros, outputs, `~` and list and dict displays report
to the `Budget` of the rendering (the rest goes through hooks that Jinja's sandbox has: calls, filters, operators).
"""

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import update_wrapper
from typing import Final, cast

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from daemon.chat.sandbox_budget import Budget, LimitReached
from daemon.chat.sandbox_operations import FILTERS, before_filter, before_operator, before_text_method

MAX_DATE_FORMAT: Final = 64
MAX_INDENT: Final = 16


class RaisedByTemplate(TemplateError):
    """The template called `raise_exception`: its own words about what is wrong with the chat."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates and renders them under a budget. Several threads may render with one environment at once.

    `remark` is applied to JSON that `tojson` makes with escapes, so that marks inside keep their meaning.
    """

    intercepted_binops = frozenset({"+", "-", "*", "**", "//", "%"})

    def __init__(self, now: Callable[[], datetime], remark: Callable[[str], str]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=False,
            optimized=False,  # constants are not folded: folding would run operations outside any budget
            extensions=[GenerationTag, LoopControlExtension],
            finalize=_output,
        )
        self._budget: ContextVar[Budget] = ContextVar("budget")
        self._now = now
        self._remark = remark
        self.filters["tojson"] = self._tojson
        self.filters = {name: self._limited(name, self.filters[name]) for name in FILTERS}
        self.globals = {
            "range": self.globals["range"],
            "joiner": self.globals["joiner"],
            "cycler": self.globals["cycler"],
            "dict": _make_dict,
            "namespace": TemplateNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
        }

    @property
    def budget(self) -> Budget:
        """That of the rendering under way in this thread."""
        return self._budget.get()

    @contextmanager
    def spending(self, budget: Budget) -> Generator[None]:
        """Render inside this."""
        token = self._budget.set(budget)
        try:
            yield
        finally:
            self._budget.reset(token)

    # --- hooks of Jinja ----------------------------------------------------------------------------------------------

    def _generate(self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False) -> str:
        rewritten = cast("nodes.Template", _Reporting().visit(source))
        rewritten.set_environment(self)
        return super()._generate(rewritten, name, filename, defer_init)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """An operator, after a look at how much it would make."""
        before_operator(self.budget, operator, left, right)
        return self.budget.made(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: object, /, *args: object, **kwargs: object) -> object:
        """Any call in a template, after a look at how much it would make."""
        budget = self.budget
        budget.step()
        owner, name = _bound(function)
        if isinstance(owner, str):
            before_text_method(budget, owner, name, args, kwargs)
        elif isinstance(owner, (int, float, bytes)):
            raise SecurityError(f"{type(owner).__name__}.{name} is not for templates")
        return budget.made(super().call(context, function, *args, **kwargs))

    # --- what the rewritten tree calls -------------------------------------------------------------------------------

    def report(self, characters: int) -> None:
        """A loop round, a macro or a piece of constant text begins."""
        self.budget.spend(characters)

    def displayed(self, value: object) -> object:
        """A list, tuple or dict display."""
        return value

    def concatenated(self, *values: object) -> str:
        """`a ~ b`."""
        budget = self.budget
        budget.expect(sum(map(budget.weigh, values)))
        return "".join(map(str, values))

    # --- the dialect -------------------------------------------------------------------------------------------------

    def _limited(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        skip = 1 if hasattr(function, "jinja_pass_arg") else 0

        def limited(*args: object, **kwargs: object) -> object:
            budget = self.budget
            before_filter(budget, name, args[skip] if len(args) > skip else None, args[skip + 1 :], kwargs)
            return budget.made(function(*args, **kwargs))

        return update_wrapper(limited, function)

    def _tojson(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        if indent is not None and not (isinstance(indent, int) and 0 <= indent <= MAX_INDENT):  # pyright: ignore[reportUnnecessaryIsInstance] - templates pass what they like
            raise LimitReached(f"tojson takes an indent of 0 to {MAX_INDENT}")
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return self._remark(text) if ensure_ascii else text

    def _strftime_now(self, pattern: str) -> str:
        if len(pattern) > MAX_DATE_FORMAT:
            raise LimitReached(f"strftime_now takes a format of at most {MAX_DATE_FORMAT} characters")
        return self._now().strftime(pattern)


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model said, for training; for us it is its content."""

    tags = {"generation"}  # noqa: RUF012 - the type is Jinja's

    def parse(self, parser: Parser) -> nodes.Node:
        """The block, as a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class TemplateNamespace(Namespace):
    """`namespace()` without names that begin with an underscore, and printed without its content."""

    def __init__(*args: object, **kwargs: object) -> None:
        self = cast("TemplateNamespace", args[0])
        attributes = _make_dict(*args[1:], **kwargs)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: object) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


class _Reporting(NodeTransformer):
    """Makes a template report to its budget."""

    def get_visitor(self, node: nodes.Node) -> Callable[..., object] | None:
        """Jinja asks this for each node of the tree; None means: look at its children."""
        match node:
            case nodes.For() | nodes.Macro() | nodes.CallBlock() | nodes.Block():
                return self._report_body
            case nodes.Output():
                return self._report_output
            case nodes.Concat():
                return self._report_concatenation
            case nodes.List() | nodes.Dict():
                return self._report_display
            case nodes.Tuple() if node.ctx == "load":
                return self._report_display
            case _:
                return None

    def _report_output(self, node: nodes.Output) -> list[nodes.Node]:
        self.generic_visit(node)
        size = sum(len(child.data) for child in node.nodes if isinstance(child, nodes.TemplateData))
        return [_report(size, node.lineno), node] if size else [node]

    def _report_concatenation(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("concatenated", node.nodes, node.lineno)

    def _report_body(self, node: nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _report(0, node.lineno))
        return node

    def _report_display(self, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        if all(isinstance(child, nodes.Const) for child in node.find_all(nodes.Expr)):
            return node
        return _call("displayed", [node], node.lineno)


def _report(size: int, line: int) -> nodes.Node:
    return nodes.ExprStmt(_call("report", [nodes.Const(size, lineno=line)], line), lineno=line)


def _call(name: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name, lineno=line), arguments, [], None, None, lineno=line)


@pass_context
def _output(context: Context, value: object) -> object:
    """What `{{ … }}` prints. Takes the context so that Jinja cannot run it while compiling, outside any budget."""
    environment = cast("TemplateEnvironment", context.environment)
    environment.budget.step()
    environment.budget.made(value)
    return value


def _bound(function: object) -> tuple[object, str]:
    """The object a method belongs to, and the method's name; Jinja's wrapper around `str.format` counts as the method."""
    method: object = getattr(function, "__wrapped__", function)
    return getattr(method, "__self__", None), str(getattr(method, "__name__", ""))


def _make_dict(*args: object, **kwargs: object) -> dict[str, object]:
    return dict(*cast("tuple[Mapping[str, object]]", args), **kwargs)


def _raise_exception(message: object) -> None:
    raise RaisedByTemplate(str(message))


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("names in a namespace may not begin with an underscore")
