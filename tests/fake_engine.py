"""An engine process without a model, for process tests: `python -m tests.fake_engine --link FD --progress FD [faults]`.

It speaks the real wire over a real socketpair. The next token is a fixed function of the whole sequence, so a resumed
request must continue exactly like an undisturbed one. With `--once FILE` the faults happen in the first process only: the
file marks that they have.
"""

import argparse
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass, field, fields
from pathlib import Path

from daemon.core.framing import command_reader, frame
from daemon.core.progress import PAGE_BYTES, Progress, ProgressWriter
from daemon.core.wire import (
    PROTOCOL,
    Answer,
    Cancel,
    Command,
    Configure,
    Drain,
    Event,
    Failed,
    FailureClass,
    Fatal,
    FatalClass,
    Finished,
    FinishReason,
    Hello,
    Keep,
    Limits,
    Loading,
    Phase,
    Pool,
    Probe,
    Probed,
    Quote,
    Quoted,
    Report,
    Started,
    Statistics,
    Stats,
    Steer,
    Step,
    Submit,
    Suspend,
    Suspended,
    Tokens,
    TokenSpan,
)

FAILING_TOKEN = 13
"""A prompt that ends with this id fails in the engine."""


def next_token(sequence: list[int], low: int, high: int) -> int:
    """What the fake model says after `sequence`: an id in low..high-1."""
    return low + zlib.crc32(json.dumps(sequence[-8:]).encode() + len(sequence).to_bytes(4, "little")) % (high - low)


def continuation(prompt: list[int], count: int, low: int, high: int) -> list[int]:
    """The `count` ids an undisturbed engine generates after `prompt`."""
    sequence = list(prompt)
    for _ in range(count):
        sequence.append(next_token(sequence, low, high))
    return sequence[len(prompt) :]


@dataclass
class _Job:
    submit: Submit
    sequence: list[int]
    left: int
    started: bool = False


@dataclass
class _Faults:
    crash_after: int | None = None
    hang_after: int | None = None
    exit_at_load: int | None = None
    fatal: str | None = None
    ignore_term: bool = False
    slow_load: float = 0.0
    hang_loading: bool = False
    most_chunk: int | None = None
    crash_signal: int = signal.SIGKILL


@dataclass
class _Engine:
    link: socket.socket
    page: ProgressWriter
    faults: _Faults
    options: argparse.Namespace
    jobs: dict[int, _Job] = field(default_factory=dict[int, _Job])
    steps: int = 0
    generated: int = 0
    prompted: int = 0
    draining: bool = False
    answers: list[Answer] = field(default_factory=list[Answer])

    def send(self, report: Report) -> None:
        self.link.sendall(frame(report))

    def mark(self, phase: Phase) -> None:
        in_flight = tuple(self.jobs)
        self.page.write(Progress(self.steps, time.monotonic(), phase, None, self.prompted, self.generated, in_flight))

    def fit(self, configure: Configure) -> None:
        """An engine that is told to take chunks too large for its device finds no memory."""
        most, asked = self.faults.most_chunk, configure.engine.chunk_tokens
        if most is not None and asked > most:
            self.send(Fatal(FatalClass.MEMORY, f"no memory for chunks of {asked} tokens"))
            sys.exit(71)

    def load(self) -> None:
        self.mark(Phase.LOADING)
        if self.faults.hang_loading:
            hang()
        pieces = 4
        for done in range(pieces):
            self.send(Loading("loading layers", done + 1, pieces))
            time.sleep(self.faults.slow_load / pieces)
        if self.faults.fatal is not None:
            self.send(Fatal(FatalClass(self.faults.fatal), "told to end by a flag", "a trace"))
            sys.exit(70)
        if self.faults.exit_at_load is not None:
            sys.stdout.write("cannot load: told so by a flag\n")
            sys.stdout.flush()
            sys.exit(self.faults.exit_at_load)
        limits = Limits(page=256, pages=1024, slots=self.options.slots, interval=0, max_batch=self.options.slots)
        boot = f"fake-{os.getpid()}"
        self.send(Hello(self.options.protocol, boot, os.getpid(), "fake", "FakeForCausalLM", limits, [0], self.options.high))
        self.mark(Phase.IDLE)

    def obey(self, command: Command) -> None:
        match command:
            case Configure():
                self.fit(command)
                self.load()
            case Submit():
                sequence = [token for span in command.spans if isinstance(span, TokenSpan) for token in span.ids]
                self.jobs[command.id] = _Job(command, sequence, command.max_left)
                self.prompted += len(sequence)
            case Cancel(id=cancelled):
                self.jobs.pop(cancelled, None)
            case Suspend(id=suspended):
                job = self.jobs.pop(suspended, None)
                if job is not None:
                    self.report([Suspended(suspended, job.submit.attempt, 0)])
            case Probe() | Quote() | Stats():
                self.answer(command)
            case Drain():
                self.draining = True
            case Steer() | Keep():
                pass

    def answer(self, question: Probe | Quote | Stats) -> None:
        match question:
            case Probe(id=number):
                self.answers.append(Probed(number))
            case Quote(id=number):
                self.answers.append(Quoted(number, 1, 0))
            case Stats(id=number):
                self.answers.append(Statistics(number, self.steps, self.prompted, 0, self.generated, 0, 0, 0, 0))

    def report(self, events: list[Event]) -> None:
        answers, self.answers = self.answers, []
        pool = Pool(1024, len(self.jobs), self.options.slots, len(self.jobs), 0)
        self.send(Step(self.steps, time.monotonic(), Phase.DECODE, pool, events=events, answers=answers))

    def step(self) -> None:
        self.steps += 1
        self.mark(Phase.DECODE)
        events: list[Event] = []
        for number, job in list(self.jobs.items()):
            events += self.advance(number, job)
        self.report(events)
        self.mark(Phase.DECODE if self.jobs else Phase.IDLE)
        faults = self.faults
        if faults.crash_after is not None and self.generated >= faults.crash_after:
            os.kill(os.getpid(), faults.crash_signal)
        if faults.hang_after is not None and self.generated >= faults.hang_after:
            hang()

    def advance(self, number: int, job: _Job) -> list[Event]:
        attempt = job.submit.attempt
        events: list[Event] = []
        if not job.started:
            job.started = True
            events.append(Started(number, attempt, cached=0, new_pages=1))
            if job.sequence[-1:] == [FAILING_TOKEN]:
                del self.jobs[number]
                return [*events, Failed(number, attempt, FailureClass.SAMPLING, "told to fail by its prompt")]
        token = next_token(job.sequence, self.options.low, self.options.high)
        events.append(Tokens(number, attempt, len(job.sequence), [token]))
        job.sequence.append(token)
        job.left -= 1
        self.generated += 1
        reason = FinishReason.STOP if token in job.submit.stop_ids else FinishReason.LENGTH if job.left <= 0 else None
        if reason is not None:
            del self.jobs[number]
            events.append(Finished(number, attempt, reason))
        return events

    def run(self) -> None:
        reader = command_reader()
        while True:
            busy = bool(self.jobs or self.answers)
            if self.draining and not busy:
                sys.exit(0)
            if busy or select.select([self.link], [], [])[0]:
                if select.select([self.link], [], [], self.options.step_seconds if busy else 0)[0]:
                    data = self.link.recv(1 << 20)
                    if not data:
                        sys.exit(0)
                    for command in reader.feed(data):
                        self.obey(command)
                elif busy:
                    self.step()


def hang() -> None:
    """Never come back, as a driver call that does not return."""
    while True:
        signal.pause()


def main() -> None:
    """Parse the faults and be an engine."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--link", type=int, required=True)
    parser.add_argument("--progress", type=int, required=True)
    parser.add_argument("--crash-after", type=int, help="kill itself after so many tokens")
    parser.add_argument("--crash-signal", type=int, default=signal.SIGKILL, help="the signal with which it kills itself")
    parser.add_argument("--most-chunk", type=int, help="report Fatal of class memory when told larger chunks")
    parser.add_argument("--hang", type=int, dest="hang_after", help="hang after so many tokens")
    parser.add_argument("--hang-loading", action="store_true")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--slow-load", type=float, default=0.0, help="seconds")
    parser.add_argument("--exit-code", type=int, dest="exit_at_load", help="end while loading with this code")
    parser.add_argument("--fatal", help="report Fatal of this class while loading")
    parser.add_argument("--once", type=Path, help="faults only if this file does not exist; it is made then")
    parser.add_argument("--grandchild", type=Path, help="start a process of its own and write its id there")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--step-seconds", type=float, default=0.001)
    parser.add_argument("--low", type=int, default=32)
    parser.add_argument("--high", type=int, default=127)
    parser.add_argument("--protocol", type=int, default=PROTOCOL)
    options = parser.parse_args()
    names = tuple(field.name for field in fields(_Faults))
    faults = _Faults(**{name: getattr(options, name) for name in names})
    if options.once is not None:
        if options.once.exists():
            faults = _Faults()
        options.once.touch()
    if faults.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.grandchild is not None:
        options.grandchild.write_text(str(subprocess.Popen(["/bin/sleep", "1000"]).pid))
    page = mmap.mmap(options.progress, PAGE_BYTES)
    link = socket.socket(fileno=options.link)
    engine = _Engine(link, ProgressWriter(memoryview(page)), faults, options)
    engine.run()


if __name__ == "__main__":
    main()
