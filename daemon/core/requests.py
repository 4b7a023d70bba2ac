"""A request that has been checked. Beyond the door (`api/`) only these values exist."""

from dataclasses import dataclass
from enum import Enum

from daemon.core.pictures import count_tokens
from daemon.core.repetition import RepetitionPolicy
from daemon.core.wire import Constraint, Reasoning, Sampler, Span


class Priority(Enum):
    """Whether somebody is waiting in front of a screen."""

    LIVE = "live"
    BACKGROUND = "background"


@dataclass(frozen=True, slots=True)
class ValidRequest:
    """One stream of tokens to generate. `n` choices are n of these. Limits are already fitted to the context."""

    name: str
    """The public id, as in `chatcmpl-…`; what people quote when they ask for help."""
    owner: str
    """Whose key it came with; `local` where keys are not used."""
    spans: tuple[Span, ...]
    max_tokens: int
    min_tokens: int = 0
    sampler: Sampler = Sampler()
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()
    """Ids that end the answer; empty with `ignore_eos`."""
    stop_strings: tuple[str, ...] = ()
    stops_act_in_reasoning: bool = False
    logprobs: int | None = None
    reasoning: Reasoning | None = None
    repetition: RepetitionPolicy | None = None
    """What counts as a loop, at which the answer is ended; None: nothing does."""
    constraint: Constraint | None = None
    priority: Priority = Priority.LIVE
    deadline: float | None = None
    """CLOCK_MONOTONIC seconds after which nobody waits for the answer any more."""
    hide_special: bool = True
    """Leave special tokens (as a tokenizer defines them) out of the text, but for those in `shown_ids`."""
    shown_ids: frozenset[int] = frozenset()
    """Special ids that are part of the text nevertheless: the tags that parsers look for."""
    request_id: str = ""
    """The `x-request-id` of the HTTP request it belongs to: several choices, and a line in the log of a proxy, may share it."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, those of pictures included."""
        return count_tokens(self.spans)
