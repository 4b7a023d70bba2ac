"""Questions to an engine (`Probe`, `Stats`, `Quote`) and the futures that wait for their answers."""

import asyncio
import itertools
from collections.abc import Callable, Sequence

from daemon.core.wire import Answer, Command, Probe, Probed, Statistics, Stats
from daemon.host.link import CommandSink


class NoEngine(Exception):
    """The engine went away before it answered, or there is none."""


class Questions:
    """Asks whichever engine there is. Ids are unique for the life of the front process."""

    def __init__(self) -> None:
        self._sink: CommandSink | None = None
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    def engine_up(self, sink: CommandSink) -> None:
        """From now on this engine is asked."""
        self._sink = sink

    def engine_down(self) -> None:
        """There is no engine: whoever waits gets NoEngine."""
        self._sink = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(NoEngine())

    @property
    def outstanding(self) -> bool:
        """Whether the engine owes an answer."""
        return bool(self._waiting)

    def answer(self, answers: Sequence[Answer]) -> None:
        """Deliver what came; answers nobody waits for any more are dropped."""
        for answer in answers:
            future = self._waiting.pop(answer.id, None)
            if future is not None and not future.done():
                future.set_result(answer)

    async def probe(self) -> str:
        """Have an idle engine generate one token. Empty on success, else what went wrong. Raises NoEngine."""
        answer = await self._ask(Probe)
        return answer.detail if isinstance(answer, Probed) else f"the engine answered a probe with {type(answer).__name__}"

    async def statistics(self) -> Statistics | None:
        """Totals since the engine started. Raises NoEngine."""
        answer = await self._ask(Stats)
        return answer if isinstance(answer, Statistics) else None

    async def _ask(self, question: Callable[[int], Command]) -> Answer:
        if self._sink is None:
            raise NoEngine
        number = next(self._ids)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._sink.send(question(number))
        try:
            return await future
        finally:
            self._waiting.pop(number, None)
