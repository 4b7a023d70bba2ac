"""exllamav3's own generator with nothing around it, in a process of its own: what exl3d's overhead is measured against.

`python -m daemon.engine.bare --model DIR --backend cpu|cuda|null …` loads as a short script of a user would, prints a line when
it is ready, then takes a `core.bare_run.BareRun` a line and answers each with a `BareResult`. A root of its own: nobody
imports it. It uses the same CPU operations and the same null model as the engine process, and none of its job handling.
"""

import argparse
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from daemon.core.bare_run import BareReady, BareResult, BareRun
from daemon.core.settings import BackendKind, EngineSettings
from daemon.core.wire import Configure
from daemon.engine.exl3 import runtime

if TYPE_CHECKING:
    from exllamav3 import Generator, Job


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; ends with standard input."""
    parser = argparse.ArgumentParser(prog="python -m daemon.engine.bare", description="The generator alone, for comparison.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--backend", choices=[kind.value for kind in BackendKind], default=BackendKind.AUTO.value)
    parser.add_argument("--cache-tokens", type=int, default=8192)
    parser.add_argument("--max-batch", type=int, default=16)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--null-profile")
    given = parser.parse_args(arguments)
    settings = EngineSettings(
        backend=BackendKind(given.backend),
        cache_tokens=given.cache_tokens,
        max_batch=given.max_batch,
        threads=given.threads,
        null_profile=given.null_profile,
    )
    device = runtime.prepare(settings)
    generator = _load(Configure(str(given.model), given.cache_tokens, settings, ""), device)
    _say(BareReady(device.kind.value))
    for line in sys.stdin:
        _say(_run(generator, msgspec.json.decode(line, type=BareRun)))
    return 0


def _say(answer: BareReady | BareResult) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


def _load(configure: Configure, device: runtime.Device) -> "Generator":
    """A generator with the library's defaults, but for what the daemon is configured with too."""
    from exllamav3 import Cache, Config, Generator, Model, Tokenizer  # noqa: PLC0415  # `runtime.prepare` must come first

    from daemon.engine.exl3.null_parts import load_null  # noqa: PLC0415  # imports exllamav3, as above

    settings = configure.engine
    tokens = configure.context
    if device.kind is runtime.DeviceKind.NULL:
        null = load_null(configure, tokens)
        model, cache, tokenizer = null.model, null.cache, null.tokenizer
    else:
        config = Config.from_directory(configure.model)
        model = Model.from_config(config)
        cache = Cache(model, tokens, max_batch_size=settings.max_batch)
        tokenizer = Tokenizer.from_config(config)
        model.load(device=device.torch_device)
    return Generator(model, cache, tokenizer, max_batch_size=settings.max_batch, max_chunk_size=settings.chunk_tokens)


def _run(generator: "Generator", wanted: BareRun) -> BareResult:
    """Keep `streams` jobs in the generator until every prompt has its tokens."""
    waiting = deque(_jobs(generator, wanted))
    gaps = _Gaps(generator, wanted)
    began = time.perf_counter()
    for _ in range(min(wanted.streams, len(waiting))):
        generator.enqueue(waiting.popleft())
    tokens = 0
    while generator.num_remaining_jobs():
        for result in generator.iterate():
            if wanted.late is not None:
                gaps.take(result)
            if result.get("eos"):
                whole = result.get("eos_reason") == "max_new_tokens" and not gaps.is_late(result)
                tokens += wanted.tokens if whole else 0
                if waiting:
                    generator.enqueue(waiting.popleft())
    return BareResult(tokens, time.perf_counter() - began, gaps.before, gaps.beside, gaps.late_seconds)


class _Gaps:
    """Times between tokens, before and beside a late prompt, which it enqueues when it is time."""

    def __init__(self, generator: "Generator", wanted: BareRun) -> None:
        self._generator = generator
        self._wanted = wanted
        self._last: dict[object, tuple[float, int]] = {}
        self._late: Job | None = None
        self._enqueued = 0.0
        self.before: list[float] = []
        self.beside: list[float] = []
        self.late_seconds: float | None = None

    def is_late(self, result: dict[str, object]) -> bool:
        """Whether it is about the late prompt."""
        return self._late is not None and result["job"] is self._late

    def take(self, result: dict[str, object]) -> None:
        """A result of an iteration."""
        if result.get("stage") != "streaming":
            return
        now, job = time.perf_counter(), result["job"]
        if self.is_late(result):
            self.late_seconds = self.late_seconds or now - self._enqueued
            return
        last, count = self._last.get(job, (now, 0))
        self._last[job] = (now, count + 1)
        if count and self.late_seconds is None:
            (self.before if self._late is None else self.beside).append(now - last)
        everybody = len(self._last) == self._wanted.streams
        if self._late is None and everybody and min(n for _, n in self._last.values()) >= self._wanted.late_after:
            late = BareRun([self._wanted.late or ""], 1, 1)
            (self._late,) = _jobs(self._generator, late)
            self._enqueued = time.perf_counter()
            self._generator.enqueue(self._late)


def _jobs(generator: "Generator", wanted: BareRun) -> list["Job"]:
    from exllamav3 import ComboSampler, Job  # noqa: PLC0415  # as in `_load`

    encode = generator.tokenizer.tokenizer.encode
    return [
        Job(torch.tensor([encode(text).ids], dtype=torch.long), wanted.tokens, sampler=ComboSampler(temperature=0.0))
        for text in wanted.prompts
    ]


if __name__ == "__main__":
    sys.exit(main())
