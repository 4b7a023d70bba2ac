"""The progress page: what an engine is doing, readable by its supervisor without the engine's help.

One shared page of memory (a memfd), written by the engine before and after each step under a sequence lock: the number at
its head is odd while a write is under way. Readers take a copy, compare the number before and after, and check the CRC, so
that a torn read is never believed on processors with weak memory order either. After a crash the page stands as the
engine left it.
"""

import struct
import zlib
from dataclasses import dataclass

from daemon.core.wire import Phase

PAGE_BYTES = 16 * 1024
MAX_IN_FLIGHT = 1024
"""Requests the page can name; an engine runs far fewer."""

_SEQUENCE = struct.Struct("<QI")
_BODY = struct.Struct("<QdIIQQQ")
_PHASES = tuple(Phase)


@dataclass(frozen=True, slots=True)
class Progress:
    """One consistent reading of the page."""

    step: int
    """Steps begun."""
    t: float
    """CLOCK_MONOTONIC seconds of the write."""
    phase: Phase
    prefilling: int | None
    """The request whose prefill is running at this moment."""
    prompt_tokens: int
    """Prompt tokens prefilled since start; any change of a counter is progress."""
    generated_tokens: int
    in_flight: tuple[int, ...]


class ProgressWriter:
    """The engine's side. `page` is the mapped memfd, PAGE_BYTES long; one thread writes."""

    def __init__(self, page: memoryview) -> None:
        self._page = page
        self._sequence = 0

    def write(self, progress: Progress) -> None:
        """Put a reading on the page. Names the newest MAX_IN_FLIGHT requests if there are more."""
        ids = progress.in_flight[-MAX_IN_FLIGHT:]
        body = _BODY.pack(
            progress.step,
            progress.t,
            _PHASES.index(progress.phase),
            len(ids),
            progress.prefilling or 0,
            progress.prompt_tokens,
            progress.generated_tokens,
        ) + struct.pack(f"<{len(ids)}Q", *ids)
        _SEQUENCE.pack_into(self._page, 0, self._sequence + 1, 0)
        self._page[_SEQUENCE.size : _SEQUENCE.size + len(body)] = body
        self._sequence += 2
        _SEQUENCE.pack_into(self._page, 0, self._sequence, zlib.crc32(body))


def read_progress(page: bytes | bytearray | memoryview) -> Progress | None:
    """The page's content, or None if nothing was written yet or the copy is torn (read again)."""
    copy = bytes(page)
    before, crc = _SEQUENCE.unpack_from(copy, 0)
    if before == 0 or before % 2:
        return None
    fields: tuple[int, float, int, int, int, int, int] = _BODY.unpack_from(copy, _SEQUENCE.size)
    step, t, phase, count, prefilling, prompt_tokens, generated = fields
    end = _SEQUENCE.size + _BODY.size + 8 * count
    if count > MAX_IN_FLIGHT or phase >= len(_PHASES) or zlib.crc32(copy[_SEQUENCE.size : end]) != crc:
        return None
    ids: tuple[int, ...] = struct.unpack_from(f"<{count}Q", copy, _SEQUENCE.size + _BODY.size)
    return Progress(step, t, _PHASES[phase], prefilling or None, prompt_tokens, generated, ids)
