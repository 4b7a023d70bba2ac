"""What one daemon consists of, put together: joins `host`, `chat` and `api`. Imported by the daemon's own roots alone."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from daemon.api.admin import build_admin
from daemon.api.application import build, runner
from daemon.api.context import API
from daemon.chat.prompt import PromptBuilder
from daemon.core.admission_values import Policy as SharingPolicy
from daemon.core.admission_views import guarantee_problem
from daemon.core.errors import ConfigError
from daemon.core.people import People
from daemon.core.poison import Policy as PoisonPolicy
from daemon.core.ports import ModelCard
from daemon.core.settings import BackendKind, Settings
from daemon.core.supervision_values import Judged, Policy
from daemon.core.wire import Configure
from daemon.host.conviction_store import NAME as CONVICTIONS
from daemon.host.conviction_store import ConvictionStore
from daemon.host.crew import Crew
from daemon.host.engine_process import ENGINE_ARGV
from daemon.host.health import Surroundings, Watch
from daemon.host.incident_store import IncidentStore
from daemon.host.logs import Logging, log_request
from daemon.host.model_directory import Reading
from daemon.host.notify import Systemd
from daemon.host.operations import Operations
from daemon.host.overseen import Overseen
from daemon.host.people_store import PeopleBook
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
ENGINES = 1
"""One engine so far; every part but this number takes several."""


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


@dataclass(frozen=True, slots=True)
class Parts:
    """One daemon's parts."""

    reloader: Reloader
    tokenizer: TokenizerPool
    streams: StreamRegistry
    supervisors: tuple[Supervisor, ...]
    watch: Watch
    watchdog: Watchdog
    incidents: IncidentStore
    quota: QuotaStore
    convictions: ConvictionStore


def assemble(origin: Origin, systemd: Systemd, on_change: Callable[[View], None]) -> Parts:
    """The parts of a daemon, none of them running yet. `on_change` hears of every engine's state. Raises ConfigError."""
    configuration, reading = origin.configuration, origin.reading
    settings = configuration.settings
    sharing = sharing_policy(origin.people.current(), settings)
    _refuse_promises(sharing, settings)
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
        engines=ENGINES,
        convictions=convictions,
        poison=poison,
        sharing=sharing,
        pace=settings.sharing.itl_target_ms / 1000,
    )
    questions = Questions()
    incidents = IncidentStore(configuration.state_dir, settings.watchdog.incident_days)
    supervisors: list[Supervisor] = []

    def hand_on(engine: int | None, verdict: Judged) -> None:
        """To the engine a verdict is about; to all of them where it is about the machine."""
        for supervisor in supervisors if engine is None else supervisors[engine : engine + 1]:
            supervisor.post(verdict)

    async def have_asked() -> None:
        """Idle engines prove themselves by a token."""
        await watch.deep()

    on_gpu = settings.engine.backend in {BackendKind.AUTO, BackendKind.CUDA}
    watchdog = Watchdog(settings.watchdog, verdicts=hand_on, incidents=incidents, gpu=on_gpu, ask=have_asked)
    crew = Overseen(Crew(streams, questions), watchdog.stepped)
    supervisors += [
        Supervisor(
            engine=engine,
            argv=ENGINE_ARGV,
            configure=Configure(reading.model.path, card.context, settings.engine, str(configuration.state_dir)),
            policy=Policy.of(settings.supervisor),
            workforce=crew,
            on_change=on_change,
            incidents=incidents,
            vacancy=Vacancy(watchdog.gauge) if on_gpu and watchdog.gauge is not None else None,
            witness=watchdog,
            recovery=streams.recovery,
        )
        for engine in range(ENGINES)
    ]
    watch = Watch(
        version=origin.version,
        streams=streams,
        questions=questions,
        views=[each.view for each in supervisors],
        stall_limit=settings.supervisor.step_stall_seconds,
        clock=time.monotonic,
        surroundings=Surroundings(watchdog.senses, watchdog.readings, incidents.counts),
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
        supervisors=tuple(supervisors),
        watch=watch,
        watchdog=watchdog,
        incidents=incidents,
        quota=QuotaStore(configuration.state_dir),
        convictions=convictions,
    )


def sharing_policy(people: People, settings: Settings) -> SharingPolicy:
    """Who may have what, for admission."""
    return SharingPolicy.of(people, settings.server, settings.engine)


def _refuse_promises(policy: SharingPolicy, settings: Settings) -> None:
    """Raise ConfigError where the configured cache cannot hold what people are promised: before minutes go by loading."""
    tokens = settings.engine.cache_tokens
    problem = None if tokens is None else guarantee_problem(policy, [(tokens // PAGE_TOKENS, PAGE_TOKENS)] * ENGINES)
    if problem is not None:
        raise ConfigError(problem)


def _card(settings: Settings, reading: Reading) -> ModelCard:
    model = reading.model
    return ModelCard(
        name=model.name,
        aliases=tuple(settings.aliases),
        context=min(model.context, settings.context or model.context),
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
        supervisors=parts.supervisors, intake=parts.streams, reloader=parts.reloader, stopping=stopping, clock=time.monotonic
    )
    return Fronts(
        runner(app),
        web.AppRunner(build_admin(parts.watch, operations, parts.incidents), access_log=None),
        None if prompts.problem is None else str(prompts.problem),
    )
