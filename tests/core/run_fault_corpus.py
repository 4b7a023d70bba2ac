"""Judge every record of a fault corpus by itself: `python -m tests.core.run_fault_corpus FILE`.

Prints a line per record whose remedy is wrong, then how often the label differed, then `false_alarms=a missed=b`, and last
`N passed, M failed`. Exit code 1 where a record failed.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from daemon.core.faults import Channel, Remedy, Text, Verdict, judge

NEEDS = {remedy.name.lower(): remedy for remedy in Remedy}


@dataclass(frozen=True, slots=True)
class Record:
    """One record, as far as judging goes."""

    id: str
    channel: Channel
    text: str
    label: str
    needs: Remedy


@dataclass(frozen=True, slots=True)
class Outcome:
    """A record and what was said about it."""

    record: Record
    verdict: Verdict

    @property
    def passed(self) -> bool:
        """Whether the remedy is the expected one."""
        return self.verdict.remedy is self.record.needs


def read_corpus(path: Path) -> tuple[Record, ...]:
    """The records of a JSON-lines file."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return tuple(Record(row["id"], Channel(row["channel"]), row["text"], row["label"], NEEDS[row["needs"]]) for row in rows)


def replay(records: Iterable[Record]) -> tuple[Outcome, ...]:
    """Judge each record alone, knowing nothing of pids, cards or units."""
    return tuple(Outcome(record, judge(Text(record.channel, record.text))) for record in records)


def false_alarms(outcomes: Iterable[Outcome]) -> int:
    """Records that need no action and got one."""
    return sum(1 for o in outcomes if o.record.needs is Remedy.NONE and o.verdict.remedy is not Remedy.NONE)


def missed(outcomes: Iterable[Outcome]) -> int:
    """Records that need an action and got none."""
    return sum(1 for o in outcomes if o.record.needs is not Remedy.NONE and o.verdict.remedy is Remedy.NONE)


def main(path: str) -> int:
    """Print the report; 0 where every remedy is right."""
    outcomes = replay(read_corpus(Path(path)))
    wrong = [o for o in outcomes if not o.passed]
    for outcome in wrong:
        record, verdict = outcome.record, outcome.verdict
        first = record.text.splitlines()[0] if record.text else ""
        print(  # noqa: T201 - a command's output
            f"{record.id}: {record.channel.value}: wants {record.needs.name.lower()} ({record.label}),"
            f" got {verdict.remedy.name.lower()} ({verdict.label.value}): {first[:100]}"
        )
    labels = sum(1 for o in outcomes if o.verdict.label.value != o.record.label)
    print(f"labels differing: {labels}")  # noqa: T201 - a command's output
    print(f"false_alarms={false_alarms(outcomes)} missed={missed(outcomes)}")  # noqa: T201 - a command's output
    print(f"{len(outcomes) - len(wrong)} passed, {len(wrong)} failed")  # noqa: T201 - a command's output
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.core.run_fault_corpus FILE")
    sys.exit(main(sys.argv[1]))
