"""The engine's hand on the progress page: what is about to happen is written before it happens."""

import mmap
import time

from daemon.core.progress import PAGE_BYTES, Progress, ProgressWriter
from daemon.core.wire import Phase


class ProgressPage:
    """Writes the memfd behind `fd`. Used by one thread, the one that owns the backend."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, PAGE_BYTES)
        self._writer = ProgressWriter(memoryview(self._map))
        self._step = 0
        self._phase = Phase.STARTING
        self._in_flight: tuple[int, ...] = ()
        self._prefilling: int | None = None
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._write()

    def loading(self, phase: Phase, done: int) -> None:
        """Part `done` of loading begins; counts as progress."""
        self._phase = phase
        self._step = done
        self._write()

    def begin(self, step: int, phase: Phase, in_flight: tuple[int, ...]) -> None:
        """Step `step` begins, for these requests."""
        self._step = step
        self._phase = phase
        self._in_flight = in_flight
        self._write()

    def prefilling(self, request: int | None) -> None:
        """`request`'s prefill begins, or came back (None)."""
        self._prefilling = request
        self._write()

    def count(self, prompt_tokens: int, generated_tokens: int) -> None:
        """Tokens a step did. On the page with the next write, which follows at once."""
        self._prompt_tokens += prompt_tokens
        self._generated_tokens += generated_tokens

    def idle(self, phase: Phase, in_flight: tuple[int, ...]) -> None:
        """No step is running. Whatever happens now, only the requests that other threads work for may be to blame."""
        self._phase = phase
        self._in_flight = in_flight
        self._write()

    def _write(self) -> None:
        self._writer.write(
            Progress(
                step=self._step,
                t=time.monotonic(),
                phase=self._phase,
                prefilling=self._prefilling,
                prompt_tokens=self._prompt_tokens,
                generated_tokens=self._generated_tokens,
                in_flight=self._in_flight,
            )
        )
