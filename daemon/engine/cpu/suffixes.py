"""The longest end of a sequence that has occurred in it before: what n-gram drafts continue from.

A suffix automaton, grown token by token: each state stands for the sequences that end at the same places, and knows the first of
those places. Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985.
"""

from dataclasses import dataclass, field

from torch import Tensor

from daemon.engine.tensors import integers

NOWHERE = (-1, -1)


@dataclass(slots=True)
class _State:
    length: int
    """Of the longest sequence it stands for."""
    link: int
    """The state of the longest end of it that also occurs elsewhere."""
    first_end: int
    """Where its sequences end for the first time."""
    edges: dict[int, int] = field(default_factory=dict[int, int])


class SuffixAutomaton:
    """Stands in for exllamav3's BC_SAM."""

    def __init__(self) -> None:
        self.reset()

    def reset(self, reserve_tokens: int = 0) -> None:
        """Forget everything."""
        del reserve_tokens
        self._states = [_State(length=0, link=-1, first_end=-1)]
        self._last = 0
        self._match = 0
        self._matched = 0
        self._tokens = 0

    def length(self) -> int:
        """Tokens taken."""
        return self._tokens

    def accept(self, token: int) -> tuple[int, int]:
        """Take a token. Gives where the longest end of the sequence stood first: begin and end, or `NOWHERE`."""
        self._follow(token)
        found = NOWHERE
        if self._matched:
            end = self._states[self._match].first_end + 1
            found = (end - self._matched, end)
        self._extend(token)
        return found

    def accept_tensor(self, tokens: Tensor) -> tuple[int, int]:
        """Take those of a whole sequence that are new; one that has become shorter is taken from the beginning."""
        if tokens.shape[-1] < self._tokens:
            self.reset()
        found = NOWHERE
        for token in integers(tokens.reshape(-1)[self._tokens :]):
            found = self.accept(token)
        return found

    def _follow(self, token: int) -> None:
        """Make the match one token longer, or as much shorter as it must be."""
        states = self._states
        while self._match and token not in states[self._match].edges:
            self._match = states[self._match].link
            self._matched = states[self._match].length
        following = states[self._match].edges.get(token)
        if following is None:
            self._matched = 0
            return
        self._match = following
        self._matched += 1

    def _extend(self, token: int) -> None:
        states = self._states
        new = len(states)
        states.append(_State(length=states[self._last].length + 1, link=0, first_end=self._tokens))
        at = self._last
        while at >= 0 and token not in states[at].edges:
            states[at].edges[token] = new
            at = states[at].link
        if at >= 0:
            states[new].link = self._split(at, token)
        self._last = new
        self._tokens += 1

    def _split(self, at: int, token: int) -> int:
        """The state for what `at` followed by `token` stands for, split off from a longer one where needed."""
        states = self._states
        there = states[at].edges[token]
        if states[there].length == states[at].length + 1:
            return there
        shorter = len(states)
        old = states[there]
        states.append(_State(states[at].length + 1, old.link, old.first_end, dict(old.edges)))
        while at >= 0 and states[at].edges.get(token) == there:
            states[at].edges[token] = shorter
            at = states[at].link
        old.link = shorter
        if self._match == there and self._matched <= states[shorter].length:
            self._match = shorter
        return shorter
