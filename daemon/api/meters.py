"""Counts and timings of requests.

Pieces arrive thousands of times a second, so the counting itself is plain additions; `exposition.py` gives the sums to
prometheus-client only when somebody asks.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from daemon.api.metric_names import Name
from daemon.api.metric_sheet import Histogram, Sheet
from daemon.core.errors import NotReady, Overloaded, PoisonousRequest, QuotaExceeded, ShuttingDown, Unauthorized
from daemon.core.events import ThoughtClosing

_LATENCY = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_BETWEEN = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
_LENGTHS = (1, 16, 64, 256, 1024, 4096, 8192, 16384, 32768, 65536, 131072, 262144)

MOST_PEOPLE = 100
"""People with series of their own: the first that ask since the daemon started."""
OTHERS = "(others)"
"""Everybody after them, together."""


class Rejection(Enum):
    """Why a request was refused before it was served."""

    OWN_LIMIT = "own_limit"
    """The person's requests that wait (429)."""
    QUOTA = "quota"
    """The person's tokens of today (429)."""
    SERVER_FULL = "server_full"
    """The queue of all (503)."""
    NO_ENGINE = "no_engine"
    """None serves, or people shut the intake (503)."""
    SHUTTING_DOWN = "shutting_down"
    POISON = "poison"
    """It killed an engine while alone."""
    NO_KEY = "no_key"
    """No key, or a wrong one (401)."""


def rejection_of(error: Exception) -> Rejection | None:
    """Which of them an error is; None for those that are no rejection: bad requests, and what befalls accepted ones."""
    match error:
        case Overloaded():
            return Rejection.OWN_LIMIT if error.own_limit else Rejection.SERVER_FULL
        case QuotaExceeded():
            return Rejection.QUOTA
        case NotReady():
            return Rejection.NO_ENGINE
        case ShuttingDown():
            return Rejection.SHUTTING_DOWN
        case PoisonousRequest():
            return Rejection.POISON
        case Unauthorized():
            return Rejection.NO_KEY
        case _:  # errors are an open set
            return None


@dataclass(slots=True)
class PersonMeters:
    """Tokens of one person since the daemon started."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0


@dataclass(slots=True)
class Meters:
    """Everything that is counted. One a daemon."""

    people: dict[str, PersonMeters] = field(default_factory=dict[str, PersonMeters])
    """By name; `OTHERS` among them."""
    requests: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    """Answers by endpoint, person and outcome: stop, length, tool_calls, cancelled, or the code of an error."""
    rejections: Counter[tuple[Rejection, str]] = field(default_factory=Counter[tuple[Rejection, str]])
    open_streams: int = 0
    paused: int = 0
    clamped: int = 0
    closed_thoughts: Counter[ThoughtClosing] = field(default_factory=Counter[ThoughtClosing])
    """Thoughts that the model did not close itself."""
    repetitions: int = 0
    """Answers that were ended for running in circles."""
    queue: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    first_token: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    prefill: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    decode: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    between: Histogram = field(default_factory=lambda: Histogram(_BETWEEN))
    whole: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    prompt_lengths: Histogram = field(default_factory=lambda: Histogram(_LENGTHS))
    answer_lengths: Histogram = field(default_factory=lambda: Histogram(_LENGTHS))

    def label(self, owner: str) -> str:
        """The label of a person: their name, or `OTHERS`. Whoever gave no key yet is nobody, the empty label."""
        if owner in self.people or not owner:
            return owner
        if len(self.people) - (OTHERS in self.people) >= MOST_PEOPLE:
            owner = OTHERS
        self.people.setdefault(owner, PersonMeters())
        return owner

    def person(self, owner: str) -> PersonMeters:
        """Where to count a person's tokens."""
        return self.people.setdefault(self.label(owner), PersonMeters())

    def answered(self, endpoint: str, owner: str, outcome: str) -> None:
        """Count an answer."""
        self.requests[endpoint, self.label(owner), outcome] += 1

    def refused(self, error: Exception, owner: str) -> None:
        """Count a rejection, if the error is one."""
        rejection = rejection_of(error)
        if rejection is not None:
            self.rejections[rejection, self.label(owner)] += 1

    def fill(self, sheet: Sheet) -> None:
        """Put the counts on a sheet."""
        for (endpoint, person, outcome), count in self.requests.items():
            sheet.put(Name.REQUESTS, count, endpoint, person, outcome)
        for (rejection, person), count in self.rejections.items():
            sheet.put(Name.REJECTIONS, count, rejection.value, person)
        for cause in ThoughtClosing:
            sheet.put(Name.THOUGHTS_CLOSED, self.closed_thoughts[cause], cause.value)
        for name, value in (
            (Name.OPEN_STREAMS, self.open_streams),
            (Name.PAUSES, self.paused),
            (Name.CLAMPED, self.clamped),
            (Name.REPETITIONS, self.repetitions),
            (Name.PROMPT, sum(one.prompt for one in self.people.values())),
            (Name.PROMPT_CACHED, sum(one.cached for one in self.people.values())),
            (Name.GENERATED, sum(one.generated for one in self.people.values())),
        ):
            sheet.put(name, value)
        for person, tokens in self.people.items():
            for rejection in Rejection:
                sheet.put(Name.REJECTIONS, 0, rejection.value, person)
            sheet.put(Name.PERSON_PROMPT, tokens.prompt, person)
            sheet.put(Name.PERSON_CACHED, tokens.cached, person)
            sheet.put(Name.PERSON_GENERATED, tokens.generated, person)
        for name, histogram in (
            (Name.QUEUE, self.queue),
            (Name.FIRST_TOKEN, self.first_token),
            (Name.PREFILL, self.prefill),
            (Name.DECODE, self.decode),
            (Name.BETWEEN, self.between),
            (Name.WHOLE, self.whole),
            (Name.PROMPT_LENGTHS, self.prompt_lengths),
            (Name.ANSWER_LENGTHS, self.answer_lengths),
        ):
            sheet.put_histogram(name, histogram)
