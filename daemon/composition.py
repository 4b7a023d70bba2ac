"""What one daemon consists of, put together: joins `host`, `chat` and `api`. Imported by the daemon's own roots alone."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from aiohttp import web

from daemon.api.admin import build_admin
from daemon.api.application import build, runner
from daemon.api.context import API
from daemon.api.doorman import ADMIN_PREFIX
from daemon.chat.prompt import PromptBuilder
from daemon.core.admission_values import Policy as SharingPolicy
from daemon.core.admission_views import guarantee_problem
from daemon.core.errors import ConfigError
from daemon.core.layout import Place, places
from daemon.core.people import People
from daemon.core.poison import Policy as PoisonPolicy
from daemon.core.ports import ModelCard
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
from daemon.host.plan_store import PlanStore
from daemon.host.questions import Questions
from daemon.host.quota_store import QuotaStore
from daemon.host.reloading import Reloader
from daemon.host.settings_file import Configuration
from daemon.host.streams import StreamRegistry
from daemon.host.supervisor import Supervisor, View
from daemon.host.tokenizer_pool import TokenizerPool
from daemon.host.vacancy import Vacancy
from daemon.host.watchdog import Watchdog

PAGE_TOKENS = 256
"""exllamav3's pages."""
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


def assemble(origin: Origin, systemd: Systemd, on_change: Callable[[str, View], None]) -> Parts:
    """The parts of a daemon, none of them running yet. `on_change` hears of every engine's state, with what people call that
    engine. Raises ConfigError.
    """
    configuration, reading = origin.configuration, origin.reading
    settings = configuration.settings
    on_gpu = wants_gpu(settings.engine.backend)
    cards = [gpu.uuid for gpu in origin.forecast.census.gpus] if on_gpu else None
    layout = places(settings.engine, cards, os.cpu_count() or 1)
    sharing = sharing_policy(origin.people.current(), settings)
    _refuse_promises(sharing, settings, len(layout))
    poison = PoisonPolicy(memory=settings.supervisor.poison_memory_hours * 3600)
    convictions = ConvictionStore(configuration.state_dir / CONVICTIONS, poison, time.time)
    tokenizer = TokenizerPool(reading.model, reading.tokenizer)
    card = _card(settings, reading)
    streams = StreamRegistry(
        card=card,
        vocabulary=tokenizer.vocabulary,
        special=tokenizer.special,
        settings=settings.server,
        on_end=log_request,
        clock=time.monotonic,
        engines=len(layout),
        convictions=convictions,
        poison=poison,
        sharing=sharing,
        pace=settings.sharing.itl_target_ms / 1000,
    )
    questions = Questions()
    incidents = IncidentStore(configuration.state_dir, settings.watchdog.incident_days)
    engines = Engines(time.monotonic)

    async def have_asked() -> None:
        """Idle engines prove themselves by a token."""
        await watch.ask_idle()

    watchdog = Watchdog(settings.watchdog, verdicts=engines.hand_on, incidents=incidents, gpu=on_gpu, ask=have_asked)
    plans = PlanStore(configuration.state_dir, origin.forecast, settings.engine, card.context, time.time)
    crew = Overseen(Crew(streams, questions), watchdog.stepped, plans.loaded)
    for place in layout:
        name = f"engine {place.number}" if len(layout) > 1 else "engine"
        state_dir = configuration.state_dir / place.folder
        engines.add(
            Supervisor(
                engine=place.number,
                argv=ENGINE_ARGV,
                configure=Configure(reading.model.path, card.context, place.settings, str(state_dir)),
                policy=replace(Policy.of(settings.supervisor), hearing=HEARING if len(layout) > 1 else None),
                workforce=crew,
                on_change=partial(on_change, name),
                name=name,
                environment=place.environment,
                incidents=incidents,
                vacancy=_vacancy(watchdog, place),
                witness=watchdog,
                recovery=streams.recovery,
            )
        )
    watch = Watch(
        version=origin.version,
        streams=streams,
        questions=questions,
        views=engines.views,
        stall_limit=settings.supervisor.step_stall_seconds,
        clock=time.monotonic,
        surroundings=Surroundings(watchdog.senses, watchdog.readings, incidents.counts),
        gpus=[place.gpus or () for place in layout],
    )

    def read() -> Configuration:
        """In the reloader's thread: what may block."""
        again = origin.read()
        origin.people.look()
        return again

    reloader = Reloader(settings, read, systemd)
    origin.people.add_check(lambda people: streams.guarantee_problem(sharing_policy(people, reloader.settings)))
    origin.people.on_change(lambda people: streams.share(sharing_policy(people, reloader.settings)))
    return Parts(
        reloader=reloader,
        tokenizer=tokenizer,
        streams=streams,
        engines=engines,
        watch=watch,
        watchdog=watchdog,
        incidents=incidents,
        quota=QuotaStore(configuration.state_dir),
        convictions=convictions,
        plans=plans,
    )


def sharing_policy(people: People, settings: Settings) -> SharingPolicy:
    """Who may have what, for admission."""
    return SharingPolicy.of(people, settings.server, settings.engine)


def _vacancy(watchdog: Watchdog, place: Place) -> Vacancy | None:
    """Tells when the memory of this engine's cards has come back; None where nobody reads them."""
    gauge = watchdog.gauge
    if gauge is None:
        return None
    return Vacancy(gauge if place.gpus is None else OwnCards(gauge, watchdog.readings, place.gpus))


def _refuse_promises(policy: SharingPolicy, settings: Settings, engines: int) -> None:
    """Raise ConfigError where the configured cache cannot hold what people are promised: before minutes go by loading."""
    tokens = settings.engine.cache_tokens
    problem = None if tokens is None else guarantee_problem(policy, [(tokens // PAGE_TOKENS, PAGE_TOKENS)] * engines)
    if problem is not None:
        raise ConfigError(problem)


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
    )


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
    prompts = PromptBuilder(origin.reading.model)
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
