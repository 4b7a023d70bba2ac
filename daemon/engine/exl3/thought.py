"""Following a thought token by token: whether the model is inside it, when it must be closed, and with which ids.

Pure: ids in, ids out. The engine does this itself because the front would react several steps late, and a stop inside a
thought would already have ended the request.
"""

from collections.abc import Sequence

from daemon.core.wire import OPENING, OnStop, Reasoning


class Thought:
    """The state of one request's reasoning. `delivered` are the ids generated before this attempt."""

    def __init__(self, spec: Reasoning, delivered: Sequence[int] = ()) -> None:
        self._spec = spec
        self._begin = tuple(spec.begin_ids)
        self._end = tuple(spec.end_ids)
        self._left = spec.budget_left
        self._opening = OPENING - len(delivered) if self._begin and not spec.inside else 0
        """Tokens within which a thought may still begin."""
        mark = self._end if spec.inside else self._begin
        self._recent = list(delivered[-(len(mark) - 1) :]) if len(mark) > 1 else []
        self._begun = self._begun_closing(delivered) if spec.inside and self._left is not None and self._left <= 0 else 0
        self.inside = spec.inside
        self.closed = 0
        """How often the engine closed the thought."""
        self.spent_budgets = 0
        """How many of them at the budget."""

    @property
    def over(self) -> bool:
        """Whether the model is in no thought and will begin none."""
        return not self.inside and self._opening <= 0

    def feed(self, token: int) -> None:
        """A token the model chose was accepted."""
        if not self.inside:
            self._feed_opening(token)
            return
        if self._left is not None:
            self._left -= 1
        if self._end and self._completes(self._end, token):
            self.inside = False

    def _feed_opening(self, token: int) -> None:
        if self._opening <= 0:
            return
        self._opening -= 1
        if self._completes(self._begin, token):
            self.inside = True
            self._opening = 0
            self._recent.clear()

    def _completes(self, mark: tuple[int, ...], token: int) -> bool:
        self._recent.append(token)
        del self._recent[: -len(mark)]
        return tuple(self._recent) == mark

    @property
    def spent(self) -> bool:
        """Whether the budget is used up and the thought must be closed before the next token. A thought that is just being
        ended by the model itself gets the few tokens it needs for that.
        """
        return self.inside and self._left is not None and self._left <= 0 and not self._ending()

    def closes_on_stop(self) -> bool:
        """Whether a stop now is inside the thought and the answer shall follow all the same."""
        return self.inside and self._spec.on_stop is OnStop.CLOSE and bool(self._spec.close_ids)

    def close(self) -> list[int]:
        """Close the thought: the ids to put in place. Those that an earlier attempt has delivered are left out."""
        at_budget = self._left is not None and self._left <= 0
        ids = self._close_ids(at_budget=at_budget)[self._begun :]
        self.inside = False
        self.closed += 1
        self.spent_budgets += at_budget
        self._begun = 0
        return ids

    def _close_ids(self, *, at_budget: bool) -> list[int]:
        return (self._spec.budget_close_ids if at_budget else []) or self._spec.close_ids

    def _ending(self) -> bool:
        """Whether the last tokens are the beginning of the end mark. Bounded: the budget may be overdrawn by its length."""
        if self._left is None or self._begun or self._left <= -len(self._end):
            return False
        return any(
            tuple(self._recent[-size:]) == self._end[:size] for size in range(1, len(self._end)) if size <= len(self._recent)
        )

    def _begun_closing(self, delivered: Sequence[int]) -> int:
        close = self._close_ids(at_budget=True)
        for size in range(min(len(close) - 1, len(delivered)), 0, -1):
            if list(delivered[-size:]) == close[:size]:
                return size
        return 0
