"""From a checked body to `ValidRequest`s: chat to text, text to ids, ids to limits. Work that takes time is off the loop."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, TypeVar

from daemon.api.budgets import budget_of
from daemon.api.call_constraints import chat_constraint
from daemon.api.constraints import constraint_of, wants_constraint
from daemon.api.images import image_spans
from daemon.api.in_force import InForce
from daemon.api.limits import Length, fit, own_context
from daemon.api.priorities import chat_priority
from daemon.api.rate_limits import Accounts
from daemon.api.sampling import sampler_of, seed_of, stop_ids_of, stop_strings_of
from daemon.api.schemas import MAX_STREAMS, ChatBody, CompletionBody, Generation
from daemon.api.speech import ParserPlan, Speech
from daemon.chat.call_grammar import reading_dialect
from daemon.chat.messages import ChatInput, MediaPart, ToolMode, parse_chat
from daemon.chat.parsing import Dialect, starts_in_reasoning
from daemon.chat.prompt import RenderedPrompt
from daemon.chat.template_values import offered
from daemon.chat.thought_marks import thought_marks
from daemon.core.errors import InvalidRequest, Overloaded
from daemon.core.pictures import PictureRule, count_tokens
from daemon.core.ports import ModelCard, Tokenizing
from daemon.core.repetition import RepetitionPolicy
from daemon.core.requests import Priority, ValidRequest
from daemon.core.settings import Settings
from daemon.core.wire import Constraint, ImageSpan, Reasoning, Span, TokenSpan

T = TypeVar("T")

_BUSY_RETRY = 1.0


class PromptBuilding(Protocol):
    """The chat room's prompt builder, as far as the API needs it. Pure and safe to use from several threads."""

    @property
    def tool_source(self) -> str:
        """The template of chats with tools; empty where the model has none."""
        ...

    def render(self, chat: ChatInput) -> RenderedPrompt:
        """The prompt of a chat. Raises InvalidRequest."""
        ...


@dataclass(frozen=True, slots=True)
class Group:
    """One prompt and the requests for its choices, which share its prefix."""

    requests: tuple[ValidRequest, ...]
    length: Length
    echo: str = ""
    """The prompt's text where a completion must begin with it."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything of a request that is needed to run it."""

    groups: tuple[Group, ...]
    parsing: ParserPlan | None = None
    """How to parse the answers; None: the text is the answer."""

    @property
    def clamped(self) -> str | None:
        """The value for the header that says that max_tokens was lowered."""
        return next((group.length.note for group in self.groups if group.length.note is not None), None)


@dataclass(frozen=True, slots=True)
class Origin:
    """Who asks, and how the answer will be named."""

    name: str
    owner: str
    arrived: float
    """CLOCK_MONOTONIC seconds."""
    priority: Priority | None = None
    """None: not said."""
    request_id: str = ""
    """The `x-request-id` of the request."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt in ids, and what goes with it into every choice."""

    spans: tuple[Span, ...]
    echo: str = ""
    reasoning: Reasoning | None = None
    shown_ids: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    logprobs: int | None = None
    priority: Priority = Priority.LIVE

    @property
    def tokens(self) -> int:
        """Tokens of text and of pictures."""
        return count_tokens(self.spans)


@dataclass(frozen=True, slots=True)
class _Chat:
    """What the thread found out about a chat."""

    rendered: RenderedPrompt
    pictures: PictureRule | None
    images: tuple[ImageSpan, ...]
    parsing: ParserPlan
    constraint: Constraint | None
    priority: Priority
    may_think: bool
    """Whether the answer may begin with a thought that the template has not opened."""
    budget: int | None
    """Most tokens of a thought."""


class Preparing:
    """Prepares requests. Bounded: more bodies at once than may queue are turned away before they cost anything."""

    def __init__(
        self,
        prompts: PromptBuilding,
        tokenizing: Tokenizing,
        speech: Speech,
        in_force: InForce,
        accounts: Accounts,
        threads: Executor,
    ) -> None:
        self._prompts = prompts
        self._tokenizing = tokenizing
        self._speech = speech
        self._in_force = in_force
        self._accounts = accounts
        self._threads = threads
        self._busy = 0

    @property
    def _settings(self) -> Settings:
        return self._in_force.settings

    async def chat(self, body: ChatBody, card: ModelCard, origin: Origin) -> Prepared:
        """Prepare a chat. Raises InvalidRequest, Overloaded and QuotaExceeded."""
        with self._place():
            chat = await self._off_loop(self._chat_work, body, card)
            spans = await self._spans(chat)
        inside, constraint, reasoning = chat.parsing.in_reasoning, chat.constraint, None
        if inside or chat.may_think:
            reasoning = await self._speech.thought(chat.budget, inside=inside, constrained=constraint is not None)
        if constraint is not None and reasoning is not None and inside and not constraint.begins:
            constraint = Constraint(constraint.kind, constraint.text, reasoning.end_ids)
        prompt = _Prompt(
            spans,
            reasoning=reasoning,
            shown_ids=self._speech.shown_ids,
            constraint=constraint,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            priority=chat.priority,
        )
        asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        self._accounts.check(origin.owner, prompt.tokens)
        return Prepared((self._group(body, card, origin, prompt, asked),), chat.parsing)

    async def prompt(self, body: ChatBody, card: ModelCard) -> tuple[RenderedPrompt, tuple[Span, ...]]:
        """A chat's prompt, as text and in ids, for whoever only wants to see or to count it. Raises InvalidRequest and
        Overloaded.
        """
        with self._place():
            chat = await self._off_loop(self._chat_work, body, card)
            return chat.rendered, await self._spans(chat)

    async def completion(self, body: CompletionBody, card: ModelCard, origin: Origin) -> Prepared:
        """Prepare the prompts of a completion. Raises InvalidRequest, Overloaded and QuotaExceeded."""
        parts = prompts_of(body)
        count = len(parts) * (body.n or 1)
        if count > MAX_STREAMS:
            raise InvalidRequest(f"`prompt` and `n` ask for {count} answers; the limit is {MAX_STREAMS}.", "n")
        with self._place():
            constraint = await self._constraint(body)
            prompts = [await self._prompt(body, one, card, constraint) for one in parts]
        self._accounts.check(origin.owner, sum(prompt.tokens for prompt in prompts))
        groups = [
            self._group(body, card, _part(origin, index, len(prompts)), prompt, body.max_tokens)
            for index, prompt in enumerate(prompts)
        ]
        return Prepared(tuple(groups))

    def _chat_work(self, body: ChatBody, card: ModelCard) -> _Chat:
        if body.top_logprobs and not body.logprobs:
            raise InvalidRequest("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")
        chat = parse_chat(chat_fields(body))
        _look(chat, card)
        rendered = self._prompts.render(chat)
        dialect = self._speech.dialect
        answers = self._settings.answers
        inside = starts_in_reasoning(rendered.text, dialect)
        may_think = not inside and _may_think(chat, rendered, dialect)
        forced = chat.tool_choice.mode in {ToolMode.REQUIRED, ToolMode.NAMED}
        parsing = ParserPlan(
            reading_dialect(dialect) if forced else dialect,
            tuple(offered(chat)),
            in_reasoning=inside,
            one_call=body.parallel_tool_calls is False,
            on_empty=answers.on_empty_answer,
        )
        return _Chat(
            rendered,
            card.pictures,
            image_spans(rendered.images, card),
            parsing,
            chat_constraint(body, chat, self._speech, inside=inside, may_think=may_think),
            chat_priority(chat, self._settings.sharing.background, streamed=body.stream or False),
            may_think=may_think,
            budget=budget_of(body, chat, answers, takes_effort=self._speech.takes_effort),
        )

    async def _spans(self, chat: _Chat) -> tuple[Span, ...]:
        """The prompt's text as ids and its pictures, with what the model wants before and behind each."""
        if not chat.images or chat.pictures is None:
            return (TokenSpan(list(await self._tokenizing.encode_rendered(chat.rendered.text))),)
        texts = [segment for segment in chat.rendered.segments() if isinstance(segment, str)]
        runs = [list(await self._tokenizing.encode_rendered(text)) for text in texts]
        for run, following in pairwise(runs):
            run.extend(chat.pictures.before)
            following[:0] = chat.pictures.after
        spans: list[Span] = [TokenSpan(runs[0])]
        for image, run in zip(chat.images, runs[1:], strict=True):
            spans += [image, TokenSpan(run)]
        return tuple(span for span in spans if isinstance(span, ImageSpan) or span.ids)

    async def _constraint(self, body: Generation) -> Constraint | None:
        return await self._off_loop(constraint_of, body) if wants_constraint(body) else None

    async def _prompt(
        self, body: CompletionBody, prompt: str | list[int], card: ModelCard, constraint: Constraint | None
    ) -> _Prompt:
        if isinstance(prompt, str):
            span = TokenSpan(list(await self._tokenizing.encode_plain(prompt)))
            return _Prompt((span,), prompt if body.echo else "", constraint=constraint, logprobs=body.logprobs)
        for index, token in enumerate(prompt):
            if not 0 <= token < card.vocabulary:
                raise InvalidRequest(f"`prompt`: token {token} at {index} is outside 0 to {card.vocabulary - 1}.", "prompt")
        echo = await self._tokenizing.decode(prompt, hide_special=False) if body.echo else ""
        return _Prompt((TokenSpan(prompt),), echo, constraint=constraint, logprobs=body.logprobs)

    def _group(self, body: Generation, card: ModelCard, origin: Origin, prompt: _Prompt, asked: int | None) -> Group:
        if not prompt.tokens:
            raise InvalidRequest("`prompt` holds no token; expected at least one.", "prompt")
        settings = self._settings
        context = own_context(card, self._accounts.person(origin.owner))
        length = fit(prompt.tokens, asked, body.min_tokens, context, settings.server.max_tokens_overflow)
        timeout = settings.sharing.default_timeout_seconds if body.timeout is None else body.timeout
        first = ValidRequest(
            name=origin.name,
            owner=origin.owner,
            spans=prompt.spans,
            max_tokens=length.most,
            min_tokens=length.least,
            sampler=sampler_of(body, card),
            seed=seed_of(body, 0),
            stop_ids=stop_ids_of(body, card),
            stop_strings=stop_strings_of(body),
            logprobs=prompt.logprobs,
            reasoning=prompt.reasoning,
            repetition=self._repetition(body),
            constraint=prompt.constraint,
            priority=prompt.priority if origin.priority is None else origin.priority,
            deadline=None if timeout is None else origin.arrived + timeout,
            hide_special=body.skip_special_tokens is not False,
            shown_ids=prompt.shown_ids,
            request_id=origin.request_id,
        )
        others = [replace(first, name=f"{origin.name}.{choice}", seed=seed_of(body, choice)) for choice in range(1, body.n or 1)]
        return Group((first, *others), length, prompt.echo)

    def _repetition(self, body: Generation) -> RepetitionPolicy | None:
        """What counts as a loop. Nothing does where the model may not end: then repetition is what was asked for."""
        answers = self._settings.answers
        if not answers.detect_repetition or body.ignore_eos:
            return None
        return RepetitionPolicy(answers.repetition_tokens, answers.repetition_count)

    async def _off_loop(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*arguments))

    @contextmanager
    def _place(self) -> Generator[None]:
        """A place among those being prepared: as many as may wait or run afterwards. Raises Overloaded."""
        settings = self._settings
        if self._busy >= settings.server.max_queued + settings.engine.max_batch:
            raise Overloaded("Too many requests are being read at this moment.", _BUSY_RETRY, own_limit=False)
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1


def chat_fields(body: ChatBody) -> dict[str, object]:
    """The fields that were given, for the chat room's parser."""
    return {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not None}


def prompts_of(body: CompletionBody) -> Sequence[str | list[int]]:
    """The prompts of a completion, each one text or ids. Raises InvalidRequest."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest("`prompt` is empty; expected at least one prompt.", "prompt")
    if all(isinstance(item, int) for item in prompt):
        return [[item for item in prompt if isinstance(item, int)]]
    found: list[str | list[int]] = []
    for index, item in enumerate(prompt):
        if isinstance(item, int) or (item == [] and not isinstance(item, str)):
            raise InvalidRequest(
                f"`prompt[{index}]`: a list of prompts holds texts or non-empty lists of ids.", f"prompt[{index}]"
            )
        found.append(item)
    return found


def _part(origin: Origin, index: int, count: int) -> Origin:
    return origin if count == 1 else replace(origin, name=f"{origin.name}-{index}")


def _look(chat: ChatInput, card: ModelCard) -> None:
    """Refuse pictures where the model has no eyes."""
    for message in chat.messages:
        if isinstance(message.content, str):
            continue
        for part in message.content:
            if isinstance(part, MediaPart) and card.pictures is None:
                raise InvalidRequest(f"`{part.where}`: the model {card.name} reads text only.", part.where)


def _may_think(chat: ChatInput, rendered: RenderedPrompt, dialect: Dialect) -> bool:
    """Whether the model may begin its answer with a thought: nobody has said that it should not, and the prompt does not end
    with a thought that is over already, which is how templates keep models from thinking.
    """
    marks = thought_marks(dialect)
    if marks is None or chat.thinking is False or chat.continue_final:
        return False
    return not rendered.text.rstrip().endswith(marks.end)
