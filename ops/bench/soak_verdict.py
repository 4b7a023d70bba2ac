"""Whether something grew. Pure.

Values are taken at quiet moments, when no request is open, so that they should be the same each time. The first ones are left
out: pools of threads and connections fill, allocators find their size. Of the rest the line is drawn through all pairs
(Theil and Sen), which a few outliers do not move, and what it rises from the first to the last value is compared with what is
allowed.
"""

from collections.abc import Sequence
from itertools import combinations
from statistics import median

import msgspec

WARM_UP = 0.34
"""Share of the values that is left out at the beginning."""
FEWEST = 4
"""Values after the warm-up that a verdict needs."""


class Trend(msgspec.Struct, frozen=True):
    """How one figure went."""

    first: float
    """Median of the first third after the warm-up."""
    last: float
    """Median of the last third."""
    rise: float
    """Of the robust line, from the first to the last value after the warm-up."""
    allowed: float
    grown: bool


def slope(values: Sequence[float]) -> float:
    """The median of the slopes between all pairs of values, a step being 1; 0 for fewer than two."""
    slopes = [(later - earlier) / (j - i) for (i, earlier), (j, later) in combinations(enumerate(values), 2)]
    return median(slopes) if slopes else 0.0


def trend(values: Sequence[float], allowed: float) -> Trend | None:
    """The trend of a figure; None of too few values. `allowed`: what may be added over the whole time."""
    kept = values[int(len(values) * WARM_UP) :]
    if len(kept) < FEWEST:
        return None
    third = max(1, len(kept) // 3)
    rise = slope(kept) * (len(kept) - 1)
    first, last = median(kept[:third]), median(kept[-third:])
    grown = rise > allowed and last - first > allowed
    return Trend(round(first, 3), round(last, 3), round(rise, 3), round(allowed, 3), grown)
