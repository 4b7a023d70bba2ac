"""Finding stop strings in text that comes in pieces.

The result depends on the text alone, never on how it was cut: the first place at which any stop string is complete ends the
text, and of several complete there the longest counts. Text is held back only while it may still become a stop string, and
every character is looked at a bounded number of times (an Aho-Corasick automaton, with a search for the first characters
while nothing is half matched).
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Node:
    depth: int
    steps: dict[str, "_Node"]
    fail: "_Node | None" = None
    """Where to go on when no step fits: the longest proper suffix that begins a stop string. None at the root."""
    found: str | None = None
    """The longest stop string that ends here."""


def _build(stops: Sequence[str]) -> _Node:
    root = _Node(0, {})
    for stop in stops:
        node = root
        for character in stop:
            node = node.steps.setdefault(character, _Node(node.depth + 1, {}))
        node.found = stop
    queue: deque[_Node] = deque()
    for child in root.steps.values():
        child.fail = root
        queue.append(child)
    while queue:
        node = queue.popleft()
        for character, child in node.steps.items():
            queue.append(child)
            fail = node.fail
            while fail is not None and character not in fail.steps:
                fail = fail.fail
            child.fail = root if fail is None else fail.steps[character]
            child.found = child.found or child.fail.found
    return root


class StopMatcher:
    """Finds the first of `stops` (non-empty strings) in text fed piece by piece."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._root = _build(stops)
        self._node = self._root
        self._held = ""
        self._first = re.compile("[" + "".join(re.escape(stop[0]) for stop in stops) + "]")

    def feed(self, text: str) -> tuple[str, str | None]:
        """Text that is certain not to be part of a stop string, and the stop string if one is complete. Feed no more then."""
        node, root = self._node, self._root
        held = len(self._held)
        text = self._held + text
        at, end = held, len(text)
        while at < end:
            if node is root:
                found = self._first.search(text, at)
                if found is None:
                    break
                at = found.start()
            character = text[at]
            while node is not root and character not in node.steps:
                node = node.fail or root
            node = node.steps.get(character, root)
            at += 1
            if node.found is not None:
                self._node, self._held = root, ""
                return text[: at - len(node.found)], node.found
        self._node = node
        certain = end - node.depth
        self._held = text[certain:]
        return text[:certain], None

    def flush(self) -> str:
        """What was held back, when no more text will come."""
        held, self._held, self._node = self._held, "", self._root
        return held
