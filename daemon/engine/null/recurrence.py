"""The recurrent state of a null hybrid: a slot and a position, whose checkpoints take room and time and hold nothing."""

import time
from typing import Protocol


class Slots(Protocol):
    """The cache a state lives in."""

    model: "Hybrid"

    def release_state(self, state: "NullState") -> None:
        """Give a slot back."""
        ...


class Hybrid(Protocol):
    """What a model says about its checkpoints."""

    checkpoint_bytes: int
    checkpoint_seconds: float


class NullState:
    """What exllamav3 asks of a sequence's recurrent state."""

    def __init__(self, cache: Slots, slot: int, position: int, *, clear: bool, stashed: dict[str, object] | None = None) -> None:
        del clear
        self._cache = cache
        self.slot = slot
        self.position = position
        self.last_history = 0
        self.checkpoint_size = cache.model.checkpoint_bytes
        if stashed is not None:
            self._copy()

    def free(self) -> None:
        """Give the slot back."""
        self._cache.release_state(self)

    def advance(self, tokens: int) -> None:
        """A pass over `tokens` went through."""
        self.position += tokens

    def rewind(self, tokens: int) -> None:
        """Take tokens back."""
        self.position -= tokens
        self.last_history = 0

    def rollback_capacity(self) -> int:
        """As the real ones: only right after a speculative pass."""
        return 0

    def stash(self) -> dict[str, object]:
        """A checkpoint."""
        self._copy()
        return {"position": self.position, "checkpoint_size": self.checkpoint_size}

    def _copy(self) -> None:
        if self._cache.model.checkpoint_seconds > 0:
            time.sleep(self._cache.model.checkpoint_seconds)
