"""What one daemon consists of, put together: joins `host`, `chat` and `api`. Imported by the daemon's own roots alone."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from aiohttp import web

from daemon.api.admin import build_admin
from daemon.api.application import build, runner
from daemon.api.context import API
from daemon.api.doorman import ADMIN_PREFIX
from daemon.chat.prompt import PromptBuilder
from daemon.core.admission_values import Policy as SharingPolicy
from daemon.core.errors import ConfigError
from daemon.core.layout import Place, places
from daemon.core.pictures import PictureRule
from daemon.core.poison import Policy as PoisonPolicy
from daemon.core.ports import ModelCard
from daemon.core.promises import promise_problem, sharing_policy
from daemon.core.settings import Settings
from daemon.core.supervision_values import Policy
from daemon.core.wire import Configure
from daemon.host.conviction_store import NAME as CONVICTIONS
from daemon.host.conviction_store import ConvictionStore
from daemon.host.crew import Crew
from daemon.host.engine_process import ENGINE_ARGV
from daemon.host.engines import Engines, OwnCards
from daemon.host.fit import Forecast, wants_gpu
from daemon.host.health import Surroundings, Watch
from daemon.host.incident_store import IncidentStore
from daemon.host.logs import Logging, log_request
from daemon.host.model_directory import Reading
from daemon.host.notify import Systemd
from daemon.host.operations import Operations
from daemon.host.overseen import Overseen
from daemon.host.people_store import PeopleBook
from daemon.host.picture_rule import read_picture_rule
from daemon.host.plan_store import PlanStore
from daemon.host.questions import Questions
from daemon.host.quota_store import QuotaStore
from daemon.host.recovery import RecoveryFigures
from daemon.host.reloading import Reloader
from daemon.host.settings_file import Configuration
from daemon.host.streams import StreamRegistry
from daemon.host.supervisor import Supervisor, View
from daemon.host.tokenizer_pool import TokenizerPool
from daemon.host.vacancy import Vacancy
from daemon.host.watchdog import Watchdog
from daemon.host.workforce import Workforce

HEARING = 2.0
"""Seconds in which the kernel and the driver have said what they say about an engine's death."""

Read = Callable[[], Configuration]
"""Reads the configuration again, as it was read at the start."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a daemon is made from."""

    configuration: Configuration
    read: Read
    people: PeopleBook
    reading: Reading
    version: str
    forecast: Forecast
    """What is known about memory: the model fits, as far as anybody can tell before loading it."""


@dataclass(frozen=True, slots=True)
class Parts:
    """One daemon's parts."""

    reloader: Reloader
    tokenizer: TokenizerPool
    streams: StreamRegistry
    engines: Engines
    watch: Watch
    watchdog: Watchdog
    incidents: IncidentStore
    quota: QuotaStore
    convictions: ConvictionStore
    plans: PlanStore


@dataclass(frozen=True, slots=True)
class _Ground:
    """What the parts stand on: decided before any of them is made."""

    settings: Settings
    state_dir: Path
    on_gpu: bool
    places: tuple[Place, ...]
    card: ModelCard
    sharing: SharingPolicy
    poison: PoisonPolicy

    @classmethod
    def of(cls, origin: Origin) -> "_Ground":
        """From what the daemon is made from. Raises ConfigError where engines or promises cannot be laid out so."""
        settings = origin.configuration.settings
        on_gpu = wants_gpu(settings.engine.backend)
        cards = [gpu.uuid for gpu in origin.forecast.census.gpus] if on_gpu else None
        layout = places(settings.engine, cards, os.cpu_count() or 1)
        people = origin.people.current()
        problem = promise_problem(people, settings, len(layout))
        if problem is not None:
            raise ConfigError(problem)
        return cls(
            settings=settings,
            state_dir=origin.configuration.state_dir,
            on_gpu=on_gpu,
            places=layout,
            card=_card(settings, origin.reading),
            sharing=sharing_policy(people, settings),
            poison=PoisonPolicy(memory=settings.supervisor.poison_memory_hours * 3600),
        )


def assemble(origin: Origin, systemd: Systemd, on_change: Callable[[str, View], None]) -> Parts:
    """The parts of a daemon, none of them running yet. `on_change` hears of every engine's state, with what people call that
    engine. Raises ConfigError.
    """
    ground = _Ground.of(origin)
    settings, state_dir = ground.settings, ground.state_dir
    convictions = ConvictionStore(state_dir / CONVICTIONS, ground.poison, time.time)
    tokenizer = TokenizerPool(origin.reading.model, origin.reading.tokenizer)
    streams = _registry(ground, tokenizer, convictions)
    questions = Questions()
    incidents = IncidentStore(state_dir, settings.watchdog.incident_days)
    plans = PlanStore(state_dir, origin.forecast, settings.engine, ground.card.context, time.time)
    engines = Engines(time.monotonic)

    async def ask_idle() -> None:
        """Idle engines prove themselves by a token. `watch`, which asks them, is made last: it looks at all the others."""
        await watch.ask_idle()

    watchdog = Watchdog(settings.watchdog, verdicts=engines.hand_on, incidents=incidents, gpu=ground.on_gpu, ask=ask_idle)
    crew = Overseen(Crew(streams, questions), watchdog.stepped, plans.loaded)
    oversight = _Oversight(crew, watchdog, incidents, streams.recovery, on_change)
    for place in ground.places:
        engines.add(_supervisor(origin.reading.model.path, ground, place, oversight))
    watch = Watch(
        version=origin.version,
        streams=streams,
        questions=questions,
        views=engines.views,
        stall_limit=settings.supervisor.step_stall_seconds,
        clock=time.monotonic,
        surroundings=Surroundings(watchdog.senses, watchdog.readings, incidents.counts),
        gpus=[place.gpus or () for place in ground.places],
    )
    return Parts(
        reloader=_reloader(origin, systemd, streams),
        tokenizer=tokenizer,
        streams=streams,
        engines=engines,
        watch=watch,
        watchdog=watchdog,
        incidents=incidents,
        quota=QuotaStore(state_dir),
        convictions=convictions,
        plans=plans,
    )


def _registry(ground: _Ground, tokenizer: TokenizerPool, convictions: ConvictionStore) -> StreamRegistry:
    return StreamRegistry(
        card=ground.card,
        vocabulary=tokenizer.vocabulary,
        special=tokenizer.special,
        settings=ground.settings.server,
        on_end=log_request,
        clock=time.monotonic,
        engines=len(ground.places),
        convictions=convictions,
        poison=ground.poison,
        sharing=ground.sharing,
        pace=ground.settings.sharing.itl_target_ms / 1000,
    )


@dataclass(frozen=True, slots=True)
class _Oversight:
    """What every supervisor works with, and whom it tells."""

    workforce: Workforce
    watchdog: Watchdog
    incidents: IncidentStore
    recovery: Callable[[int], RecoveryFigures]
    on_change: Callable[[str, View], None]


def _supervisor(model: str, ground: _Ground, place: Place, oversight: _Oversight) -> Supervisor:
    """The supervisor of one engine, which loads the model directory at the path `model`."""
    several = len(ground.places) > 1
    name = f"engine {place.number}" if several else "engine"
    state_dir = ground.state_dir / place.folder
    return Supervisor(
        engine=place.number,
        argv=ENGINE_ARGV,
        configure=Configure(model, ground.card.context, place.settings, str(state_dir)),
        policy=replace(Policy.of(ground.settings.supervisor), hearing=HEARING if several else None),
        workforce=oversight.workforce,
        on_change=partial(oversight.on_change, name),
        name=name,
        environment=place.environment,
        incidents=oversight.incidents,
        vacancy=_vacancy(oversight.watchdog, place),
        witness=oversight.watchdog,
        recovery=oversight.recovery,
    )


def _reloader(origin: Origin, systemd: Systemd, streams: StreamRegistry) -> Reloader:
    """Reads the configuration again. From now on a change of people is a change of shares, and refused where it promises what
    no engine can hold.
    """

    def read() -> Configuration:
        """In the reloader's thread: what may block."""
        again = origin.read()
        origin.people.look()
        return again

    reloader = Reloader(origin.configuration.settings, read, systemd)
    origin.people.add_check(lambda people: streams.guarantee_problem(sharing_policy(people, reloader.settings)))
    origin.people.on_change(lambda people: streams.share(sharing_policy(people, reloader.settings)))
    return reloader


def _vacancy(watchdog: Watchdog, place: Place) -> Vacancy | None:
    """Tells when the memory of this engine's cards has come back; None where nobody reads them."""
    gauge = watchdog.gauge
    if gauge is None:
        return None
    return Vacancy(gauge if place.gpus is None else OwnCards(gauge, watchdog.readings, place.gpus))


def context_of(settings: Settings, own: int) -> int:
    """Longest request, in tokens: what the model knows, unless the configuration says less."""
    return min(own, settings.context or own)


def _card(settings: Settings, reading: Reading) -> ModelCard:
    model = reading.model
    return ModelCard(
        name=model.name,
        aliases=tuple(settings.aliases),
        context=context_of(settings, model.context),
        eos=model.eos,
        vocabulary=model.vocabulary,
        architecture=model.architecture,
        defaults=model.defaults,
        created=int(time.time()),
        pictures=_pictures(settings, reading),
    )


def _pictures(settings: Settings, reading: Reading) -> PictureRule | None:
    """What the model does with pictures, where its tower is loaded. Raises ConfigError where exl3d cannot count them."""
    engine = settings.engine
    return read_picture_rule(Path(reading.model.path)).limited(engine.vision_tokens) if engine.vision else None


@dataclass(frozen=True, slots=True)
class Fronts:
    """What is served."""

    people: web.AppRunner
    """The API."""
    admin: web.AppRunner
    """The admin socket."""
    problem: str | None
    """Why no chat can be served, completions only."""


def serve(parts: Parts, origin: Origin, stopping: Callable[[], bool]) -> Fronts:
    """The applications around a daemon's parts. From now on the reloader knows every part that takes new settings."""
    prompts = PromptBuilder(origin.reading.model, media=parts.streams.card().pictures is not None)
    app = build(
        serving=parts.streams,
        watching=parts.watch,
        tokenizing=parts.tokenizer,
        prompts=prompts,
        added=origin.reading.model.added,
        settings=origin.configuration.settings,
        version=origin.version,
        people=origin.people,
        ledger=parts.quota,
    )
    journal = Logging(journal="JOURNAL_STREAM" in os.environ)
    parts.reloader.take((origin.people, parts.streams, app[API].in_force, journal))
    operations = Operations(
        engines=parts.engines, intake=parts.streams, reloader=parts.reloader, stopping=stopping, clock=time.monotonic
    )
    app.add_subapp(ADMIN_PREFIX, build_admin(parts.watch, operations, parts.incidents))  # the doorman lets admins through alone
    return Fronts(
        runner(app),
        web.AppRunner(build_admin(parts.watch, operations, parts.incidents), access_log=None),
        None if prompts.problem is None else str(prompts.problem),
    )
