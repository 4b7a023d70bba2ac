"""The chat templates of one model: chosen, compiled, tried out once, rendered under limits."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from jinja2 import Template
from jinja2.exceptions import TemplateSyntaxError
from jinja2.meta import find_undeclared_variables

from daemon.chat.abilities import Abilities, probe
from daemon.chat.json_values import JsonObject
from daemon.chat.sandbox import RaisedByTemplate, TemplateEnvironment
from daemon.chat.sandbox_budget import Budget, LimitReached, Limits
from daemon.core.errors import TemplateFailed
from daemon.core.guarded import MARK

TRIAL_STEPS: Final = 20_000
"""A trial renders three short messages; a template that needs more for that is tried no further."""
EFFORT_NAMES: Final = frozenset({"reasoning_effort", "thinking_effort"})
EFFORTS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")
"""Words for how hard to think, in order."""
MAX_SOURCE: Final = 1024 * 1024
"""Characters of a template; the longest seen have 20,000."""
MAX_WORDS: Final = 500
"""Characters of a template's own error message that are passed on."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """One template, ready to render. Made by `compile_template`."""

    name: str
    source: str
    abilities: Abilities
    variables: frozenset[str]
    """Names the template reads and does not set."""
    efforts: tuple[str, ...]
    """Words of `EFFORTS` that the template takes, in their order; empty where it asks for none."""
    _render: Callable[[Mapping[str, object]], str]

    def render(self, variables: Mapping[str, object]) -> str:
        """The text for these variables. Raises TemplateFailed."""
        return self._render(variables)


class TemplateCompiler:
    """Compiles templates of one model. `clock` gives monotonic seconds; `now` is the time that templates may print."""

    def __init__(
        self,
        remark: Callable[[str], str],
        *,
        limits: Limits,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        constants: Mapping[str, object],
    ) -> None:
        self._environment = TemplateEnvironment(now, remark)
        self._limits = limits
        self._trial_limits = Limits(steps=TRIAL_STEPS, characters=limits.characters, seconds=limits.seconds)
        self._clock = clock
        self._constants = constants

    def compile(self, name: str, source: str) -> ChatTemplate:
        """A template, tried out. Raises TemplateFailed where it is no template."""
        template, variables = self._compile(name, source)

        def render(given: Mapping[str, object]) -> str:
            return self._run(template, given, self._limits)

        return ChatTemplate(name, source, self._probe(template, source), variables, self._efforts(template, variables), render)

    def _compile(self, name: str, source: str) -> tuple[Template, frozenset[str]]:
        if len(source) > MAX_SOURCE:
            raise TemplateFailed(f"The model's chat template `{name}` has more than {MAX_SOURCE} characters.", "messages")
        try:
            variables = frozenset(find_undeclared_variables(self._environment.parse(source)))
            return self._environment.from_string(source), variables
        except TemplateSyntaxError as error:
            raise TemplateFailed(
                f"The model's chat template `{name}` is broken in line {error.lineno}: {error.message}", "messages"
            ) from error
        except (RecursionError, MemoryError, SyntaxError, ValueError) as error:
            raise TemplateFailed(f"The model's chat template `{name}` cannot be compiled: {error}", "messages") from error

    def _probe(self, template: Template, source: str) -> Abilities:
        def trial(messages: Sequence[JsonObject], tools: Sequence[JsonObject] | None = None) -> str | None:
            try:
                return self._run(
                    template, {"messages": messages, "tools": tools, "add_generation_prompt": False}, self._trial_limits
                )
            except TemplateFailed as error:
                if isinstance(error.__cause__, LimitReached):
                    raise
                return None

        try:
            return probe(trial, source)
        except TemplateFailed:  # endless even on three messages: requests will get the error
            return Abilities()

    def _efforts(self, template: Template, variables: frozenset[str]) -> tuple[str, ...]:
        names = variables & EFFORT_NAMES
        return tuple(word for word in EFFORTS if names and self._takes(template, dict.fromkeys(names, word)))

    def _takes(self, template: Template, variables: Mapping[str, object]) -> bool:
        messages = [{"role": "user", "content": "hi"}]
        given = {"messages": messages, "tools": None, "enable_thinking": True, "thinking": True, "add_generation_prompt": True}
        try:
            self._run(template, {**given, **variables}, self._trial_limits)
        except TemplateFailed:
            return False
        return True

    def _run(self, template: Template, variables: Mapping[str, object], limits: Limits) -> str:
        try:
            with self._environment.spending(Budget(limits, self._clock)):
                return template.render({**self._constants, **variables})
        except RaisedByTemplate as error:
            raise _failed(f"The model's chat template refused these messages: {error}") from error
        except LimitReached as error:
            raise _failed(f"The model's chat template was stopped: {error}.") from error
        except Exception as error:  # a template is foreign code and raises whatever it likes; translated here, once
            raise _failed(f"The model's chat template failed: {type(error).__name__}: {error}") from error


def choose(templates: Mapping[str, str], *, with_tools: bool) -> str | None:
    """The name of the template for a chat; None where there is none."""
    wanted: Iterable[str] = ("tool_use", "default") if with_tools else ("default",)
    return next((name for name in wanted if name in templates), next(iter(templates), None))


def _failed(message: str) -> TemplateFailed:
    return TemplateFailed(message.replace(MARK, "")[:MAX_WORDS], "messages", "template_failed")
