"""Grammars: compiled by llguidance off the engine's thread with a time limit, kept for the next request, followed token by
token, and brought back to where they were when a request is resumed.

1. A grammar begins to hold at once, or after the ids in `Constraint.begins` (the end of a thought, which may be several ids).
2. Ids the engine itself puts in to close a thought are not part of what a grammar describes that begins behind the thought. A
   grammar that holds from the first token on describes them too.
3. On a resume the delivered tokens are replayed by the same two rules.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import torch
from exllamav3 import Tokenizer
from exllamav3.generator.filter import Filter
from llguidance import LLMatcher, LLTokenizer, grammar_from

from daemon.core.wire import Constraint, ConstraintKind

COMPILE_SECONDS = 10.0
"""Longest a grammar may take to compile; then its request is refused."""
KEPT_GRAMMARS = 64

WHITESPACE = r"[ \n\t]{0,24}"
"""Between the parts of a JSON document. Bounded, because a model that has lost its way would say blanks for ever."""

_Key: TypeAlias = tuple[ConstraintKind, str]


def _grammar(constraint: Constraint) -> str:
    """The grammar in llguidance's own form. Raises where it cannot even be read."""
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(constraint.text, defaults={"whitespace_pattern": WHITESPACE})
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_regex(constraint.text)
        case ConstraintKind.LARK:
            return LLMatcher.grammar_from_lark(constraint.text)
        case ConstraintKind.GBNF:
            return grammar_from("gbnf", constraint.text)


class GrammarBroken(Exception):
    """A token does not fit the grammar, or llguidance has given up on it."""


class GrammarFilter(Filter):
    """One request's place in its grammar. `words` is the width of its masks in 32-bit words; `close_ids` are what the engine
    would put in to end the thought before it.
    """

    def __init__(
        self, tokenizer: Tokenizer, words: int, matcher: LLMatcher, begins: Sequence[int], close_ids: Sequence[int]
    ) -> None:
        # The library checks drafts one by one where a filter may wake up among them; our own beginnings may be several ids.
        super().__init__(tokenizer, begins[-1] if begins else None, None, eos_after_completed=True)
        self._matcher = matcher
        self._begins = tuple(begins)
        self._tail = _after(close_ids, self._begins)
        self._recent: list[int] = []
        self._stopped = False
        self.is_active = not self._begins
        self._mask = torch.zeros((1, words), dtype=torch.int32)

    def replay(self, delivered: Sequence[int]) -> None:
        """Follow the ids an earlier attempt delivered. Raises GrammarBroken where they do not fit the grammar."""
        skip = 0
        for index, token in enumerate(delivered):
            if skip:
                skip -= 1
                continue
            was_active = self.is_active
            if self.advance(token, forced=False):
                return
            if self.is_active and not was_active:
                skip = _common(self._tail, delivered[index + 1 :])

    def advance(self, token: int, *, forced: bool) -> bool:
        """Take a token that was delivered. True: the grammar is complete. Raises GrammarBroken where the token does not fit."""
        if self._stopped:
            return False
        if not self.is_active:
            self._recent.append(token)
            del self._recent[: -len(self._begins)]
            self.is_active = tuple(self._recent) == self._begins
            return False
        if forced and self._begins:
            return False
        if not self._matcher.consume_token(token):
            raise GrammarBroken(f"the grammar does not allow token {token} here: {self._matcher.get_error()}")
        if self._matcher.is_stopped():
            self._stopped = True
            self.is_active = False
            return True
        return False

    def get_next_logit_mask(self) -> torch.Tensor:
        """The tokens allowed now, a bit each, shape (1, ceil(vocabulary / 32)). Called on one of the library's threads."""
        self._matcher.unsafe_compute_mask_ptr(self._mask.data_ptr(), self._mask.nbytes)
        if self._matcher.is_error():
            raise GrammarBroken(f"the grammar cannot go on: {self._matcher.get_error()}")
        return self._mask

    def is_completed(self) -> bool:
        """Whether nothing more can follow."""
        return self._stopped

    def use_background_worker(self) -> bool:
        """Masks are computed on the library's threads, beside the forward pass."""
        return True


def _after(close_ids: Sequence[int], begins: tuple[int, ...]) -> tuple[int, ...]:
    """What follows `begins` in the ids that close a thought."""
    size = len(begins)
    for start in range(len(close_ids) - size + 1) if size else ():
        if tuple(close_ids[start : start + size]) == begins:
            return tuple(close_ids[start + size :])
    return ()


def _common(tail: Sequence[int], following: Sequence[int]) -> int:
    """How many of the ids after the beginning were put in by the engine: all of the tail that is there, or none."""
    there = min(len(tail), len(following))
    return there if tuple(tail[:there]) == tuple(following[:there]) else 0


def _dead_end(matcher: LLMatcher) -> str:
    """Why nothing can ever be written; empty where something can. llguidance takes such grammars, as `{"$ref": "#"}` is one, and
    gives up at the first token.
    """
    probe = matcher.deep_copy()
    probe.compute_bitmask()
    return "no text fits it" if probe.is_error() else ""


@dataclass(frozen=True, slots=True)
class Compiled:
    """The end of a compilation: a matcher at the grammar's beginning, or why there is none."""

    constraint: Constraint
    matcher: LLMatcher | None
    problem: str = ""


class GrammarCompiler:
    """Compiles grammars for one tokenizer. `wake` is called, from another thread, when something is ready to be collected."""

    def __init__(self, tokenizer: Tokenizer, wake: Callable[[], None], limit: float = COMPILE_SECONDS) -> None:
        self._exl3_tokenizer = tokenizer
        self._tokenizer = LLTokenizer(tokenizer.tokenizer.to_str(), eos_token=list(tokenizer.config.eos_token_id_list))
        self._wake = wake
        self._limit = limit
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="grammar")
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, LLMatcher] = OrderedDict()
        self._done: list[Compiled] = []
        self._running: set[_Key] = set()

    def find(self, constraint: Constraint) -> LLMatcher | None:
        """A matcher for a grammar compiled earlier, else None."""
        key = (constraint.kind, constraint.text)
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            self._kept.move_to_end(key)
            return kept.deep_copy()

    def start(self, constraint: Constraint) -> None:
        """Compile; `collect` gives the result. The same grammar is compiled once at a time."""
        key = (constraint.kind, constraint.text)
        with self._lock:
            if key in self._running:
                return
            self._running.add(key)
        timer = threading.Timer(
            self._limit, self._finish, (constraint, None, f"it took longer than {self._limit:g} s to compile")
        )
        timer.daemon = True
        timer.start()
        self._threads.submit(self._compile, constraint, timer)

    def collect(self) -> list[Compiled]:
        """What has been compiled, or given up, since the last time."""
        if not self._done:
            return []
        with self._lock:
            done, self._done = self._done, []
        return done

    def ready(self) -> bool:
        """Whether `collect` has something to give."""
        return bool(self._done)

    def filter(self, matcher: LLMatcher, constraint: Constraint, close_ids: Sequence[int]) -> GrammarFilter:
        """A request's own filter over `matcher`."""
        words = (self._tokenizer.vocab_size + 31) // 32
        return GrammarFilter(self._exl3_tokenizer, words, matcher, constraint.begins, close_ids)

    def _compile(self, constraint: Constraint, timer: threading.Timer) -> None:
        try:
            matcher = LLMatcher(self._tokenizer, _grammar(constraint))
            problem = matcher.get_error() if matcher.is_error() else _dead_end(matcher)
        except Exception as failure:  # noqa: BLE001 - llguidance raises several kinds for a bad grammar; all end the request
            matcher, problem = None, str(failure) or type(failure).__name__
        timer.cancel()
        self._finish(constraint, None if problem else matcher, problem)

    def _finish(self, constraint: Constraint, matcher: LLMatcher | None, problem: str) -> None:
        key = (constraint.kind, constraint.text)
        with self._lock:
            if matcher is not None:
                self._kept[key] = matcher
                while len(self._kept) > KEPT_GRAMMARS:
                    self._kept.popitem(last=False)
            if key not in self._running:
                return
            self._running.discard(key)
            self._done.append(Compiled(constraint, matcher.deep_copy() if matcher is not None else None, problem))
        self._wake()
