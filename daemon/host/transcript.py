"""What one request has said so far: ids, text, where its thought ends. Untouched by the death of an engine."""

from collections.abc import Sequence

import msgspec

from daemon.core.repetition import RepetitionDetector
from daemon.core.requests import ValidRequest
from daemon.core.wire import OPENING, OnStop, Reasoning, Submit, TokenSpan
from daemon.host.detokenizer import Vocabulary
from daemon.host.stop_strings import StopMatcher


class Transcript:
    """The delivered ids of `request` and the text they make. `special` are the model's special ids."""

    __slots__ = (
        "_detector",
        "_detokenizer",
        "_matcher",
        "_opening",
        "_reasoning",
        "_request",
        "delivered",
        "inside",
        "looping",
        "reasoning_tokens",
        "stop",
    )

    def __init__(self, request: ValidRequest, vocabulary: Vocabulary, special: frozenset[int]) -> None:
        self._request = request
        hidden = frozenset(request.stop_ids)
        if request.hide_special:
            hidden |= special
        self._detokenizer = vocabulary.detokenizer(hidden - request.shown_ids)
        self._matcher = StopMatcher(request.stop_strings) if request.stop_strings else None
        self._reasoning = request.reasoning
        self._detector = None if request.repetition is None else RepetitionDetector(request.repetition)
        self.inside = request.reasoning is not None and request.reasoning.inside
        """Whether the next token is inside a thought."""
        self._opening = OPENING if request.reasoning is not None and request.reasoning.begin_ids and not self.inside else 0
        """Tokens within which a thought may still begin."""
        self.looping = False
        """Whether what was said last runs in circles."""
        self.stop: str | None = None
        """The stop string that has ended the text. Nothing more may be added then."""
        self.delivered: list[int] = []
        self.reasoning_tokens = 0

    def take(self, ids: Sequence[int]) -> str:
        """Add ids; gives the text that became certain."""
        self.delivered.extend(ids)
        if self._detector is not None and self._detector.push(ids):
            self.looping = True
        if self.inside or self._opening:
            return self._take_thought(ids)
        push = self._detokenizer.push
        text = push(ids[0]) if len(ids) == 1 else "".join([push(token) for token in ids])
        return text if self._matcher is None else self._matched(self._matcher, text)

    def _take_thought(self, ids: Sequence[int]) -> str:
        """As `take`, token by token: stop strings do not act from the mark that begins a thought to the one that ends it."""
        acts = self._request.stops_act_in_reasoning
        start = len(self.delivered) - len(ids)
        pieces: list[str] = []
        for index, token in enumerate(ids):
            text = self._detokenizer.push(token)
            was_inside = self.inside
            self._follow(start + index + 1)
            if self._matcher is not None and (acts or not (was_inside or self.inside)):
                text = self._matched(self._matcher, text)
            elif self._matcher is not None and not was_inside:
                text = self._matcher.flush() + text
            pieces.append(text)
            if self.stop is not None:
                break
        return "".join(pieces)

    def _matched(self, matcher: StopMatcher, text: str) -> str:
        """What of a text is certain, up to a stop string."""
        text, self.stop = matcher.feed(text)
        return text

    def _follow(self, length: int) -> None:
        """Whether the token after the first `length` ids is inside a thought."""
        if self.inside:
            self.reasoning_tokens += 1
            self.inside = not self._ends_thought(length)
        elif self._opening:
            self._opening -= 1
            if self._begins_thought(length):
                self._opening = 0
                self.inside = True

    def _ends_thought(self, length: int) -> bool:
        return self._reasoning is not None and self._stands(self._reasoning.end_ids, length)

    def _begins_thought(self, length: int) -> bool:
        return self._reasoning is not None and self._stands(self._reasoning.begin_ids, length)

    def _stands(self, mark: list[int], length: int) -> bool:
        """Whether the first `length` ids end with a mark."""
        return bool(mark) and self.delivered[max(0, length - len(mark)) : length] == mark

    @property
    def gave_up(self) -> bool:
        """Whether a thought was closed because it ran in circles."""
        return self._reasoning is not self._request.reasoning

    def give_up_thought(self) -> bool:
        """The thought runs in circles: let the engine close it when the request is submitted next. False where that was done
        before, or is not wanted.
        """
        reasoning = self._reasoning
        if reasoning is None or not self.inside or reasoning.on_stop is not OnStop.CLOSE or not reasoning.close_ids:
            return False
        self._reasoning = msgspec.structs.replace(reasoning, budget_left=0, on_stop=OnStop.FINISH)
        self.looping = False
        if self._detector is not None:
            self._detector.reset()
        return True

    def finish(self) -> str:
        """The text still held back, when the answer is complete."""
        rest = self._detokenizer.flush()
        if self._matcher is None:
            return rest
        text, stop = self._matcher.feed(rest)
        return text if stop is not None else text + self._matcher.flush()

    def submit(self, link_id: int, attempt: int, rank: int = 0) -> Submit:
        """The command that starts the request, or goes on with it: prompt and delivered tokens, and what is left to do."""
        request, count = self._request, len(self.delivered)
        spans = list(request.spans)
        if count:
            spans.append(TokenSpan(list(self.delivered)))
        return Submit(
            id=link_id,
            attempt=attempt,
            spans=spans,
            origin=request.prompt_tokens,
            max_left=request.max_tokens - count,
            min_left=max(0, request.min_tokens - count),
            sampler=request.sampler,
            seed=request.seed,
            draws=count,
            stop_ids=list(request.stop_ids),
            logprobs=request.logprobs,
            reasoning=self._reasoning_left(),
            constraint=request.constraint,
            rank=rank,
        )

    def _reasoning_left(self) -> Reasoning | None:
        start = self._reasoning
        if start is None:
            return None
        left = None if start.budget_left is None else max(0, start.budget_left - self.reasoning_tokens)
        begin = start.begin_ids if self._opening else []
        return msgspec.structs.replace(start, inside=self.inside, budget_left=left, begin_ids=begin)
