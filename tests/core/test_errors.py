"""The error tree: its drawing tells the truth, and its texts carry what clients look for."""

import re

from daemon.core import errors
from daemon.core.errors import ContextTooLong, Exl3dError


def _subclasses(root: type[Exl3dError]) -> set[type[Exl3dError]]:
    return {root} | {found for child in root.__subclasses__() for found in _subclasses(child)}


def test_drawing_in_the_docstring_names_every_class_and_its_parent() -> None:
    drawing = errors.__doc__ or ""
    parents: list[tuple[int, str]] = []
    drawn: dict[str, str | None] = {}
    for line in drawing.splitlines():
        found = re.match(r"^([│├└─ ]*)([A-Z]\w+)(?:\s{2,}|$)", line)
        if found is None:
            continue
        depth = len(found[1])
        parents = [parent for parent in parents if parent[0] < depth]
        drawn[found[2]] = parents[-1][1] if parents else None
        parents.append((depth, found[2]))
    ours = {cls for cls in _subclasses(Exl3dError) if cls.__module__ == errors.__name__}
    real = {cls.__name__: cls.__mro__[1].__name__ if cls is not Exl3dError else None for cls in ours}
    assert drawn == real


def test_context_overflow_is_worded_as_clients_parse_it() -> None:
    text = str(ContextTooLong(limit=66_000, requested=65_536, prompt=962))
    assert re.search(
        r"This model's maximum context length is 66000 tokens\. However, you requested 65536 output tokens "
        r"and your prompt contains 962 input tokens",
        text,
    )
