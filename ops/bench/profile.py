"""Step times of a machine that is not here, for the null backend: read from a file that says where its numbers come from."""

from pathlib import Path

import msgspec

DEFAULT = Path(__file__).parent / "profiles" / "rtx5070x2_9b_6bpw.json"


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds for `at` rows of a decode pass, or `at` tokens of a prefill chunk."""

    at: int
    seconds: float


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of `profiles/`."""

    name: str
    sources: list[str]
    decode: list[Point]
    prefill: list[Point]


class _Times(msgspec.Struct, frozen=True):
    """What the engine wants of it."""

    decode: list[Point]
    prefill: list[Point]


def read(path: Path = DEFAULT) -> Profile:
    """A profile. Raises OSError and msgspec.ValidationError."""
    return msgspec.json.decode(path.read_bytes(), type=Profile)


def write_for_engine(profile: Profile, speed: float, path: Path) -> Path:
    """Its times for `engine.null_profile`, each divided by `speed`. Everything that is not the model then weighs `speed` times
    as much in what is measured, so that a figure is never better than it would be at full length.
    """

    def faster(points: list[Point]) -> list[Point]:
        return [Point(point.at, point.seconds / speed) for point in points]

    path.write_bytes(msgspec.json.encode(_Times(faster(profile.decode), faster(profile.prefill))))
    return path


def seconds(points: list[Point], at: int) -> float:
    """The time for `at` rows or tokens, as the engine's null model counts it: interpolated, and in proportion beyond the last."""
    if at >= points[-1].at:
        return points[-1].seconds * at / points[-1].at
    above = next(index for index, point in enumerate(points) if point.at > at)
    if above == 0:
        return points[0].seconds
    low, high = points[above - 1], points[above]
    return low.seconds + (high.seconds - low.seconds) * (at - low.at) / (high.at - low.at)
