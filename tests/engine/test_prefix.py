"""The prefix cache over whole conversations, as templates write them: what is computed again is bounded, and a miss is seen."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from daemon.chat.messages import parse_chat
from daemon.chat.prompt import PromptBuilder
from daemon.core.prefix_watch import Allowance, Miss, MissCause, PrefixWatch, Trace
from daemon.core.settings import BackendKind, EngineSettings
from daemon.core.wire import Reasoning, Started, Submit
from daemon.host.model_directory import read_model_directory
from daemon.host.tokenizer_pool import TokenizerPool
from ops.bench import tiny_hybrid
from tests.chat.template_families import source
from tests.engine.checkpoints import MESSAGE_END, Architecture
from tests.engine.conftest import ModelPath
from tests.engine.workbench import Workbench, ask, text

TURNS = 20
QUESTION, THOUGHT, ANSWER = 310, 35, 55
"""Tokens of each part of a turn, about. What is said takes a step for each token, what is asked one for hundreds."""
PAGE = 256
SETTINGS = EngineSettings(
    backend=BackendKind.CPU, cache_tokens=20_480, max_batch=4, chunk_tokens=512, reserve_tokens=2048, threads=1
)
_WORDS = (
    "the",
    "daemon",
    "keeps",
    "serving",
    "people",
    "who",
    "share",
    "one",
    "model",
    "lighthouse",
    "keeper",
    "letter",
    "north",
)


class Writer:
    """Renders and tokenizes as the front does, with the template of the family the project is made for."""

    def __init__(self, model: Path) -> None:
        reading = read_model_directory(model)
        self.pool = TokenizerPool(reading.model, reading.tokenizer)
        self.prompts = PromptBuilder(replace(reading.model, templates={"default": source("qwen35")}))
        self._random = random.Random(5)  # noqa: S311 - test data

    async def words(self, tokens: int) -> str:
        """Text of about `tokens` tokens."""
        said: list[str] = []
        while len(await self.pool.encode_plain(" ".join(said))) < tokens:
            said += self._random.choices(_WORDS, k=8)
        return " ".join(said)

    async def prompt(self, messages: list[Mapping[str, str]], *, keep: bool) -> list[int]:
        """The ids of a conversation. `keep`: earlier thoughts stay in it."""
        body = {"messages": messages, "chat_template_kwargs": {"preserve_thinking": keep}}
        rendered = self.prompts.render(parse_chat(body))
        return list(await self.pool.encode_rendered(rendered.text))

    async def answer(self, thought: str, content: str) -> list[int]:
        """The ids of an answer whose thought the template has opened."""
        return [*await self.pool.encode_rendered(f"{thought}\n</think>\n\n{content}"), MESSAGE_END]


@dataclass
class Chat:
    """A conversation that grows turn by turn."""

    writer: Writer
    keep: bool
    number: int
    messages: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])
    before: list[int] = field(default_factory=list[int])
    """The sequence of the turn before."""
    prompt: list[int] = field(default_factory=list[int])
    said: list[int] = field(default_factory=list[int])

    async def turn(self) -> Submit:
        """The next question, and the answer that the engine is made to give, token by token."""
        writer = self.writer
        self.messages.append({"role": "user", "content": await writer.words(QUESTION)})
        self.prompt = await writer.prompt(self.messages, keep=self.keep)
        thought, content = await writer.words(THOUGHT), await writer.words(ANSWER)
        self.said = await writer.answer(thought, content)
        self.messages.append({"role": "assistant", "reasoning_content": thought, "content": content})
        forced = Reasoning(end_ids=[], close_ids=self.said, inside=True, budget_left=0)
        return msgspec.structs.replace(ask(self.number, self.prompt, len(self.said)), reasoning=forced)

    def fresh(self) -> int:
        """Tokens of the prompt that the turn before did not have at the same place."""
        pairs = zip(self.before, self.prompt, strict=False)
        common = next((at for at, (one, two) in enumerate(pairs) if one != two), min(len(self.before), len(self.prompt)))
        return len(self.prompt) - common


def started(bench: Workbench, request: int) -> Started:
    return next(event for event in bench.of(request) if isinstance(event, Started))


@pytest.fixture(params=["dense", "hybrid"])
def longtime(request: pytest.FixtureRequest, model_path: ModelPath, tmp_path: Path) -> tuple[Path, Workbench]:
    """A model and its engine for ten thousand steps: on plain models without arithmetic, since pages are all that matters
    there; on hybrids, where recurrent states are kept, the cheapest one there is.
    """
    if request.param == "dense":
        model = model_path(Architecture.LLAMA)
        return model, Workbench(model, msgspec.structs.replace(SETTINGS, backend=BackendKind.NULL))
    model = tiny_hybrid.write(tmp_path / "hybrid", " ".join(_WORDS))
    return model, Workbench(model, SETTINGS)


@pytest.mark.timeout(600)
async def test_conversations_of_twenty_turns_compute_little_again(longtime: tuple[Path, Workbench]) -> None:
    """Two at a time: one whose template keeps everything, one whose template drops earlier thoughts."""
    model, bench = longtime
    interval = bench.backend.hello("boot", 1).limits.interval
    writer = Writer(model)
    chats = [Chat(writer, keep=True, number=1), Chat(writer, keep=False, number=2)]
    watch, misses = PrefixWatch(), list[Miss]()
    for turn in range(TURNS):
        bench.forget()
        answers = bench.run(*[await chat.turn() for chat in chats])
        for chat in chats:
            assert answers[chat.number] == chat.said
            event = started(bench, chat.number)
            again = len(chat.prompt) - event.cached
            if turn:
                allowed = chat.fresh() + PAGE + (interval if chat.keep else 0)
                assert again <= allowed, (turn, chat.keep, again, allowed)
            trace = Trace(chat.prompt)
            trace.finish()
            miss = watch.judge(str(chat.number), trace, event.cached, event.kv_only, Allowance.of_interval(interval))
            misses += [miss] if miss is not None else []
            trace.grow(chat.said[:-1])
            trace.finish()
            watch.remember(str(chat.number), trace)
            chat.before = chat.prompt + chat.said
    assert [miss for miss in misses if miss.cause is not MissCause.TOO_SHORT] == []
    kept, dropped = (len(chat.before) for chat in chats)
    assert kept > TURNS * (QUESTION + THOUGHT + ANSWER)
    assert dropped < kept - (TURNS - 2) * THOUGHT
    writer.pool.close()


def judged(bench: Workbench, before: list[int], prompt: list[int]) -> Miss | None:
    """Run a prompt after another request was remembered, and judge its hit."""
    watch = PrefixWatch()
    trace = Trace(before)
    trace.finish()
    watch.remember("ann", trace)
    bench.forget()
    bench.run(ask(9, prompt, 1))
    event = started(bench, 9)
    now = Trace(prompt)
    now.finish()
    allowance = Allowance.of_interval(bench.backend.hello("boot", 1).limits.interval)
    return watch.judge("ann", now, event.cached, event.kv_only, allowance)


def test_prefix_that_others_pushed_out_is_a_silent_miss(bench: Workbench) -> None:
    """The pool holds 8,192 tokens; two long strangers need all of them."""
    first = text(1500, seed=1)
    bench.run(ask(1, first, 2))
    bench.run(ask(2, text(4000, seed=2), 2), ask(3, text(4000, seed=3), 2))
    miss = judged(bench, first, [*first, *text(100, seed=4)])
    assert miss is not None
    assert miss.cause is MissCause.EVICTED


def test_prefix_without_a_checkpoint_is_a_silent_miss(model_path: ModelPath) -> None:
    """Checkpoints that are given no memory are not kept, and the library says nothing."""
    bench = Workbench(model_path(Architecture.QWEN3_5), msgspec.structs.replace(SETTINGS, checkpoint_memory_mib=0))
    first = text(3000, seed=1)
    bench.run(ask(1, first, 2))
    assert judged(bench, first, [*first, *text(100, seed=4)]) == Miss(MissCause.NO_CHECKPOINT, 2816, 0)


def test_next_turn_is_no_miss(bench: Workbench) -> None:
    first = text(1500, seed=1)
    said = bench.run(ask(1, first, 30))[1]
    assert judged(bench, first, [*first, *said, *text(100, seed=4)]) is None


@pytest.mark.parametrize("every", [1024, 2048])
def test_prompt_edited_in_its_middle_starts_again_at_a_checkpoint_before_it(model_path: ModelPath, every: int) -> None:
    """Checkpoints are made while prefilling, every `checkpoint_tokens`."""
    bench = Workbench(model_path(Architecture.QWEN3_5), msgspec.structs.replace(SETTINGS, checkpoint_tokens=every))
    prompt = text(5000, seed=1)
    bench.run(ask(1, prompt, 2))
    for number, place in enumerate((1500, 2500, 3900), start=2):
        edited = [*prompt[:place], *text(300, seed=number)]
        bench.run(ask(number, edited, 1))
        assert started(bench, number).cached >= place - PAGE - every
