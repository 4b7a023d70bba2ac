"""From a chat to the text that is tokenized. Pure and synchronous: the caller runs it off the event loop."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from daemon.chat.abilities import Abilities
from daemon.chat.control_tokens import CONTINUE, IMAGE, ControlTokens
from daemon.chat.messages import ChatInput, MediaPart, Message
from daemon.chat.normalise import normalise
from daemon.chat.sandbox_budget import Limits
from daemon.chat.template_values import go_on, offered, template_messages, template_variables
from daemon.chat.templates import ChatTemplate, TemplateCompiler, choose
from daemon.core.errors import InvalidRequest, TemplateFailed
from daemon.core.guarded import MARK
from daemon.core.model import ModelDirectory


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt, ready for `Tokenizing.encode_rendered` (a prompt with pictures: one call for each text of `segments`)."""

    text: str
    """May hold marks of `core/guarded.py` and, where there are `images`, of pictures: see `readable` for people's eyes."""
    template: str
    """Which of the model's templates was used: `default` or `tool_use`."""
    images: tuple[MediaPart, ...] = ()

    @property
    def readable(self) -> str:
        """The text without marks, as `/apply-template` shows it."""
        return self.text.replace(MARK, "").replace(IMAGE, "")

    def segments(self) -> Iterator[str | MediaPart]:
        """Texts and pictures in their order."""
        first, *rest = self.text.split(IMAGE)
        yield first
        for image, text in zip(self.images, rest, strict=True):
            yield image
            yield text


class PromptBuilder:
    """Renders chats with the templates of one model. Safe to use from several threads at once.

    `media` says that the model can look at pictures. `clock` gives monotonic seconds, `now` what templates print as the date.
    """

    def __init__(
        self,
        model: ModelDirectory,
        *,
        media: bool = False,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._model = model
        self._media = media
        self._marks = ControlTokens(model.added, (*model.templates.values(), model.bos_token, model.eos_token))
        constants = {"bos_token": model.bos_token, "eos_token": model.eos_token}
        compiler = TemplateCompiler(self._marks.remark, limits=limits, clock=clock, now=now, constants=constants)
        self._templates: dict[str, ChatTemplate | TemplateFailed] = {}
        for name, source in model.templates.items():
            try:
                self._templates[name] = compiler.compile(name, source)
            except TemplateFailed as error:
                self._templates[name] = error

    @property
    def problem(self) -> TemplateFailed | None:
        """Why no chat can be served, if none can: no template, or a broken one. Completions work nevertheless."""
        try:
            self._choose(with_tools=False)
        except TemplateFailed as error:
            return error
        return None

    @property
    def source(self) -> str:
        """The template of ordinary chats, for whoever must guess the model's formats from it; empty where there is none."""
        name = choose(self._model.templates, with_tools=False)
        return "" if name is None else self._model.templates[name]

    @property
    def tool_source(self) -> str:
        """The template of chats with tools."""
        name = choose(self._model.templates, with_tools=True)
        return "" if name is None else self._model.templates[name]

    @property
    def abilities(self) -> Abilities:
        """What the template of ordinary chats can take."""
        return self._abilities(with_tools=False)

    @property
    def supports_tools(self) -> bool:
        """Whether declared tools reach the model."""
        return self._abilities(with_tools=True).tools

    @property
    def supports_thinking(self) -> bool:
        """Whether the template knows about thoughts: it can switch them, open one or show earlier ones."""
        template = self._templates.get(choose(self._model.templates, with_tools=False) or "")
        if not isinstance(template, ChatTemplate):
            return False
        switches = template.variables & {"enable_thinking", "thinking", "reasoning_effort", "thinking_budget"}
        return bool(switches or template.abilities.reasoning_keys or "<think>" in template.source)

    def render(self, chat: ChatInput) -> RenderedPrompt:
        """The prompt of a chat. Raises InvalidRequest (TemplateFailed where there is no template or it refuses)."""
        template = self._choose(with_tools=bool(offered(chat)))
        abilities = replace(template.abilities, media=self._media)
        messages = normalise(chat.messages, abilities, continue_final=chat.continue_final)
        values = template_messages(messages, abilities, self._marks)
        if chat.continue_final:
            go_on(values, abilities)
        variables = template_variables(chat, template, self._marks)
        text = template.render({**variables, "messages": values})
        if chat.continue_final:
            text = _cut(text)
        images = tuple(part for message in messages for part in _media_of(message))
        if text.count(IMAGE) != len(images):
            raise TemplateFailed("The model's chat template loses a picture.", "messages", "template_failed")
        return RenderedPrompt(self._marks.settle(text), template.name, images)

    def _choose(self, *, with_tools: bool) -> ChatTemplate:
        name = choose(self._model.templates, with_tools=with_tools)
        if name is None:
            raise TemplateFailed(
                f"The model {self._model.name} has no chat template: tokenizer_config.json has no `chat_template` and there is no"
                " chat_template.jinja beside it. Plain completions work; for chats, put the template of its family there.",
                "messages",
                "no_chat_template",
            )
        template = self._templates[name]
        if isinstance(template, TemplateFailed):
            raise TemplateFailed(template.message, template.param, template.code)
        return template

    def _abilities(self, *, with_tools: bool) -> Abilities:
        template = self._templates.get(choose(self._model.templates, with_tools=with_tools) or "")
        return template.abilities if isinstance(template, ChatTemplate) else Abilities(tools=False, reasoning_keys=())


def _cut(text: str) -> str:
    before, mark, _ = text.rpartition(CONTINUE)
    if not mark:
        raise InvalidRequest(
            "The model's chat template does not show the last message, so it cannot be continued.", "continue_final_message"
        )
    return before


def _media_of(message: Message) -> Iterator[MediaPart]:
    if not isinstance(message.content, str):
        yield from (part for part in message.content if isinstance(part, MediaPart))
