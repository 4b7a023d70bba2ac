"""What one request has said so far: ids, text, where its thought ends. Untouched by the death of an engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from daemon.core.requests import ValidRequest
from daemon.core.wire import Reasoning, Submit, TokenSpan
from daemon.host.detokenizer import Vocabulary
from daemon.host.stop_strings import StopMatcher


@dataclass(frozen=True, slots=True)
class Text:
    """Text that became certain, and the stop string that ended it."""

    text: str
    stop: str | None = None


class Transcript:
    """The delivered ids of `request` and the text they make. `special` are the model's special ids."""

    __slots__ = ("_detokenizer", "_end_ids", "_matcher", "_reasoning", "_request", "delivered", "inside", "reasoning_tokens")

    def __init__(self, request: ValidRequest, vocabulary: Vocabulary, special: frozenset[int]) -> None:
        self._request = request
        hidden = frozenset(request.stop_ids)
        if request.hide_special:
            hidden |= special
        self._detokenizer = vocabulary.detokenizer(hidden - request.shown_ids)
        self._matcher = StopMatcher(request.stop_strings) if request.stop_strings else None
        self._reasoning = request.reasoning
        self._end_ids = [] if request.reasoning is None else request.reasoning.end_ids
        self.inside = request.reasoning is not None and request.reasoning.inside
        """Whether the next token is inside a thought."""
        self.delivered: list[int] = []
        self.reasoning_tokens = 0

    def take(self, ids: Sequence[int]) -> Text:
        """Add ids. After a stop string nothing more may be added."""
        self.delivered.extend(ids)
        push = self._detokenizer.push
        if self.inside:
            return self._take_thought(ids)
        text = push(ids[0]) if len(ids) == 1 else "".join([push(token) for token in ids])
        if self._matcher is None:
            return Text(text)
        return Text(*self._matcher.feed(text))

    def _take_thought(self, ids: Sequence[int]) -> Text:
        """As `take`, token by token: stop strings begin to act after the token that ends the thought."""
        acts = self._request.stops_act_in_reasoning
        start = len(self.delivered) - len(ids)
        pieces: list[str] = []
        for index, token in enumerate(ids):
            text = self._detokenizer.push(token)
            matched = self._matcher is not None and (acts or not self.inside)
            if self.inside:
                self.reasoning_tokens += 1
                self.inside = not self._ends_thought(start + index + 1)
            if self._matcher is not None and matched:
                text, stop = self._matcher.feed(text)
                if stop is not None:
                    return Text("".join(pieces) + text, stop)
            pieces.append(text)
        return Text("".join(pieces))

    def _ends_thought(self, length: int) -> bool:
        end = self._end_ids
        return bool(end) and self.delivered[max(0, length - len(end)) : length] == end

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
        return Reasoning(start.end_ids, start.close_ids, self.inside, left, start.on_stop)
