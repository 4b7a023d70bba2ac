"""The engine's loop: obey commands, take a step, say what happened. One thread; every call of the backend is made here.

An idle engine waits on the inbox and uses no processor time. The loop decides nothing about people: order and pace come as
commands.
"""

import time

from daemon.core.exit_codes import ExitCode
from daemon.core.wire import (
    Answer,
    Cancel,
    Command,
    Configure,
    Drain,
    Event,
    Failed,
    FailureClass,
    Keep,
    Phase,
    Pool,
    Probe,
    Quote,
    Stats,
    Steer,
    Step,
    Submit,
    Suspend,
)
from daemon.engine.backend import Backend, StepResult
from daemon.engine.inbox import Inbox
from daemon.engine.page import ProgressPage
from daemon.engine.writer import ReportWriter


class EngineLoop:
    """Runs a loaded backend until it is drained or the front is gone."""

    def __init__(self, backend: Backend, inbox: Inbox, writer: ReportWriter, page: ProgressPage) -> None:
        self._backend = backend
        self._inbox = inbox
        self._writer = writer
        self._page = page
        self._steps = 0
        self._draining = False
        self._answers: list[Answer] = []
        self._refused: list[Event] = []
        self._pool = Pool(pages=0, referenced=0, slots=0, running=0, pending=0)

    def run(self) -> ExitCode:
        """Until there is nothing left to do. Raises EngineFailed and FrontStuck."""
        while True:
            if self._inbox.closed is not None:
                return ExitCode.OK if not self._inbox.closed else ExitCode.FAILED
            if self._backend.busy():
                commands = self._inbox.take()
            elif self._draining and not self._backend.in_flight():
                return ExitCode.OK
            else:
                # A grammar may be compiled now, or a picture decoded: beside this thread, for a request.
                self._page.idle(Phase.IDLE, self._backend.in_flight())
                commands = self._inbox.wait()
            for command in commands:
                self._obey(command)
            if self._backend.busy():
                self._step()
            else:
                self._rest()

    def _rest(self) -> None:
        """Report what commands have changed, since no step will: answers, refusals, the room that a cancelled request left."""
        pool = self._backend.pool()
        if self._answers or self._refused or pool != self._pool:
            self._pool = pool
            self._report(StepResult(Phase.IDLE, pool))

    def _step(self) -> None:
        self._steps += 1
        phase = Phase.DRAINING if self._draining else Phase.DECODE
        self._page.begin(self._steps, phase, self._backend.in_flight())
        result = self._backend.step()
        self._page.count(result.durations.prefill_tokens, result.durations.decode_tokens)
        self._pool = result.pool
        self._report(result)

    def _report(self, result: StepResult) -> None:
        self._writer.put(
            Step(
                n=self._steps,
                t=time.monotonic(),
                phase=Phase.DRAINING if self._draining else result.phase,
                pool=result.pool,
                durations=result.durations,
                events=[*self._refused, *result.events] if self._refused else result.events,
                answers=[*self._answers, *result.answers] if self._answers else result.answers,
            )
        )
        self._answers = []
        self._refused = []

    def _obey(self, command: Command) -> None:
        match command:
            case Submit():
                self._submit(command)
            case Cancel(id=request):
                self._backend.cancel(request)
            case Suspend(id=request):
                self._backend.suspend(request)
            case Steer():
                self._backend.steer(command)
            case Keep():
                self._backend.keep(command)
            case Quote() | Probe() | Stats():
                self._ask(command)
            case Drain():
                self._draining = True
            case Configure():
                # A link configures one engine once. Loading something else takes a new process.
                pass

    def _ask(self, question: Quote | Probe | Stats) -> None:
        match question:
            case Quote():
                self._answers.append(self._backend.quote(question))
            case Probe(id=request):
                self._backend.probe(request)
            case Stats(id=request):
                self._answers.append(self._backend.statistics(request))

    def _submit(self, request: Submit) -> None:
        if self._draining:
            self._refused.append(
                Failed(request.id, request.attempt, FailureClass.INTERNAL, "the engine is draining and takes no new request")
            )
            return
        self._backend.submit(request)
