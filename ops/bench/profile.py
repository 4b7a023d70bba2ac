"""Step times of a machine that is not here, for the null backend: read from a file that says where its numbers come from."""

from pathlib import Path

import msgspec

DEFAULT = Path(__file__).parent / "profiles" / "rtx5070x2_9b_6bpw.json"


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the parts of a profile; what they mean stands in `daemon/engine/null/profile.py`."""


class Point(_Part, frozen=True):
    """Seconds for `at` rows of a decode pass, or `at` tokens of a prefill chunk."""

    at: int
    seconds: float


class Recurrent(_Part, frozen=True):
    """Checkpoints of a hybrid."""

    interval: int
    checkpoint_mib: float
    checkpoint_seconds: float


class Profile(_Part, frozen=True):
    """A file of `profiles/`: what `engine.null_profile` takes, without scripts and faults."""

    name: str
    sources: list[str]
    decode: list[Point]
    decode_context: float
    prefill: list[Point]
    prefill_context: float
    recurrent: Recurrent | None = None

    def faster(self, speed: float) -> "Profile":
        """The same with every time divided by `speed`. What is not the model then weighs `speed` times as much in whatever is
        measured, so that no figure is better than it would be at full length.
        """
        recurrent = self.recurrent
        if recurrent is not None:
            recurrent = msgspec.structs.replace(recurrent, checkpoint_seconds=recurrent.checkpoint_seconds / speed)
        return msgspec.structs.replace(
            self,
            decode=[Point(point.at, point.seconds / speed) for point in self.decode],
            decode_context=self.decode_context / speed,
            prefill=[Point(point.at, point.seconds / speed) for point in self.prefill],
            prefill_context=self.prefill_context / speed,
            recurrent=recurrent,
        )

    def prompt_seconds(self, tokens: int, chunk: int) -> float:
        """How long a prompt takes alone, in chunks of `chunk` tokens, none of it cached."""
        whole, rest = divmod(tokens, chunk)
        sizes = [chunk] * whole + ([rest] if rest else [])
        begins = [chunk * number for number in range(len(sizes))]
        # each token of a chunk pays for those before the chunk
        context = sum(size * begin for size, begin in zip(sizes, begins, strict=True))
        return sum(_seconds(self.prefill, size) for size in sizes) + context * self.prefill_context


def read(path: Path = DEFAULT) -> Profile:
    """A profile. Raises OSError and msgspec.ValidationError."""
    return msgspec.json.decode(path.read_bytes(), type=Profile)


def write_for_engine(profile: Profile, speed: float, path: Path) -> Path:
    """A file for `engine.null_profile`, that many times as fast."""
    path.write_bytes(msgspec.json.encode(profile.faster(speed)))
    return path


def _seconds(points: list[Point], at: int) -> float:
    """The time for `at` tokens, as the engine's null model counts it: interpolated, and in proportion beyond the last point."""
    if at >= points[-1].at:
        return points[-1].seconds * at / points[-1].at
    above = next(index for index, point in enumerate(points) if point.at > at)
    if above == 0:
        return points[0].seconds
    low, high = points[above - 1], points[above]
    return low.seconds + (high.seconds - low.seconds) * (at - low.at) / (high.at - low.at)
