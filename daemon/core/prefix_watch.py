"""Notices a prefix cache that fails in silence: a request that goes on with an earlier one and finds little or nothing cached.

Engines hash prompts in pages; so does this file, with digests of its own, chained, so that two sequences share exactly the
pages whose digests agree. Of the last conversations of each owner it keeps the chain and a few tokens, never text. What is
judged, in this order:

1. The request goes on with an earlier one: it begins with that one's prompt. It should find all whole pages that the two share,
   but for what lies behind the last recurrent checkpoint on hybrid models (`Allowance`).
   a. They share no whole page: TOO_SHORT.
   b. The keys and values are there, their checkpoint is not: NO_CHECKPOINT.
   c. They are not there: EVICTED.
2. It does not, but the end of the earlier prompt stands somewhere in this one: the same conversation, in which something earlier
   reads differently now. If that costs as much as a miss, TEMPLATE_CHANGED.
3. Otherwise it is a new conversation, which owes nobody a hit.

A shortfall within the allowance, or below an eighth of what should have been found, is no miss.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b

import msgspec

PAGE = 256
"""Tokens a page."""
DIGEST = 8
"""Bytes a page's digest: a false match among some thousand pages would only spoil one judgement."""
_WORD = 4
"""Bytes a token."""
_OPENING = 16
"""Tokens at a prompt's end that open the answer. Templates write them differently once the answer stands behind them."""
_WHOLE = 32
"""Prompts up to this length are only gone on with if all of them is repeated."""
_TAIL = 64
"""Tokens before the opening by which a conversation is known again."""
_SHARE = 8


class MissCause(Enum):
    """Why a prefix that should have been cached was computed again."""

    EVICTED = "evicted"
    """Others needed the room, or the request before it was never kept."""
    NO_CHECKPOINT = "no_checkpoint"
    """Hybrid models: keys and values were found, but no recurrent state from which to go on."""
    TEMPLATE_CHANGED = "template_changed"
    """The template or the client wrote an earlier turn differently this time."""
    TOO_SHORT = "too_short"
    """What the two requests share is less than a page."""


class PrefixFigures(msgspec.Struct, frozen=True):
    """Totals since the daemon started, in tokens and in requests."""

    queries: int = 0
    """Prompt tokens of requests that were started."""
    hits: int = 0
    """Those found in the cache."""
    evicted: int = 0
    no_checkpoint: int = 0
    template_changed: int = 0
    too_short: int = 0
    last: str = ""
    """The last miss worth a warning, in words."""

    def count(self, cause: MissCause) -> int:
        """Silent misses by cause."""
        match cause:
            case MissCause.EVICTED:
                return self.evicted
            case MissCause.NO_CHECKPOINT:
                return self.no_checkpoint
            case MissCause.TEMPLATE_CHANGED:
                return self.template_changed
            case MissCause.TOO_SHORT:
                return self.too_short


@dataclass(frozen=True, slots=True)
class Allowance:
    """Tokens that may be computed again although they were computed before."""

    lost: int = PAGE
    """Because their keys and values are gone: the page that was being written."""
    behind: int = PAGE
    """Because they lie behind the last recurrent checkpoint."""

    @classmethod
    def of_interval(cls, interval: int) -> "Allowance":
        """For a model whose recurrent checkpoints are `interval` tokens apart; 0: it has no recurrent state."""
        return cls(behind=interval + PAGE)


@dataclass(frozen=True, slots=True)
class Miss:
    """A silent miss. In tokens."""

    cause: MissCause
    expected: int
    """What should have been found."""
    cached: int
    """What was found."""


class Trace:
    """One request's sequence of ids, hashed page by page when told: an 80,000 token prompt takes milliseconds, which the
    caller may spread.
    """

    __slots__ = ("_data", "_digests", "_ids", "_taken", "prompt")

    def __init__(self, prompt: Sequence[int]) -> None:
        self._ids = prompt
        self._taken = 0
        self._data = bytearray()
        self._digests = bytearray()
        self.prompt = len(prompt)
        """Tokens of the prompt."""

    def grow(self, ids: Sequence[int]) -> None:
        """The sequence goes on with `ids`."""
        self._ids = [*self._ids[self._taken :], *ids]
        self._taken = 0

    def advance(self, pages: int) -> bool:
        """Hash up to `pages` more pages. True: all is hashed."""
        ids = self._ids[self._taken : self._taken + pages * PAGE]
        self._taken += len(ids)
        self._data += array("I", ids).tobytes()
        size = PAGE * _WORD
        for page in range(len(self._digests) // DIGEST, len(self._data) // size):
            before = bytes(self._digests[-DIGEST:])
            self._digests += blake2b(before + self._data[page * size : (page + 1) * size], digest_size=DIGEST).digest()
        return self._taken == len(self._ids)

    def finish(self) -> None:
        """Hash whatever is left."""
        self.advance(-(-len(self._ids) // PAGE))

    def tokens(self, start: int, stop: int) -> bytes:
        """The tokens from `start` to `stop`, as bytes."""
        return bytes(self._data[max(0, start) * _WORD : max(0, stop) * _WORD])

    @property
    def digests(self) -> bytes:
        """The chain: one digest a whole page."""
        return bytes(self._digests)

    def contains(self, tokens: bytes) -> bool:
        """Whether a run of tokens stands somewhere in the sequence."""
        place = self._data.find(tokens)
        while place >= 0 and place % _WORD:
            place = self._data.find(tokens, place + 1)
        return place >= 0


@dataclass(frozen=True, slots=True)
class _Remembered:
    """An earlier request."""

    prompt: int
    """Tokens of its prompt."""
    digests: bytes
    """The chain of prompt and answer."""
    head: bytes
    """Its first page of tokens."""
    tail: bytes
    """The last tokens of its prompt before what opens the answer; empty where it is too short to be told from others."""

    def shared(self, other: bytes) -> int:
        """Whole pages in common with another chain. Digests are chained: where one agrees, all before it do."""
        low, high = 0, min(len(self.digests), len(other)) // DIGEST
        while low < high:
            middle = (low + high + 1) // 2
            span = slice((middle - 1) * DIGEST, middle * DIGEST)
            if self.digests[span] == other[span]:
                low = middle
            else:
                high = middle - 1
        return low

    def continued(self, trace: Trace, shared: int) -> bool:
        """Whether a sequence begins with this one's prompt, apart from its opening of the answer."""
        needed = max(self.prompt - _OPENING, min(self.prompt, _WHOLE))
        if needed >= PAGE:
            return shared >= needed // PAGE
        head = self.head[: needed * _WORD]
        return trace.tokens(0, needed) == head


class PrefixWatch:
    """Remembers the last `conversations` of each of the last `owners`. A conversation at 80,000 tokens takes 4 KB."""

    def __init__(self, conversations: int = 16, owners: int = 64) -> None:
        self._conversations = conversations
        self._owners = owners
        self._known: OrderedDict[str, list[_Remembered]] = OrderedDict()
        """By owner, the latest last."""

    def judge(self, owner: str, trace: Trace, cached: int, kv_only: int, allowance: Allowance) -> Miss | None:
        """What is wrong with a hit of `cached` tokens, and `kv_only` more that lacked a checkpoint, for a prompt."""
        known = self._known.get(owner, [])
        chain = trace.digests
        continued = [shared for one in known if one.continued(trace, shared := one.shared(chain))]
        if continued:
            return _judge_continued(trace, max(continued), cached, kv_only, allowance)
        for one in reversed(known):
            if one.tail and trace.contains(one.tail):
                expected = (one.prompt - 1) // PAGE * PAGE
                short = expected - cached
                changed = short > max(allowance.behind, expected // _SHARE) or (expected > 0 and cached == 0)
                return Miss(MissCause.TEMPLATE_CHANGED, expected, cached) if changed else None
        return None

    def remember(self, owner: str, trace: Trace) -> None:
        """A request is over whose sequence, prompt and answer, is `trace`. It takes the place of those it went on with."""
        known = self._known.setdefault(owner, [])
        self._known.move_to_end(owner)
        chain = trace.digests
        known[:] = [one for one in known if not one.continued(trace, one.shared(chain))]
        end = trace.prompt - _OPENING
        tail = trace.tokens(end - _TAIL, end) if end >= _TAIL else b""
        known.append(_Remembered(trace.prompt, chain, trace.tokens(0, PAGE), tail))
        del known[: -self._conversations]
        while len(self._known) > self._owners:
            self._known.popitem(last=False)

    def forget(self) -> None:
        """The cache is gone, as everybody knows: a new engine has an empty one."""
        self._known.clear()


def _judge_continued(trace: Trace, shared: int, cached: int, kv_only: int, allowance: Allowance) -> Miss | None:
    """Engines leave the page of the last token out: something must be computed to have logits."""
    expected = min(shared, (trace.prompt - 1) // PAGE) * PAGE
    if expected == 0:
        return Miss(MissCause.TOO_SHORT, 0, 0) if cached == 0 else None
    small = expected // _SHARE
    lost = expected - cached - kv_only
    if lost > max(allowance.lost, small) or (lost > 0 and cached == 0):
        return Miss(MissCause.EVICTED, expected, cached)
    if expected - cached > max(allowance.behind, small):
        return Miss(MissCause.NO_CHECKPOINT, expected, cached)
    return None
