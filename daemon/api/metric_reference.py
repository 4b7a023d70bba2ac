"""The table of metrics, as Markdown, made from the list: docs/METRICS.md holds it. `python -m daemon.api.metric_reference`."""

import sys
from collections.abc import Iterator

from daemon.api.metric_names import Name

BEGIN = "<!-- made by `python -m daemon.api.metric_reference`; do not edit below -->"


def reference() -> str:
    """The generated part of docs/METRICS.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from (BEGIN, "", "| metric | kind | labels | meaning | elsewhere |", "| --- | --- | --- | --- | --- |")
    for name in Name:
        known = name.value
        labels = ", ".join(f"`{label}`" for label in known.labels)
        words = f"{known.help}." if not known.help.endswith(".") else known.help
        yield f"| `{name.shown}` | {known.kind.value} | {labels} | {words} | {_elsewhere(known.peer)} |"


def _elsewhere(peer: str) -> str:
    head, _, rest = peer.partition(" ")
    return " ".join(part for part in (f"`{head}`" if head else "", rest) if part)


if __name__ == "__main__":
    sys.stdout.write(reference())
