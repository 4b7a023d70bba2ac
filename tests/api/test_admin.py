"""The admin application: what it tells, what it has done, and how it says no."""

from collections.abc import Mapping

import msgspec
import pytest

from daemon.api.admin import build_admin
from daemon.core.incidents import IncidentClosed, IncidentGrew, IncidentOpened, IncidentRecord
from daemon.core.operating import Outcome, Reloaded
from daemon.core.ports import Health, Status
from tests.api.conftest import Client, Connect
from tests.api.fakes import FakeWatching

INCIDENT = IncidentRecord(
    7,
    IncidentOpened(1.5, 0, 1, "engine_dead", "process_restart", ("exit code 1",), "restart"),
    IncidentClosed(2.5, "serves"),
    1.0,
)


class FakeOperating:
    """Does what it is told to say."""

    def __init__(self, *, willing: bool = True) -> None:
        self.willing = willing
        self.asked: list[str] = []

    def _done(self, what: str) -> Outcome:
        self.asked.append(what)
        return Outcome(done=self.willing, words=what)

    def restart_engines(self, engine: int | None = None) -> Outcome:
        return self._done("restart" if engine is None else f"restart {engine}")

    def drain(self) -> Outcome:
        return self._done("drain")

    def resume(self) -> Outcome:
        return self._done("resume")

    async def reload(self) -> Reloaded:
        self.asked.append("reload")
        return Reloaded("", ("keys",), ("port",)) if self.willing else Reloaded("line 3")


class FakeIncidents:
    """Remembers how many were asked for."""

    def __init__(self) -> None:
        self.limits: list[int] = []

    async def opened(self, incident: IncidentOpened) -> int:
        raise NotImplementedError

    async def grew(self, number: int, more: IncidentGrew) -> None:
        raise NotImplementedError

    async def closed(self, number: int, end: IncidentClosed) -> None:
        raise NotImplementedError

    async def recent(self, limit: int) -> list[IncidentRecord]:
        self.limits.append(limit)
        return [INCIDENT]

    def counts(self) -> Mapping[str, int]:
        return {}


@pytest.fixture
def operating() -> FakeOperating:
    return FakeOperating()


@pytest.fixture
def incidents() -> FakeIncidents:
    return FakeIncidents()


@pytest.fixture
async def client(connect: Connect, operating: FakeOperating, incidents: FakeIncidents) -> Client:
    return await connect(build_admin(FakeWatching(), operating, incidents))


async def test_status_is_told_whole(client: Client) -> None:
    status = msgspec.json.decode(await (await client.get("/status")).read(), type=Status)
    assert status == FakeWatching().status()


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("", Health(ok=True, reason="the engine makes progress")),
        ("?depth=ready", Health(ok=True, reason="the engine makes progress")),
        ("?depth=live", Health(ok=True, reason="the daemon answers")),
    ],
)
async def test_health_is_answered_to_the_depth_asked_for(client: Client, query: str, answer: Health) -> None:
    response = await client.get(f"/health{query}")
    assert response.status == 200
    assert msgspec.json.decode(await response.read(), type=Health) == answer


async def test_bad_health_is_still_an_answer(connect: Connect) -> None:
    watching = FakeWatching()
    watching.told = Health(ok=False, reason="loading")
    client = await connect(build_admin(watching, FakeOperating(), FakeIncidents()))
    response = await client.get("/health")
    assert response.status == 200
    assert await response.json() == {"ok": False, "reason": "loading"}


async def test_incidents_are_told_newest_first_up_to_the_limit(client: Client, incidents: FakeIncidents) -> None:
    told = msgspec.json.decode(await (await client.get("/incidents?limit=3")).read(), type=list[IncidentRecord])
    assert told == [INCIDENT]
    await client.get("/incidents")
    assert incidents.limits == [3, 50]


@pytest.mark.parametrize(
    "target",
    [
        "/health?depth=deeper",
        "/incidents?limit=0",
        "/incidents?limit=many",
        "/incidents?limit=²",
        "/incidents?limit=" + 5000 * "9",
    ],
)
async def test_wrong_question_is_refused_with_words(client: Client, target: str) -> None:
    response = await client.get(target)
    assert response.status == 400
    assert (await response.json())["words"]


@pytest.mark.parametrize("name", ["restart", "drain", "resume"])
async def test_command_is_carried_out_or_answered_with_409(client: Client, operating: FakeOperating, name: str) -> None:
    assert (await client.get(f"/{name}")).status == 405
    response = await client.post(f"/{name}")
    assert (response.status, await response.json()) == (200, {"done": True, "words": name})
    operating.willing = False
    refused = await client.post(f"/{name}")
    assert (refused.status, await refused.json()) == (409, {"done": False, "words": name})
    assert operating.asked == [name, name]


async def test_one_engine_is_replaced_by_its_number(client: Client, operating: FakeOperating) -> None:
    assert (await client.post("/restart?engine=1")).status == 200
    assert (await client.post("/restart?engine=first")).status == 400
    assert operating.asked == ["restart 1"]


async def test_reload_tells_what_holds_or_is_answered_with_409(client: Client, operating: FakeOperating) -> None:
    response = await client.post("/reload")
    assert (response.status, await response.json()) == (200, {"problem": "", "applied": ["keys"], "waiting": ["port"]})
    operating.willing = False
    assert (await client.post("/reload")).status == 409
