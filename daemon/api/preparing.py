"""From a checked body to `ValidRequest`s: chat to text, text to ids, ids to limits. Work that takes time is off the loop."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from daemon.api.constraints import constraint_of, wants_constraint
from daemon.api.limits import Length, fit
from daemon.api.sampling import sampler_of, seed_of, stop_ids_of, stop_strings_of
from daemon.api.schemas import MAX_STREAMS, ChatBody, CompletionBody, Generation
from daemon.api.speech import Parser, PlainParser
from daemon.chat.messages import ChatInput, MediaPart, parse_chat
from daemon.chat.prompt import RenderedPrompt
from daemon.core.errors import InvalidRequest, Overloaded
from daemon.core.ports import ModelCard, Tokenizing
from daemon.core.requests import ValidRequest
from daemon.core.settings import Settings
from daemon.core.wire import Constraint, TokenSpan

T = TypeVar("T")

_BUSY_RETRY = 1.0


class PromptBuilding(Protocol):
    """The chat room's prompt builder, as far as the API needs it. Pure and safe to use from several threads."""

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
    new_parser: Callable[[], Parser]

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


class Preparing:
    """Prepares requests. Bounded: more bodies at once than may queue are turned away before they cost anything."""

    def __init__(self, prompts: PromptBuilding, tokenizing: Tokenizing, settings: Settings, threads: Executor) -> None:
        self._prompts = prompts
        self._tokenizing = tokenizing
        self._settings = settings
        self._threads = threads
        self._busy = 0

    async def chat(self, body: ChatBody, card: ModelCard, origin: Origin) -> Prepared:
        """Prepare a chat. Raises InvalidRequest and Overloaded."""
        with _Place(self):
            rendered, constraint = await self._off_loop(self._chat_work, body, card)
            ids = await self._tokenizing.encode_rendered(rendered.text)
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        group = self._group(body, card, origin, _Prompt(ids), asked, logprobs, constraint)
        return Prepared((group,), PlainParser)

    async def completion(self, body: CompletionBody, card: ModelCard, origin: Origin) -> Prepared:
        """Prepare the prompts of a completion. Raises InvalidRequest and Overloaded."""
        with _Place(self):
            constraint = await self._constraint(body)
            parts = prompts_of(body)
            if len(parts) * (body.n or 1) > MAX_STREAMS:
                raise InvalidRequest(
                    f"`prompt` and `n` ask for {len(parts) * (body.n or 1)} answers; the limit is {MAX_STREAMS}.", "n"
                )
            prompts = [await self._prompt(one, card, echo=body.echo or False) for one in parts]
        groups = [
            self._group(body, card, _part(origin, index, len(prompts)), prompt, body.max_tokens, body.logprobs, constraint)
            for index, prompt in enumerate(prompts)
        ]
        return Prepared(tuple(groups), PlainParser)

    def _chat_work(self, body: ChatBody, card: ModelCard) -> tuple[RenderedPrompt, Constraint | None]:
        if body.top_logprobs and not body.logprobs:
            raise InvalidRequest("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")
        chat = parse_chat(chat_fields(body))
        _look(chat, card)
        return self._prompts.render(chat), constraint_of(body)

    async def _constraint(self, body: Generation) -> Constraint | None:
        return await self._off_loop(constraint_of, body) if wants_constraint(body) else None

    async def _prompt(self, prompt: str | list[int], card: ModelCard, *, echo: bool) -> "_Prompt":
        if isinstance(prompt, str):
            return _Prompt(await self._tokenizing.encode_plain(prompt), prompt if echo else "")
        for index, token in enumerate(prompt):
            if not 0 <= token < card.vocabulary:
                raise InvalidRequest(f"`prompt`: token {token} at {index} is outside 0 to {card.vocabulary - 1}.", "prompt")
        return _Prompt(tuple(prompt), await self._tokenizing.decode(prompt, hide_special=False) if echo else "")

    def _group(
        self,
        body: Generation,
        card: ModelCard,
        origin: Origin,
        prompt: "_Prompt",
        asked: int | None,
        logprobs: int | None,
        constraint: Constraint | None,
    ) -> Group:
        if not prompt.ids:
            raise InvalidRequest("`prompt` holds no token; expected at least one.", "prompt")
        length = fit(len(prompt.ids), asked, body.min_tokens, card.context, self._settings.server.max_tokens_overflow)
        sampler, stop_ids, stop_strings = sampler_of(body, card), stop_ids_of(body, card), stop_strings_of(body)
        spans = (TokenSpan(list(prompt.ids)),)
        requests = tuple(
            ValidRequest(
                name=origin.name if choice == 0 else f"{origin.name}.{choice}",
                owner=origin.owner,
                spans=spans,
                max_tokens=length.most,
                min_tokens=length.least,
                sampler=sampler,
                seed=seed_of(body, choice),
                stop_ids=stop_ids,
                stop_strings=stop_strings,
                logprobs=logprobs,
                constraint=constraint,
                deadline=None if body.timeout is None else origin.arrived + body.timeout,
                hide_special=body.skip_special_tokens is not False,
            )
            for choice in range(body.n or 1)
        )
        return Group(requests, length, prompt.echo)

    async def _off_loop(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*arguments))

    def enter(self) -> None:
        """Take a place among those being prepared. Raises Overloaded."""
        if self._busy >= self._settings.server.max_queued:
            raise Overloaded("Too many requests are being read at this moment.", _BUSY_RETRY, own_limit=False)
        self._busy += 1

    def leave(self) -> None:
        """Give the place back."""
        self._busy -= 1


@dataclass(frozen=True, slots=True)
class _Prompt:
    ids: tuple[int, ...]
    echo: str = ""


class _Place:
    def __init__(self, preparing: Preparing) -> None:
        self._preparing = preparing

    def __enter__(self) -> None:
        self._preparing.enter()

    def __exit__(self, *_: object) -> None:
        self._preparing.leave()


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
            if isinstance(part, MediaPart) and not card.vision:
                raise InvalidRequest(f"`{part.where}`: the model {card.name} reads text only.", part.where)
