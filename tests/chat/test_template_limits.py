"""A hostile template ends with an error, soon and with bounded memory; an honest one never meets a limit."""

from collections.abc import Iterator
from itertools import count

import pytest

from daemon.chat.messages import AssistantMessage, ChatInput, Message, UserMessage
from daemon.chat.prompt import PromptBuilder
from daemon.chat.sandbox_budget import Budget, LimitReached, Limits
from daemon.core.errors import TemplateFailed
from tests.chat.template_families import FAMILIES, builder, model

CHAT = ChatInput((UserMessage("hi"),))
SMALL = Limits(steps=20_000, characters=5_000_000, value=100_000, seconds=5.0)

DOUBLING = "{{% set ns = namespace(x={start}) %}}{{% for i in range(70) %}}{{% set ns.x = {step} %}}{{% endfor %}}{{{{ ns.x }}}}"

HOSTILE = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a loop that prints": "{% for a in range(99999) %}{% for b in range(99999) %}some constant text{% endfor %}{% endfor %}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "a macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a block within itself": "{% block b %}{{ self.b() }}{{ self.b() }}{% endblock %}",
    "a recursive loop": "{% for i in [0] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "text times a number": "{{ 'a' * 10 ** 9 }}",
    "a number times text": "{{ 10 ** 9 * 'a' }}",
    "a list times a number": "{{ [0] * 10 ** 9 }}",
    "text doubled by plus": DOUBLING.format(start="'ab'", step="ns.x + ns.x"),
    "text doubled by tilde": DOUBLING.format(start="'ab'", step="ns.x ~ ns.x"),
    "text doubled by printing": (
        "{% set ns = namespace(x='a') %}{% for i in range(70) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}"
    ),
    "a list doubled": DOUBLING.format(start="[0]", step="ns.x + ns.x"),
    "a list that holds itself twice": DOUBLING.format(start="[0]", step="[ns.x, ns.x]"),
    "a tuple that holds itself twice": DOUBLING.format(start="[0]", step="(ns.x, ns.x)"),
    "a dict that holds itself twice": DOUBLING.format(start="[0]", step="{'a': ns.x, 'b': ns.x}"),
    "dict() that holds itself twice": DOUBLING.format(start="[0]", step="dict(a=ns.x, b=ns.x)"),
    "views that hold themselves twice": DOUBLING.format(start="[0]", step="{'a': [ns.x, ns.x]}.items()"),
    "lists doubled by batch": DOUBLING.format(start="[0]", step="[ns.x, ns.x] | batch(2) | list"),
    "format with a width": "{{ '{:999999999}'.format(1) }}",
    "format with a computed width": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "format_map with a width": "{{ '{a:999999999}'.format_map({'a': 1}) }}",
    "percent with a width": "{{ '%999999999d' % 1 }}",
    "percent with a star": "{{ '%*d' % (999999999, 1) }}",
    "percent with a precision": "{{ '%.999999999f' % 1.0 }}",
    "the format filter": "{{ '%999999999d' | format(1) }}",
    "center": "{{ 'a'.center(999999999) }}",
    "the center filter": "{{ 'a' | center(999999999) }}",
    "ljust": "{{ 'a'.ljust(999999999) }}",
    "zfill": "{{ 'a'.zfill(999999999) }}",
    "expandtabs": "{{ ('\t' * 1000).expandtabs(99999) }}",
    "indent": "{{ ('\n' * 1000) | indent(99999, true, true) }}",
    "indent with text": "{{ ('a\n' * 1000) | indent('b' * 1000) }}",
    "wordwrap": "{{ ('a ' * 10000) | wordwrap(1, wrapstring='b' * 1000) }}",
    "replace nothing by much": "{% set a = 'a' * 10000 %}{{ a.replace('', a) }}",
    "the replace filter": "{% set a = 'a' * 10000 %}{{ a | replace('a', a) }}",
    "join with long glue": "{% set a = 'a' * 10000 %}{{ a.join(range(9999) | list) }}",
    "join of one text many times": "{{ (['a' * 10000] * 1000) | join }}",
    "the batch filter": "{{ [1] | batch(999999999, 0) | list }}",
    "the slice filter": "{{ [1] | slice(999999999) | list }}",
    "sum of lists": "{{ ([[1, 2]] * 1000) | sum(start=[]) }}",
    "tojson with a wide indent": "{{ [[[[1]]]] | tojson(indent=99999999) }}",
    "a power": "{{ 9 ** 999999 }}",
    "squares": DOUBLING.format(start="3", step="ns.x * ns.x"),
    "mapped padding": "{{ range(99999) | map('center', 9999) | list | length }}",
    "a long date": "{{ strftime_now('%A' * 100000) }}",
    "an enormous range": "{{ range(10 ** 9) | list }}",
    "bytes of a number": "{{ (1).to_bytes(10 ** 9, 'big') }}",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_template_is_stopped(what: str) -> None:
    prompts = builder(default=HOSTILE[what], limits=SMALL)
    with pytest.raises(TemplateFailed, match=r"stopped|RecursionError|OverflowError|SecurityError"):
        prompts.render(CHAT)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ (''|attr('__class__')).__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ lipsum.__globals__ }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(template: str) -> None:
    try:
        text = builder(default=template).render(CHAT).text
    except TemplateFailed:
        return
    assert text == ""


def test_a_template_that_takes_too_long_by_the_clock_is_stopped() -> None:
    ticks: Iterator[int] = count()
    template = "{% for a in range(9999) %}{% endfor %}"
    prompts = PromptBuilder(model(default=template), clock=lambda: float(next(ticks)), limits=Limits(seconds=40))
    with pytest.raises(TemplateFailed, match="longer than 40 seconds"):
        prompts.render(CHAT)


def test_a_stopped_rendering_does_not_spoil_the_next() -> None:
    template = "{% for a in range(99999 if messages[0].content == 'much' else 3) %}{{ a }}{% endfor %}"
    prompts = builder(default=template, limits=SMALL)
    with pytest.raises(TemplateFailed):
        prompts.render(ChatInput((UserMessage("much"),)))
    assert prompts.render(CHAT).text == "012"


def test_a_template_that_is_hostile_only_to_trials_gets_default_abilities() -> None:
    prompts = builder(default="{% for a in range(30000) %}{% endfor %}{{ messages[0].content }}")
    assert prompts.render(CHAT).text == "hi"


def test_a_template_error_is_cut_to_a_readable_length() -> None:
    with pytest.raises(TemplateFailed) as caught:
        builder(default="{{ raise_exception('x' * 100000) }}").render(CHAT)
    assert len(str(caught.value)) <= 500


def test_an_enormous_template_is_not_compiled() -> None:
    problem = builder(default="x" * 2_000_000).problem
    assert problem is not None
    assert "characters" in str(problem)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_honest_chat_stays_far_from_every_limit(family: str) -> None:
    tenth = Limits(steps=Limits().steps // 10, characters=Limits().characters // 10, value=Limits().value // 2)
    turns: list[Message] = []
    for turn in range(300):
        turns += [UserMessage(f"{turn} " + "question " * 500), AssistantMessage(f"{turn} " + "answer " * 500)]
    text = builder(family, limits=tenth).render(ChatInput((*turns, UserMessage("last")))).text
    assert text.count("question question") > 300
    assert "last" in text


def test_what_is_shared_counts_each_time_it_would_be_printed() -> None:
    budget = Budget(Limits(value=1000), lambda: 0.0)
    inner: list[object] = ["x" * 100]
    assert budget.weigh([inner, inner, {"k": inner}]) == 1 + 3 * 101 + 2
    with pytest.raises(LimitReached):
        budget.made([inner] * 10)
