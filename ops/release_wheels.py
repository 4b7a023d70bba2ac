"""The prebuilt wheels of an exllamav3 release, read off their file names. Standard library alone; pure.

Names look like `exllamav3-1.6.5+cu128.torch2.9.0-cp311-cp311-linux_x86_64.whl`.
"""

import re
from dataclasses import dataclass
from urllib.parse import quote

EXLLAMAV3 = "1.6.5"
"""The version that pyproject.toml pins."""

RELEASE = f"https://github.com/turboderp-org/exllamav3/releases/download/v{EXLLAMAV3}/"
RELEASE_FACTS = f"https://api.github.com/repos/turboderp-org/exllamav3/releases/tags/v{EXLLAMAV3}"

_OLDEST_TORCH, _BEFORE_TORCH = (2, 9), (2, 14)
_NAME = re.compile(
    rf"exllamav3-{re.escape(EXLLAMAV3)}\+cu(?P<major>\d\d)(?P<minor>\d)\.torch(?P<torch>\d+\.\d+)\.\d+"
    r"-(?P<python>cp3\d+)-cp3\d+-linux_(?P<architecture>\w+)\.whl"
)


@dataclass(frozen=True, slots=True)
class ReleaseWheel:
    """One wheel: the CUDA and torch it was compiled with."""

    name: str
    cuda: tuple[int, int]
    torch: tuple[int, int]

    @property
    def url(self) -> str:
        """Where it lies."""
        return RELEASE + quote(self.name)


def best_wheel(
    names: tuple[str, ...],
    python: tuple[int, int, int],
    architecture: str,
    *,
    least: tuple[int, int],
    most: tuple[int, int],
) -> ReleaseWheel | None:
    """The wheel for this Python and architecture whose CUDA lies between `least` and `most`: newest torch, then newest CUDA."""
    tag = f"cp{python[0]}{python[1]}"
    fitting: list[ReleaseWheel] = []
    for name in names:
        found = _NAME.fullmatch(name)
        if found is None or found["python"] != tag or found["architecture"] != architecture:
            continue
        major, minor = found["torch"].split(".")
        wheel = ReleaseWheel(name, (int(found["major"]), int(found["minor"])), (int(major), int(minor)))
        if least <= wheel.cuda <= most and _OLDEST_TORCH <= wheel.torch < _BEFORE_TORCH:
            fitting.append(wheel)
    return max(fitting, key=lambda wheel: (wheel.torch, wheel.cuda), default=None)
