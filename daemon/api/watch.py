"""What one stream's events say about time and tokens: kept for its usage and timings, and added to the meters."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from daemon.api.meters import Meters, PersonMeters
from daemon.chat.parsing import Delta, ReasoningDelta
from daemon.core.events import REPETITION, Broken, Ended, Opened, Paused, Usage


@dataclass(slots=True)
class Watch:
    """One stream of a person, watched. `prompt` is its prompt in tokens, `arrived` when its request came (CLOCK_MONOTONIC)."""

    meters: Meters
    person: PersonMeters
    prompt: int
    arrived: float
    cached: int = 0
    received: int = 0
    """Tokens so far."""
    reasoning: int = 0
    """Tokens of pieces that were thinking, counted by the voices: the parser alone knows."""
    began: float = 0.0
    """When the engine began with the prompt."""
    first: float = 0.0
    last: float = 0.0
    usage: Usage | None = field(default=None)

    def see(self, event: Opened | Paused | Ended | Broken) -> None:
        """Take note of what is no piece."""
        match event:
            case Opened():
                self.cached = event.cached
                self.began = self.arrived if event.at is None else event.at
                self.meters.queue.observe(event.queued)
                self.person.prompt += self.prompt
                self.person.cached += event.cached
                self.meters.prompt_lengths.observe(self.prompt)
            case Paused():
                self.meters.paused += 1
            case Ended():
                self.meters.closed_thoughts.update(event.closings)
                self.meters.repetitions += event.detail == REPETITION
                self._end(event.usage)
            case Broken():
                self._end(event.usage)

    def _end(self, usage: Usage) -> None:
        self.usage = usage
        self.meters.answer_lengths.observe(usage.completion)
        self.meters.whole.observe(monotonic() - self.arrived)
        if self.received:
            self.meters.prefill.observe(self.first - self.began)
            self.meters.decode.observe(self.last - self.first)

    def count_reasoning(self, deltas: Sequence[Delta], tokens: int) -> None:
        """Count the tokens of a piece as thinking where the piece was. A host that knows counts better; see `so_far`."""
        if deltas and type(deltas[0]) is ReasoningDelta:
            self.reasoning += tokens

    def so_far(self) -> Usage:
        """Usage at this moment."""
        told = self.usage
        if told is None:
            return Usage(self.prompt, self.cached, self.received, self.reasoning)
        return Usage(told.prompt, told.cached, told.completion, max(told.reasoning, min(self.reasoning, told.completion)))

    def tokens(self, count: int) -> None:
        """Take note of the tokens of a piece."""
        if not count:
            return
        now = monotonic()
        if self.received:
            self.meters.between.observe((now - self.last) / count, count)
        else:
            self.first = now
            self.meters.first_token.observe(now - self.arrived)
        self.last = now
        self.received += count
        self.person.generated += count
