"""What one rendering may use up. Templates come with models from strangers; a hostile one must end soon, with an error.

Nothing can interrupt a thread inside one long operation of the interpreter, so two things are kept true together: every
loop round, call, filter and output passes through a `Budget`, which counts steps and characters and looks at the clock;
and no single operation can be long, because no value is ever allowed to grow beyond `Limits.value` (a list that holds the
same large list many times counts as large as it would print).
"""

from collections.abc import Callable, ItemsView, Iterable, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from itertools import chain
from typing import Final, cast

from jinja2.exceptions import TemplateRuntimeError

CLOCK_EVERY: Final = 64
"""Steps between two looks at the clock."""

_SCALARS: Final = frozenset({int, float, bool, type(None)})


@dataclass(frozen=True, slots=True)
class Limits:
    """Generous for every real prompt: a million tokens of chat take about 5 million characters and 100,000 steps."""

    steps: int = 3_000_000
    """Loop rounds, calls, filters and outputs."""
    characters: int = 256_000_000
    """Made altogether, counted each time text is copied."""
    value: int = 16_000_000
    """Characters and items of any one value; also the longest prompt."""
    seconds: float = 5.0


class LimitReached(TemplateRuntimeError):
    """The template asked for more than a rendering may use."""


class Budget:
    """What is left for one rendering. `clock` gives monotonic seconds."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._deadline = clock() + limits.seconds
        self._steps = 0
        self._characters = 0
        self._weights: dict[int, tuple[object, int]] = {}

    def step(self) -> None:
        """Count one step. Raises LimitReached."""
        self._steps += 1
        if self._steps > self._limits.steps:
            raise LimitReached(f"it takes more than {self._limits.steps} steps")
        if self._steps % CLOCK_EVERY == 0:
            self.look_at_clock()

    def look_at_clock(self) -> None:
        """Raises LimitReached after the deadline."""
        if self._clock() > self._deadline:
            raise LimitReached(f"it takes longer than {self._limits.seconds:g} seconds")

    def spend(self, characters: int) -> None:
        """Count text that was made. Raises LimitReached."""
        self._characters += characters
        if self._characters > self._limits.characters:
            raise LimitReached(f"it makes more than {self._limits.characters} characters")

    def expect(self, size: int) -> None:
        """Refuse an operation whose result would be `size` characters or items, before it runs. Raises LimitReached."""
        if size > self._limits.value:
            raise LimitReached(f"it makes a value larger than {self._limits.value} characters")
        if size > CLOCK_EVERY * 1024:
            self.look_at_clock()

    def made(self, value: object) -> object:
        """`value`, after its size was counted and found bearable. Raises LimitReached."""
        if isinstance(value, str):
            self.expect(len(value))
            self.spend(len(value))
        else:
            self.expect(self.weigh(value))
        return value

    def weigh(self, value: object) -> int:
        """Characters and items of a value if it were printed: shared parts count each time they occur. Containers are
        remembered (and kept alive, so that their identity stays theirs), which makes this linear over a rendering.
        """
        kind = type(value)
        if kind is str:
            return len(cast("str", value))
        if kind in _SCALARS:
            return 1
        children = _children(value)
        if children is None:
            return 1
        known = self._weights.get(id(value))
        if known is not None:
            return known[1]
        weight = 1
        for child in children:
            weight += 1 if type(child) in _SCALARS else self.weigh(child)
        self.expect(weight)
        self._weights[id(value)] = (value, weight)
        return weight


def _children(value: object) -> Iterable[object] | None:
    match value:
        case list() | tuple() | set() | frozenset():
            return cast("Iterable[object]", value)
        case dict():
            return chain.from_iterable(cast("Mapping[object, object]", value).items())
        case KeysView() | ValuesView() | ItemsView():
            return cast("Iterable[object]", value)
        case _:
            return None
