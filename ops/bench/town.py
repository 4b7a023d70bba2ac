"""A daemon on the null backend with people in it: whoever a scenario needs, each with a key, a share and limits."""

import contextlib
import os
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from daemon.core import keys
from daemon.core.settings import (
    AnswerSettings,
    EngineSettings,
    KeySettings,
    PersonSettings,
    ServerSettings,
    Settings,
    SharingOrder,
    SharingSettings,
)
from ops.bench import profile, tiny_hybrid
from ops.bench.client import prompt_text
from ops.bench.processes import RunningDaemon, Setup, daemon
from ops.bench.values import Endpoint, Load, Target


@dataclass(frozen=True, slots=True)
class Plan:
    """What the daemon is configured with."""

    cache_tokens: int
    slots: int
    speed: float = 1.0
    """How much faster than the profile passes are."""
    people: Sequence[PersonSettings] = ()
    order: SharingOrder = SharingOrder.FAIR
    itl_target_ms: float = 250.0
    """At the profile's own speed; it is divided by `speed` as the passes are."""
    max_queued: int = 256
    chunk_tokens: int = 2048
    max_concurrent: int | None = None


@dataclass(frozen=True, slots=True)
class Town:
    """The daemon and everybody's way to it."""

    served: RunningDaemon
    keys: Mapping[str, str] = field(default_factory=dict[str, str])

    def target(self, person: str | None = None) -> Target:
        """How a person asks; None: without a key."""
        key = None if person is None else self.keys[person]
        return Target(self.served.base_url, self.served.model, key, Endpoint.COMPLETIONS)


def words(count: int, seed: int) -> str:
    """A text of so many tokens, the same for the same seed: each of its words is one token of the model here."""
    return prompt_text(Load(streams=1, requests=1, tokens=1, prompt_tokens=count, seed=seed), 0)


def write_model(folder: Path) -> Path:
    """A directory that the null backend can speak the words of."""
    return tiny_hybrid.write(folder / "null-9b", words(5000, 0), ascii_only=True)


def setup(model: Path, plan: Plan, times: profile.Profile, hashes: Sequence[KeySettings]) -> Setup:
    """What the daemon is started with. Writes the times beside the model."""
    file = profile.write_for_engine(times, plan.speed, model.parent / "times.json")
    base = Settings(
        keys=list(hashes),
        people=list(plan.people),
        sharing=SharingSettings(
            order=plan.order, itl_target_ms=plan.itl_target_ms / plan.speed, max_concurrent=plan.max_concurrent
        ),
        server=ServerSettings(max_queued=plan.max_queued),
        answers=AnswerSettings(detect_repetition=False),
        engine=EngineSettings(null_profile=str(file), chunk_tokens=plan.chunk_tokens),
    )
    return Setup(model, "null", plan.cache_tokens, plan.slots, base=base)


@contextlib.contextmanager
def setup_in(plan: Plan, times: profile.Profile | None = None) -> Generator[Setup]:
    """The same for a process without people, in a folder that goes away."""
    with tempfile.TemporaryDirectory(prefix="exl3d-bench-") as folder:
        yield setup(write_model(Path(folder)), plan, times or profile.read(), ())


@contextlib.asynccontextmanager
async def town(plan: Plan, times: profile.Profile | None = None) -> AsyncGenerator[Town]:
    """Start it with a model of its own, wait until it is ready, and stop it afterwards. Raises BenchFailed."""
    with tempfile.TemporaryDirectory(prefix="exl3d-bench-") as folder:
        async with town_of(write_model(Path(folder)), plan, times) as place:
            yield place


@contextlib.asynccontextmanager
async def town_of(model: Path, plan: Plan, times: profile.Profile | None = None, backend: str = "null") -> AsyncGenerator[Town]:
    """The same with this model. On other backends than `null` passes take the time they take."""
    secrets, hashes = dict[str, str](), list[KeySettings]()
    for person in plan.people:
        salt = os.urandom(keys.SALT_BYTES)
        secrets[person.name] = keys.new_key(salt, os.urandom(keys.SECRET_BYTES))
        hashes.append(KeySettings(name=person.name, hash=keys.hash_key(secrets[person.name], salt)))
    async with daemon(replace(setup(model, plan, times or profile.read(), hashes), backend=backend)) as served:
        yield Town(served, secrets)
