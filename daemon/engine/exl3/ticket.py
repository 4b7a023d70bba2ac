"""One request inside the engine, and the desk where everything that happens to requests is written down.

A ticket outlives the library's jobs: after a contained fault the same ticket continues in a new job, from the prompt and
what was generated so far.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import torch
from exllamav3.generator.pagetable import CachePage
from exllamav3.tokenizer import MMEmbedding

from daemon.core.wire import (
    Event,
    Failed,
    FailureClass,
    Finished,
    FinishReason,
    ImageSpan,
    Prefilling,
    Started,
    Submit,
    Suspended,
    TokenLogprob,
    Tokens,
    Waiting,
)
from daemon.engine.exl3.constraint import GrammarFilter
from daemon.engine.exl3.thought import Thought
from daemon.engine.tensors import flags

PROBE = 0
"""Id of the engine's own request; the front's ids begin at 1."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A request the engine has taken, with what has happened to it in this attempt."""

    request: Submit
    ids: list[int]
    """The sequence as submitted: prompt, then what earlier attempts delivered. Pictures stand in it as ids of their own."""
    arrival: int
    rank: int
    stops: frozenset[int]
    position: int
    """Where the next token stands in the sequence."""
    thought: Thought | None = None
    grammar: GrammarFilter | None = None
    started: bool = False
    waiting: bool = False
    """A wait was reported and is not over."""
    stumbled: bool = False
    """Whether a pass over its prompt has failed once without a reason that is known."""
    passed_over: bool = False
    """It was pending at the end of the last step."""
    ended: bool = False
    """Its last event is on the desk."""
    kv_only: int = 0
    """Pages of KV found that lacked a recurrent checkpoint."""
    cached: int = 0
    """Tokens it found in the prefix cache."""
    accepted: int = 0
    """Draft tokens that the model accepted."""
    rejected: int = 0
    looked_at: dict[str, MMEmbedding] = field(default_factory=dict[str, MMEmbedding])
    """What the vision tower gave for its pictures, by digest, as far as it is known."""

    @property
    def pictures(self) -> list[ImageSpan]:
        """The pictures in its prompt, in their order."""
        return [span for span in self.request.spans if isinstance(span, ImageSpan)]

    @property
    def id(self) -> int:
        """The request's id on the link."""
        return self.request.id

    @property
    def attempt(self) -> int:
        """The attempt its events carry."""
        return self.request.attempt

    @property
    def generating(self) -> bool:
        """Whether it has been given a token in this attempt."""
        return self.position > len(self.ids)

    @property
    def given(self) -> int:
        """Tokens it has been given in this attempt."""
        return self.position - len(self.ids)

    @property
    def prompt(self) -> Sequence[int]:
        """The ids before generated text begins."""
        return self.ids[: self.request.origin]

    @property
    def index(self) -> int:
        """Tokens generated so far, in all attempts."""
        return self.position - self.request.origin


@dataclass(frozen=True, slots=True)
class Standing:
    """A request as it stands before it enters the generator: where it goes on, and the ids it must still put in."""

    ticket: Ticket
    ids: list[int]
    forced: list[int]


@dataclass(slots=True)
class Counts:
    """Totals since the engine started."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    accepted: int = 0
    rejected: int = 0


@dataclass(slots=True)
class Desk:
    """What the jobs of one step share. The backend clears it before a step and reads it afterwards."""

    events: list[Event] = field(default_factory=list[Event])
    ended: list[Ticket] = field(default_factory=list[Ticket])
    stumbled: list[Ticket] = field(default_factory=list[Ticket])
    """Requests whose prompt is to be tried once more."""
    starved: list[Ticket] = field(default_factory=list[Ticket])
    """Their prefill ran out of memory."""
    spoilt: list[CachePage] = field(default_factory=list[CachePage])
    """Pages whose content is not to be trusted once nobody holds them."""
    lost: BaseException | None = None
    """A device error that the library has swallowed."""
    logits: torch.Tensor | None = None
    """Those of the last forward pass: (rows, tokens, padded vocabulary)."""
    passes: int = 0
    """Forward passes so far."""
    peaks: torch.Tensor | None = None
    """The largest of each row and token."""
    finite: list[bool] | None = None
    began: float = 0.0
    """When the step began, by CLOCK_MONOTONIC: requests that enter it get their pages at once."""
    decoded: int = 0
    prefilled: int = 0
    prefill_passes: int = 0
    prefill_seconds: float = 0.0
    prefill_done: bool = False
    """This step's prefill round is over."""
    counts: Counts = field(default_factory=Counts)

    def begin_step(self) -> None:
        """Forget the last step's measures; events stay until they are taken."""
        self.began = time.monotonic()
        self.decoded = 0
        self.prefilled = 0
        self.prefill_passes = 0
        self.prefill_seconds = 0.0
        self.prefill_done = False
        self.lost = None

    def take_events(self) -> list[Event]:
        """The events since the last time, in order."""
        events, self.events = self.events, []
        return events

    def begin_rows(self, logits: torch.Tensor) -> None:
        """A forward pass has given logits."""
        self.logits = logits
        self.passes += 1
        self.peaks = logits.amax(dim=-1)
        self.finite = None

    def row_of(self, logits: torch.Tensor) -> int:
        """Which row and token of the pass a job was given the logits of: with drafts it may not look at all it could."""
        whole = self.logits
        if whole is None:
            return 0
        rows, tokens, _ = whole.stride()
        row, left = divmod(int(logits.storage_offset()) - int(whole.storage_offset()), rows)
        return row * whole.shape[1] + left // tokens

    def is_finite(self, row: int) -> bool:
        """Whether a row's logits are numbers. Read for all rows at once, after the library's own synchronisation."""
        if self.finite is None:
            self.finite = [] if self.peaks is None else flags(torch.isfinite(self.peaks))
        return self.finite[row]

    def start(self, ticket: Ticket, cached: int, new_pages: int, page: int) -> None:
        """The ticket holds its pages."""
        ticket.started = True
        ticket.cached = cached
        ticket.waiting = False
        self.counts.prompt_tokens += len(ticket.ids)
        self.counts.cached_tokens += cached
        self.events.append(Started(ticket.id, ticket.attempt, cached, new_pages, ticket.kv_only * page, self.began))

    def prefilling(self, ticket: Ticket, done: int, total: int) -> None:
        """`done` of the prompt's `total` tokens are in the cache."""
        self.events.append(Prefilling(ticket.id, ticket.attempt, done, total))

    def token(self, ticket: Ticket, token: int, logprob: TokenLogprob | None) -> None:
        """The next token of the ticket."""
        start = ticket.position
        ticket.position = start + 1
        self.decoded += 1
        before = self.events[-1] if self.events else None
        if type(before) is Tokens and before.id == ticket.request.id and before.start + len(before.ids) == start:
            # The next one of a draft that was accepted.
            before.ids.append(token)
            if logprob is not None:
                before.logprobs.append(logprob)
            return
        self.events.append(
            Tokens(ticket.request.id, ticket.request.attempt, start, [token])
            if logprob is None
            else Tokens(ticket.request.id, ticket.request.attempt, start, [token], [logprob])
        )

    def drafted(self, ticket: Ticket, accepted: int, rejected: int) -> None:
        """So many draft tokens of the ticket were accepted and rejected, counted over all its jobs in this attempt."""
        self.counts.accepted += accepted - ticket.accepted
        self.counts.rejected += rejected - ticket.rejected
        ticket.accepted, ticket.rejected = accepted, rejected
        for place, event in enumerate(self.events):
            if isinstance(event, Finished) and event.id == ticket.id:
                self.events[place] = msgspec.structs.replace(event, accepted=accepted, rejected=rejected)

    def wait(self, ticket: Ticket, pages: int) -> None:
        """The ticket waits for pages or a slot; said once a wait."""
        ticket.waiting = True
        self.events.append(Waiting(ticket.id, ticket.attempt, pages))

    def finish(self, ticket: Ticket, reason: FinishReason) -> None:
        """The request went well."""
        thought = ticket.thought
        closed, spent = (0, 0) if thought is None else (thought.closed, thought.spent_budgets)
        self._end(ticket)
        self.events.append(Finished(ticket.id, ticket.attempt, reason, closed_thoughts=closed, spent_budgets=spent))

    def fail(self, ticket: Ticket, kind: FailureClass, detail: str) -> None:
        """The request did not go well; said once."""
        if not ticket.ended:
            self._end(ticket)
            self.events.append(Failed(ticket.id, ticket.attempt, kind, detail))

    def set_aside(self, ticket: Ticket, kept: int) -> None:
        """The request is suspended with `kept` tokens in the prefix cache."""
        self._end(ticket)
        self.events.append(Suspended(ticket.id, ticket.attempt, kept))

    def _end(self, ticket: Ticket) -> None:
        ticket.ended = True
        self.ended.append(ticket)
