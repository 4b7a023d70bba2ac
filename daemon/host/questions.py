"""Questions to an engine (`Probe`, `Stats`) and the futures that wait for their answers."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemon.core.wire import Answer, Command, Probe, Probed, Statistics, Stats
from daemon.host.link import CommandSink


class NoEngine(Exception):
    """The engine went away before it answered, or there is none."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question that waits for its answer."""

    engine: int
    answer: asyncio.Future[Answer]


class Questions:
    """Asks engines. Ids are unique for the life of the front process."""

    def __init__(self) -> None:
        self._sinks: dict[int, CommandSink] = {}
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Asked] = {}

    def engine_up(self, engine: int, sink: CommandSink) -> None:
        """From now on it can be asked."""
        self._sinks[engine] = sink

    def engine_down(self, engine: int) -> None:
        """It is gone: whoever waits for its answers gets NoEngine."""
        self._sinks.pop(engine, None)
        for number in [number for number, asked in self._waiting.items() if asked.engine == engine]:
            future = self._waiting.pop(number).answer
            if not future.done():
                future.set_exception(NoEngine())

    def outstanding(self, engine: int) -> bool:
        """Whether the engine owes an answer."""
        return any(asked.engine == engine for asked in self._waiting.values())

    def answer(self, answers: Sequence[Answer]) -> None:
        """Deliver what came; answers nobody waits for any more are dropped."""
        for answer in answers:
            asked = self._waiting.pop(answer.id, None)
            if asked is not None and not asked.answer.done():
                asked.answer.set_result(answer)

    async def probe(self, engine: int = 0) -> str:
        """Have an idle engine generate one token. Empty on success, else what went wrong. Raises NoEngine."""
        answer = await self._ask(engine, Probe)
        return answer.detail if isinstance(answer, Probed) else f"the engine answered a probe with {type(answer).__name__}"

    async def statistics(self, engine: int = 0) -> Statistics | None:
        """Totals since the engine started. Raises NoEngine."""
        answer = await self._ask(engine, Stats)
        return answer if isinstance(answer, Statistics) else None

    async def _ask(self, engine: int, question: Callable[[int], Command]) -> Answer:
        sink = self._sinks.get(engine)
        if sink is None:
            raise NoEngine
        number = next(self._ids)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = _Asked(engine, future)
        sink.send(question(number))
        try:
            return await future
        finally:
            self._waiting.pop(number, None)
