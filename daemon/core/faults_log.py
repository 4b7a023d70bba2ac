"""Where a log line comes from and what it says, by its structure alone.

A line is taken apart into its origin (kernel, systemd, a program) and its text; what stands in front of the text
(timestamps of any locale, host names, priorities, rsyslog's `message repeated`) is dropped and never interpreted.
Rules look at the origin before they look at the text: a program's line never meets a kernel rule, so a request that a
program logs cannot speak for the kernel.
"""

import re
from dataclasses import dataclass
from enum import Enum


class Origin(Enum):
    """Who wrote a line."""

    KERNEL = "kernel"
    SYSTEMD = "systemd"
    PROGRAM = "program"


class Severity(Enum):
    """A program's own opinion of its line."""

    CHATTER = "chatter"
    """debug, info: where programs log requests."""
    ALARM = "alarm"
    """error, critical, fatal."""
    OTHER = "other"
    """warning, or no opinion."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line without what stood in front of it."""

    origin: Origin
    text: str
    severity: Severity
    framed: bool
    """Whether anything stood in front: a line without is perhaps the continuation of the one before."""


_STAMPS = re.compile(
    r"""\s*(?:
        <\d{1,3}>                                                  # priority
      | \[\s*\+?\d+\.\d{3,9}\](?:\[\s*[TC]\d+\]|\s\[\s*[TC]\d+\])?   # seconds since boot or since the line before, caller
      | kern\s*:\w+\s*:                                           # dmesg -x
      | \[\w{3}\s+\w{3}\s+\d{1,2}\s[\d:]{8}(?:\s\d{4})?\]          # dmesg -T
      | \d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?
    )\s*""",
    re.VERBOSE,
)
_SYSLOG = re.compile(r"(?:[^\W\d]{3,12}\.?\s+\d{1,2}\s+\d\d:\d\d:\d\d(?:\.\d+)?\s+)(?P<rest>.*)", re.DOTALL)
_TAG = re.compile(r"(?:(?P<host>[\w.-]+)\s+)?(?P<tag>[\w@./:-]+?)(?:\[(?P<pid>\d+)\])?:\s+(?P<text>.*)", re.DOTALL)
_REPEATED = re.compile(r"message repeated \d+ times: \[\s*(?P<text>.*?)\s*\]?$", re.DOTALL)
_WORKER = re.compile(r"\((?:\w+\s+)?pid=\d+\)\s*|\[rank\d+\]:\s?")
_PIPE_STAMP = re.compile(r"\|\s+")
_LEVEL = re.compile(
    r"\[?(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\]?(?::\s*|\s+(?:\d\d-\d\d\s+\d\d:\d\d:\d\d\s+)?)"
    r"(?:\[[\w./-]+:\d+\]\s*)?"
)
_SYSTEMD_TAGS = frozenset({"systemd", "systemd-oomd"})
_KERNEL_DRIVER = re.compile(r"NVRM: |misc dxg: |(?:Memory cgroup out|Out) of memory: Killed process \d|oom-kill:constraint=")
_UNIT = re.compile(r"[\w@.\\:-]+\.(?:service|socket|scope|slice): ")
_KEYED = re.compile(r"time=\S+ level=(?P<level>\w+) (?:source=\S+ )?msg=(?P<text>.*)", re.DOTALL)
_CHATTER = frozenset({"DEBUG", "INFO"})
_ALARM = frozenset({"ERROR", "CRITICAL", "FATAL"})


def _severity(level: str) -> Severity:
    name = level.upper()
    if name in _CHATTER:
        return Severity.CHATTER
    return Severity.ALARM if name in _ALARM else Severity.OTHER


def _unstamp(text: str) -> str:
    while (found := _STAMPS.match(text)) is not None:
        text = text[found.end() :]
    return text


def _unrepeat(text: str) -> str:
    found = _REPEATED.match(text)
    return found["text"] if found else text


def kernel_line(raw: str) -> str:
    """The text of a line that is known to come from the kernel's own transport."""
    text = _unstamp(raw.replace("\0", "").strip())
    syslog = _SYSLOG.match(text)
    if syslog:
        text = syslog["rest"]
    tag = re.match(r"(?:[\w.-]+\s+)?kernel:\s+", text)
    if tag:
        text = text[tag.end() :]
    return _unrepeat(_unstamp(text)).strip()


def program_line(text: str, *, framed: bool = False) -> LogLine:
    """A program's line without worker, time, level and place in its source."""
    severity = Severity.OTHER
    keyed = _KEYED.match(text)
    if keyed:
        return LogLine(Origin.PROGRAM, keyed["text"].strip('"'), _severity(keyed["level"]), framed=True)
    for _ in range(4):
        prefix = _WORKER.match(text) or _PIPE_STAMP.match(text)
        level = _LEVEL.match(text)
        if prefix:
            text = text[prefix.end() :]
        elif level:
            severity, text = _severity(level["level"]), text[level.end() :]
        else:
            break
        framed = True
    return LogLine(Origin.PROGRAM, text, severity, framed=framed)


def journal_line(raw: str) -> LogLine:
    """A line of the journal as text, from whoever wrote it. Where the tag is neither `kernel` nor `systemd`, it is a
    program's line, whatever its text says. A bare line (nothing in front)
    is the kernel's or systemd's if it begins as only theirs do; whether it may stand alone is for the reader of the whole.
    """
    stripped = raw.replace("\0", "").strip()
    text = _unstamp(stripped)
    framed = text != stripped
    syslog = _SYSLOG.match(text)
    if syslog:
        text, framed = syslog["rest"], True
    tag = _TAG.match(text)
    if tag and tag["tag"] == "kernel":
        return LogLine(Origin.KERNEL, kernel_line(tag["text"]), Severity.OTHER, framed=framed)
    if tag and tag["tag"] in _SYSTEMD_TAGS:
        return LogLine(Origin.SYSTEMD, tag["text"].strip(), Severity.OTHER, framed=framed)
    if not framed and _KERNEL_DRIVER.match(text):
        return LogLine(Origin.KERNEL, text, Severity.OTHER, framed=False)
    if not framed and _UNIT.match(text):
        return LogLine(Origin.SYSTEMD, text, Severity.OTHER, framed=False)
    if tag and tag["host"] and syslog:
        return program_line(tag["text"], framed=True)
    return program_line(text, framed=framed)
