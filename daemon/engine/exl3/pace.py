"""How many prompt tokens one step may prefill. Pure arithmetic on measured times; the order of prompts is the caller's.

1. Nobody is generating: a full chunk.
2. Somebody is: a step costs them the decode time D plus the prefill time C. The budget of each step is what the target leaves
   (target - D), saved up over steps where it is less than the smallest chunk, so that the average keeps the target. A prompt
   still gets its smallest chunk every `MAX_PAUSE` steps, whatever the target.
3. A chunk size from `Steer` bounds what 2 gives; given alone, it is the budget.

Chunks are multiples of a page: exllamav3 stands still on smaller ones.
"""

from daemon.core.wire import Steer

PAGE = 256
MAX_PAUSE = 16
"""Steps after which a waiting prompt gets its smallest chunk even if the latency target is missed."""
FREE_LATENCY = 0.15
"""Without a target, running streams may be slowed to this many seconds a token, or to `FREE_FACTOR` times their pace."""
FREE_FACTOR = 3.0

_SMOOTHING = 0.2


class Pace:
    """Measures, and gives each step its budget in prompt tokens."""

    def __init__(self, chunk_tokens: int) -> None:
        self._full = max(PAGE, chunk_tokens // PAGE * PAGE)
        self._chunk: int | None = None
        self._target: float | None = None
        self._decode: float | None = None
        self._per_token: float | None = None
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

    def budget(self, decoding: int) -> int:
        """Prompt tokens this step may prefill while `decoding` requests generate. 0: pause."""
        if decoding == 0:
            self._paused = 0
            self._saved = 0.0
            return self._full
        limit = self._full if self._chunk is None else min(self._full, self._chunk)
        if self._chunk is not None and self._target is None:
            return limit
        if self._decode is None or self._per_token is None:
            return PAGE
        target = self._target if self._target is not None else max(FREE_LATENCY, FREE_FACTOR * self._decode)
        smallest = PAGE * self._per_token
        self._saved = min(self._saved + target - self._decode, max(target, smallest))
        tokens = int(self._saved / self._per_token) // PAGE * PAGE if self._per_token > 0 else limit
        if tokens < PAGE:
            self._paused += 1
            if self._paused < MAX_PAUSE:
                return 0
            tokens = PAGE
        self._paused = 0
        return min(tokens, limit)

    def prefilled(self, tokens: int, seconds: float, decoding: int) -> None:
        """A step prefilled `tokens` in `seconds`."""
        if tokens <= 0:
            return
        self._per_token = _blend(self._per_token, seconds / tokens)
        if decoding:
            self._saved = max(0.0, self._saved - seconds)

    def decoded(self, seconds: float) -> None:
        """A step's decode pass took `seconds`."""
        self._decode = _blend(self._decode, seconds)


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + _SMOOTHING * (new - old)
