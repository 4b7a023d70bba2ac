"""What the death of an engine cost those whose answers it was writing: for incidents and metrics."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecoveryFigures:
    """Of one death, as far as it is over."""

    interrupted: int = 0
    """Requests that the engine held and that had to go on elsewhere."""
    waiting: int = 0
    """Those of them that still wait for their next token; 0: this death is history."""
    waited: tuple[float, ...] = ()
    """Seconds from the death to the next token, of each that got one."""
    reprefilled: int = 0
    """Tokens of them that were prefilled a second time, because no cache held them."""


class Recovery:
    """Follows one death, at time `began`, of an engine that held `interrupted` unfinished requests."""

    __slots__ = ("_began", "_interrupted", "_reprefilled", "_waited", "_waiting")

    def __init__(self, began: float, interrupted: int) -> None:
        self._began = began
        self._interrupted = interrupted
        self._waiting = interrupted
        self._waited: list[float] = []
        self._reprefilled = 0

    def prefilled(self, tokens: int) -> None:
        """One of them was begun anew, with so many tokens to prefill."""
        self._reprefilled += tokens

    def resumed(self, now: float) -> None:
        """One of them got its next token."""
        self._waiting -= 1
        self._waited.append(now - self._began)

    def left(self) -> None:
        """One of them ended while it waited."""
        self._waiting -= 1

    def figures(self) -> RecoveryFigures:
        """What is known now."""
        return RecoveryFigures(self._interrupted, self._waiting, tuple(self._waited), self._reprefilled)
