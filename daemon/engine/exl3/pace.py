"""How many prompt tokens one step may prefill. Pure arithmetic on measured times; the order of prompts is the caller's.

1. Nobody is generating: a full chunk.
2. Somebody is: a step costs them the decode time D plus the prefill time C. Each step earns what the target leaves (target - D),
   and at least `LEAST_SHARE` of D where the machine is too slow for the target; it is saved up over steps until it pays for a
   page, or for the rest of a prompt where that is less. Never is more than one target's worth spent in a step.
3. A prompt whose rest costs no more than one target's worth, or `SLOW_FACTOR` decode steps on a slow machine, is finished at once
   on credit, which the next steps work off: whoever asks something short should not wait for the rhythm of a long prompt.
4. While all who are generating have only just begun, prompts of up to `SHORT` tokens come in at once, as far as a full chunk
   goes: people who ask at the same moment start together, and the batch is decoded in step.
5. A prompt gets its smallest chunk every `MAX_PAUSE` steps, whatever the target.
6. A chunk size from `Steer` bounds what 2 gives; given alone, it is the budget.

Chunks are multiples of a page, but for a prompt's end: exllamav3 stands still on smaller ones.
"""

from collections.abc import Sequence

from daemon.core.wire import Steer

PAGE = 256
SHORT = 2 * PAGE
"""Tokens of a prompt that comes in at once beside answers that have just begun."""
MAX_PAUSE = 16
"""Steps after which a waiting prompt gets its smallest chunk even if the latency target is missed."""
LEAST_SHARE = 0.25
"""What each decode step earns at least for prompts, of its own time."""
SLOW_FACTOR = 3.0
"""Decode steps that finishing a short prompt may cost where that is more than the target."""
FREE_LATENCY = 0.15
"""Without a target, running streams may be slowed to this many seconds a token, or to `FREE_FACTOR` times their pace."""
FREE_FACTOR = 3.0

_SMOOTHING = 0.2
_FADING = 0.9
_ROUNDING = 1e-6


class PrefillCost:
    """What prefill takes: so much a pass and so much a token, fitted to what was measured, old measures fading."""

    def __init__(self) -> None:
        self._passes2 = 0.0
        self._tokens2 = 0.0
        self._mixed = 0.0
        self._passes_seconds = 0.0
        self._tokens_seconds = 0.0
        self._per_pass = 0.0
        self._per_token = 0.0

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return self._tokens2 > 0

    def measure(self, passes: int, tokens: int, seconds: float) -> None:
        """`passes` passes took `seconds` for `tokens`."""
        self._passes2 = self._passes2 * _FADING + passes * passes
        self._tokens2 = self._tokens2 * _FADING + tokens * tokens
        self._mixed = self._mixed * _FADING + passes * tokens
        self._passes_seconds = self._passes_seconds * _FADING + passes * seconds
        self._tokens_seconds = self._tokens_seconds * _FADING + tokens * seconds
        self._fit()

    def seconds(self, tokens: int) -> float:
        """One pass over `tokens`."""
        return self._per_pass + self._per_token * tokens

    def tokens(self, seconds: float) -> int:
        """What one pass of `seconds` does."""
        if self._per_token <= 0:
            return 1 << 30
        return int(max(0.0, seconds - self._per_pass) / self._per_token + _ROUNDING)

    def _fit(self) -> None:
        """Least squares through the origin; a line that would fall is none, and one size alone says nothing about passes."""
        determinant = self._passes2 * self._tokens2 - self._mixed**2
        if determinant > 1e-3 * self._passes2 * self._tokens2:
            self._per_pass = (self._passes_seconds * self._tokens2 - self._tokens_seconds * self._mixed) / determinant
            self._per_token = (self._tokens_seconds * self._passes2 - self._passes_seconds * self._mixed) / determinant
            if self._per_pass >= 0 and self._per_token >= 0:
                return
        self._per_pass, self._per_token = 0.0, self._tokens_seconds / self._tokens2


class Pace:
    """Measures, and gives each step its budget in prompt tokens."""

    def __init__(self, chunk_tokens: int) -> None:
        self._full = max(PAGE, chunk_tokens // PAGE * PAGE)
        self._chunk: int | None = None
        self._target: float | None = None
        self._decode: float | None = None
        self._cost = PrefillCost()
        self._saved = 0.0
        self._paused = 0

    @property
    def full_chunk(self) -> int:
        """Tokens of the largest prefill pass."""
        return self._full

    def shrink(self) -> bool:
        """Halve the largest pass, because memory was short. False where it is at its least."""
        if self._full <= PAGE:
            return False
        self._full = max(PAGE, self._full // 2 // PAGE * PAGE)
        return True

    def steer(self, steer: Steer) -> None:
        """Take over chunk and target, until the next `Steer`."""
        self._chunk = None if steer.chunk is None else max(PAGE, steer.chunk // PAGE * PAGE)
        self._target = steer.itl_target

    def budget(self, decoding: int, rests: Sequence[int], *, begun: bool = False) -> int:
        """Prompt tokens this step may prefill while `decoding` requests generate; 0: pause.

        `rests` are the tokens that each waiting prompt still needs, in the order of their turns; `begun` says that all who
        generate have only just begun.
        """
        if decoding == 0:
            self._paused = 0
            self._saved = 0.0
            return self._full
        limit = self._full if self._chunk is None else min(self._full, self._chunk)
        if self._chunk is not None and self._target is None:
            return limit
        together = self._together(rests) if begun else 0
        if self._decode is None or not self._cost.known:
            return max(together, PAGE)
        target = self._target if self._target is not None else max(FREE_LATENCY, FREE_FACTOR * self._decode)
        tokens = max(together, min(self._affordable(target, self._decode, rests[0]), limit), self._on_credit(target, rests))
        if not tokens:
            self._paused += 1
            if self._paused < MAX_PAUSE:
                return 0
            tokens = min(PAGE, rests[0])
        self._paused = 0
        return tokens

    def prefilled(self, tokens: int, passes: int, seconds: float, decoding: int) -> None:
        """A step prefilled `tokens` in `passes` passes and `seconds`."""
        if tokens <= 0:
            return
        self._cost.measure(passes, tokens, seconds)
        if decoding:
            self._saved -= seconds

    def decoded(self, seconds: float) -> None:
        """A step's decode pass took `seconds`."""
        self._decode = seconds if self._decode is None else self._decode + _SMOOTHING * (seconds - self._decode)

    def _affordable(self, target: float, decode: float, rest: int) -> int:
        """Rule 2."""
        most = max(target, self._cost.seconds(min(PAGE, rest)))
        earned = max(target - decode, LEAST_SHARE * decode)
        self._saved = min(max(self._saved, -target), most) + earned
        tokens = self._cost.tokens(min(self._saved, most))
        if tokens >= rest:
            return tokens
        return tokens // PAGE * PAGE

    def _on_credit(self, target: float, rests: Sequence[int]) -> int:
        """Rule 3: the tokens of the prompts at the front that can be finished."""
        allowed = max(target, SLOW_FACTOR * (self._decode or 0.0))
        tokens = 0
        for rest in rests:
            allowed -= self._cost.seconds(rest)
            if allowed < 0 or tokens + rest > self._full:
                break
            tokens += rest
        return tokens

    def _together(self, rests: Sequence[int]) -> int:
        """Rule 4."""
        tokens = 0
        for rest in rests:
            if rest > SHORT or tokens + rest > self._full:
                break
            tokens += rest
        return tokens
