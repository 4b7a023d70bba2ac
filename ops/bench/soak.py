"""Hours of use in minutes: clients that stream, cancel, stall and vanish while the engine is killed now and then.

1. Rounds of clients (`soak_clients`) on a tiny hybrid with its real scheduler, cache and recurrent slots; in each round of the
   first two thirds the engine may be killed once, at a random moment.
2. After each round everybody leaves, and once no request is open the daemon is looked at (`vitals`).
3. At the end `soak_verdict` says what grew: memory, threads and descriptors of the front and of the last engine, asyncio tasks,
   streams, pages and slots in use.
"""

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec

from daemon.core.settings import ServerSettings, Settings, SupervisorSettings
from ops.admin_socket import fetch_status, socket_path
from ops.bench import tiny_hybrid
from ops.bench.client import prompt_text, session_for
from ops.bench.processes import RunningDaemon, Setup, daemon, end_of
from ops.bench.soak_clients import Client, Crowd
from ops.bench.soak_verdict import Trend, trend
from ops.bench.values import Load
from ops.bench.vitals import Vitals, gauges, process_vitals
from ops.errors import BenchFailed

_POLL = 0.05
_PATIENCE = 240.0
_SETTLING = 30.0
"""Seconds after which whatever is still held counts as kept."""
_KILLED = 0.67
"""Share of the time in which engines are killed; the last one is left to grow, if it does."""

_ALLOWED_MIB = 8.0
_ALLOWED_SHARE = 0.04
"""A process may gain the larger of the two after the warm-up: allocators do not give everything back."""
_ALLOWED_COUNTS = {"threads": 1.0, "descriptors": 2.0, "tasks": 1.0}
_EMPTY = (
    "exl3d_open_streams",
    "exl3d_num_requests_running",
    "exl3d_num_requests_waiting",
    "exl3d_kv_cache_pages_used",
    "exl3d_engine_requests_pending",
)
"""What must be nothing when nobody asks: streams, requests in slots, requests that wait, pages that are held."""
_TASKS = "exl3d_asyncio_tasks"


@dataclass(frozen=True, slots=True)
class Size:
    """How long and how hard."""

    minutes: float = 10.0
    rounds: int = 24
    clients: int = 10
    tokens: int = 48
    kills: int | None = None
    """None: in every second round."""
    seed: int = 7


class Soak(msgspec.Struct, frozen=True):
    """The figures, as `make soak` prints them last."""

    minutes: float
    rounds: int
    kills: int
    clients: dict[str, int]
    """How many of each habit there were."""
    problems: dict[str, int]
    """What clients met that they should not have."""
    left: dict[str, float]
    """What was still held at a quiet moment, at most."""
    trends: dict[str, Trend | None]
    grown: list[str]
    """What grew, and what was not given back; empty is good."""


async def measure(size: Size) -> Soak:
    """Run it. Raises BenchFailed."""
    with tempfile.TemporaryDirectory(prefix="exl3d-bench-") as folder:
        words = prompt_text(Load(streams=1, requests=1, tokens=1, prompt_tokens=5000), 0)
        model = await asyncio.to_thread(tiny_hybrid.write, Path(folder, "tiny-hybrid"), words)
        base = Settings(
            server=ServerSettings(stall_buffer=64, keepalive_seconds=1.0),
            supervisor=SupervisorSettings(restarts=1000, backoff_seconds=0.05, backoff_limit_seconds=0.1),
        )
        async with daemon(Setup(model, "cpu", 16384, 6, base=base, log_level="info")) as served, session_for(None) as session:
            return await _Soaking(served, session, size).run()


class _Soaking:
    """One run."""

    def __init__(self, served: RunningDaemon, session: aiohttp.ClientSession, size: Size) -> None:
        self._served = served
        self._session = session
        self._size = size
        self._chance = random.Random(size.seed)  # noqa: S311  # moments, not secrets
        self._crowd = Crowd()
        self._seen: list[Vitals] = []
        self._kills = 0

    async def run(self) -> Soak:
        size = self._size
        killing = int(size.rounds * _KILLED)
        wanted = (killing + 1) // 2 if size.kills is None else size.kills
        fatal = set(self._chance.sample(range(killing), min(wanted, killing)))
        for number in range(size.rounds):
            await self._round(number, kill=number in fatal)
            vitals = await self._quiet()
            self._seen.append(vitals)
            self._tell(number, vitals)
        return self._figures()

    async def _round(self, number: int, *, kill: bool) -> None:
        until = time.monotonic() + self._size.minutes * 60 / self._size.rounds
        async with asyncio.TaskGroup() as tasks:
            for client in range(self._size.clients):
                tasks.create_task(self._live(Client(self._served, self._crowd, 1000 * number + client, self._size.tokens), until))
            if kill:
                tasks.create_task(self._kill(until))

    @staticmethod
    async def _live(client: Client, until: float) -> None:
        while time.monotonic() < until:
            await client.once(until - time.monotonic())

    async def _kill(self, until: float) -> None:
        await asyncio.sleep(self._chance.uniform(0.1, 0.8) * max(0.0, until - time.monotonic()))
        engine = await self._engine()
        if engine is not None:
            os.kill(engine, signal.SIGKILL)
            self._kills += 1

    async def _engine(self) -> int | None:
        status = await asyncio.to_thread(fetch_status, socket_path(self._served.state))
        return next((engine.pid for engine in status.engines if engine.state == "ready"), None)

    async def _quiet(self) -> Vitals:
        """The daemon once nobody asks anything, or after a while what it still holds."""
        began = time.monotonic()
        while True:
            waited = time.monotonic() - began
            engine = await self._engine()
            if engine is not None:
                held = gauges(await self._metrics())
                if waited > _SETTLING or not any(held.get(name, 0.0) for name in _EMPTY):
                    return await asyncio.to_thread(self._look, engine, held)
            if waited > _PATIENCE:
                raise BenchFailed(f"no engine came back: {end_of(self._served.log)}")
            await asyncio.sleep(_POLL)

    def _look(self, engine: int, held: Mapping[str, float]) -> Vitals:
        front = process_vitals(self._served.front)
        if front is None:
            raise BenchFailed(f"the daemon is gone: {end_of(self._served.log)}")
        return Vitals(front, process_vitals(engine), engine, held)

    async def _metrics(self) -> str:
        async with self._session.get(self._served.health_url.replace("/health", "/metrics")) as answer:
            return await answer.text()

    def _tell(self, number: int, vitals: Vitals) -> None:
        front, engine = vitals.front, vitals.engine
        print(
            f"round {number + 1} of {self._size.rounds}: front {front.rss_mib} MiB, {front.threads} threads,"
            f" {front.descriptors} descriptors; engine {'-' if engine is None else engine.rss_mib} MiB;"
            f" {sum(self._crowd.done.values())} clients, {self._kills} kills",
            file=sys.stderr,
        )

    def _figures(self) -> Soak:
        seen = self._seen
        last = [vitals.engine for vitals in seen if vitals.engine is not None and vitals.engine_pid == seen[-1].engine_pid]
        fronts = [vitals.front for vitals in seen]
        trends = {
            "front_rss_mib": _memory([one.rss_mib for one in fronts]),
            "front_threads": trend([one.threads for one in fronts], _ALLOWED_COUNTS["threads"]),
            "front_descriptors": trend([one.descriptors for one in fronts], _ALLOWED_COUNTS["descriptors"]),
            "front_tasks": trend([vitals.gauges[_TASKS] for vitals in seen if _TASKS in vitals.gauges], _ALLOWED_COUNTS["tasks"]),
            "engine_rss_mib": _memory([one.rss_mib for one in last]),
            "engine_threads": trend([one.threads for one in last], _ALLOWED_COUNTS["threads"]),
            "engine_descriptors": trend([one.descriptors for one in last], _ALLOWED_COUNTS["descriptors"]),
        }
        left = {name: max(vitals.gauges.get(name, 0.0) for vitals in seen) for name in _EMPTY}
        grown = [name for name, found in trends.items() if found is not None and found.grown]
        grown += [name for name, most in left.items() if most]
        return Soak(
            minutes=self._size.minutes,
            rounds=len(seen),
            kills=self._kills,
            clients={habit.value: times for habit, times in self._crowd.done.items()},
            problems=dict(self._crowd.problems),
            left=left,
            trends=trends,
            grown=grown,
        )


def _memory(values: Sequence[float]) -> Trend | None:
    return trend(values, max(_ALLOWED_MIB, _ALLOWED_SHARE * max(values, default=0.0)))
