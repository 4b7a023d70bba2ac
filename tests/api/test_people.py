"""People at the door: keys that come and go, quotas, limits of their own, deadlines, and the headers that tell of them."""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import anthropic
import openai
import pytest
from aiohttp import ClientResponse, web
from aiohttp.test_utils import make_mocked_request

from daemon.api import auth
from daemon.api.auth import Authenticator
from daemon.api.context import API
from daemon.api.rate_limits import duration
from daemon.core.errors import Overloaded, RequestError, RequestTimeout, Unauthorized
from daemon.core.keys import SALT_BYTES, SECRET_BYTES, hash_key, new_key
from daemon.core.people import People, merge
from daemon.core.quota import DAY_SECONDS, day_of
from daemon.core.settings import KeySettings, PersonSettings, Role, ServerSettings, Settings, SharingSettings
from tests.api.conftest import Client, Connect
from tests.api.fakes import CARD, FakeLedger, FakePeople, FakeServing, application, breaks, says
from tests.api.reading import CHAT, Json, error_of, until

PATH = "/v1/chat/completions"
BODIES: Mapping[str, Json] = {
    PATH: CHAT,
    "/v1/completions": {"prompt": "UserMessage: Hi!"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {**CHAT, "model": CARD.name, "max_tokens": 16},
}
PROMPT = len("UserMessage: Hi\n")
"""Tokens of CHAT, as the fakes render and count it."""


def made_key() -> tuple[str, str]:
    """A key and its hash."""
    salt = os.urandom(SALT_BYTES)
    key = new_key(salt, os.urandom(SECRET_BYTES))
    return key, hash_key(key, salt)


KEY, HASH = made_key()
OTHER, OTHER_HASH = made_key()
ANN = {"x-api-key": KEY}
BOTH = [KeySettings(name="ann", hash=HASH), KeySettings(name="bob", hash=OTHER_HASH)]


def people_of(*keys: KeySettings, limits: Sequence[PersonSettings] = (), sharing: SharingSettings | None = None) -> People:
    return merge(keys, limits, sharing or SharingSettings())


def app_of(
    serving: FakeServing, people: FakePeople, ledger: FakeLedger | None = None, settings: Settings | None = None
) -> web.Application:
    """The real application over the fakes, with people that change."""
    return application(serving, settings, people=people, ledger=ledger)


def limited(**limits: int) -> Settings:
    """Ann has a key and these limits."""
    return Settings(keys=BOTH[:1], people=[PersonSettings(name="ann", **limits)])  # pyright: ignore[reportArgumentType]  # numbers only


# --- keys ---------------------------------------------------------------------------------------------------------------------


async def test_revoked_key_is_refused_with_the_next_request_and_others_stay(connect: Connect) -> None:
    people = FakePeople(people_of(*BOTH))
    client = await connect(app_of(FakeServing(), people))
    assert (await client.post(PATH, json=CHAT, headers=ANN)).status == 200
    people.people = people_of(BOTH[1])
    refused = await client.post(PATH, json=CHAT, headers=ANN)
    assert refused.status == 401
    assert (await error_of(refused))["code"] == "invalid_api_key"
    assert (await client.post(PATH, json=CHAT, headers={"x-api-key": OTHER})).status == 200


async def test_key_that_was_unknown_is_known_once_it_is_added(connect: Connect) -> None:
    people = FakePeople(people_of(BOTH[1]))
    client = await connect(app_of(FakeServing(), people))
    assert (await client.post(PATH, json=CHAT, headers=ANN)).status == 401
    people.people = people_of(*BOTH)
    assert (await client.post(PATH, json=CHAT, headers=ANN)).status == 200


async def test_key_that_changes_hands_names_its_new_owner(connect: Connect) -> None:
    people, serving = FakePeople(people_of(*BOTH)), FakeServing()
    client = await connect(app_of(serving, people))
    await client.post(PATH, json=CHAT, headers=ANN)
    people.people = people_of(KeySettings(name="eve", hash=HASH))
    await client.post(PATH, json=CHAT, headers=ANN)
    assert [request.owner for request in serving.requests] == ["ann", "eve"]


async def test_without_any_key_left_nobody_may_ask(connect: Connect) -> None:
    closed = People(SharingSettings(), (), {}, open=False)
    client = await connect(app_of(FakeServing(), FakePeople(closed)))
    assert (await client.post(PATH, json=CHAT)).status == 401
    assert (await client.post(PATH, json=CHAT, headers=ANN)).status == 401


async def test_key_revoked_while_it_is_checked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing takes long enough for a revocation to come in between."""
    people = FakePeople(people_of(*BOTH))
    searched: list[int] = []
    search = auth._search  # pyright: ignore[reportPrivateUsage]  # the moment in between has no other name

    def revoking(key: str, accepted: Sequence[object], decoy: object) -> object:
        searched.append(len(accepted))
        found = search(key, accepted, decoy)  # pyright: ignore[reportArgumentType]  # as they came
        if len(accepted) > 1:
            people.people = people_of(BOTH[1])
        return found

    monkeypatch.setattr(auth, "_search", revoking)
    with ThreadPoolExecutor(1) as thread:
        authenticator = Authenticator(people, thread, refusal_seconds=0.001)
        with pytest.raises(Unauthorized):
            await authenticator.owner(make_mocked_request("POST", PATH, headers=ANN))
    assert searched == [2, 1]


@pytest.mark.parametrize(
    "headers",
    [{}, {"x-api-key": KEY + "0"}, {"x-api-key": "made-up"}, {"x-api-key": "x" * 5000}, {"Authorization": "Basic x"}],
)
async def test_every_refusal_leaves_at_a_multiple_of_the_same_time(
    headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was wrong, and whether it was seen before or not. The clock is the test's."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    with ThreadPoolExecutor(1) as thread:
        authenticator = Authenticator(FakePeople(people_of(*BOTH)), thread, refusal_seconds=1000.0)
        monkeypatch.setattr(auth.asyncio, "sleep", sleep)
        for _ in range(2):
            with pytest.raises(Unauthorized):
                await authenticator.owner(make_mocked_request("POST", PATH, headers=headers))
    assert len(waited) == 2
    assert all(900 < seconds <= 1000 for seconds in waited)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [(KEY + "0", 1), (new_key(bytes(SALT_BYTES), bytes(SECRET_BYTES)), 1), ("somebody's own", 2), (OTHER, 1)],
    ids=["nearly", "unknown-tag", "own-form", "of-another"],
)
def test_key_costs_the_hashes_that_its_form_calls_for(key: str, hashed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at least, also where its tag is nobody's; and all candidates, also behind the one that matches."""
    counted: list[str] = []
    matches = auth.matches

    def counting(given: str, stored: object) -> bool:
        counted.append(given)
        return matches(given, stored)  # pyright: ignore[reportArgumentType]  # as it came

    monkeypatch.setattr(auth, "matches", counting)
    with ThreadPoolExecutor(1) as thread:
        decoy = Authenticator(FakePeople(people_of()), thread)._decoy  # pyright: ignore[reportPrivateUsage]  # as it is used
    auth._search(key, people_of(*BOTH).keys, decoy)  # pyright: ignore[reportPrivateUsage]  # what is measured
    assert len(counted) == hashed


@pytest.mark.parametrize(("role", "status"), [("user", 403), ("admin", 404)])
async def test_what_is_for_admins_is_refused_to_users(connect: Connect, role: str, status: int) -> None:
    """There is nothing below /admin/ in this application, which only admins find out."""
    settings = Settings(keys=BOTH[:1], people=[PersonSettings(name="ann", role=Role(role))])
    client = await connect(application(chosen=settings))
    assert (await client.get("/admin/status", headers=ANN)).status == status
    assert (await client.get("/admin/status")).status == 401
    assert (await (await connect(application())).get("/admin/status")).status == 403


# --- quotas -------------------------------------------------------------------------------------------------------------------


async def test_tokens_of_prompt_and_answer_are_counted_at_the_end(connect: Connect) -> None:
    ledger = FakeLedger()
    client = await connect(app_of(FakeServing(says("a", "b", "c", cached=4)), FakePeople(people_of(*BOTH)), ledger))
    await (await client.post(PATH, json={**CHAT, "n": 2}, headers=ANN)).read()
    await (await client.post(PATH, json={**CHAT, "stream": True}, headers=ANN)).read()
    today = day_of(time.time())
    assert ledger.spent("ann", today) == PROMPT + 3 * 2 + PROMPT + 3
    assert ledger.spent("bob", today) == 0


async def test_answer_that_breaks_is_counted_as_far_as_it_came(connect: Connect) -> None:
    ledger = FakeLedger()
    client = await connect(app_of(FakeServing(breaks(RequestTimeout("late"), "a", "b")), FakePeople(people_of(*BOTH)), ledger))
    assert (await client.post(PATH, json=CHAT, headers=ANN)).status == 504
    assert ledger.spent("ann", day_of(time.time())) == PROMPT + 2


async def test_request_that_no_engine_began_with_costs_nothing(connect: Connect) -> None:
    ledger, serving = FakeLedger(), FakeServing(says("a"), hold=0)
    client = await connect(app_of(serving, FakePeople(people_of(*BOTH)), ledger))
    asked = asyncio.create_task(client.post(PATH, json=CHAT, headers=ANN))
    await until(lambda: len(serving.streams) == 1)
    asked.cancel()
    await asyncio.wait_for(serving.streams[0].cancelled.wait(), 60)
    assert ledger.spent("ann", day_of(time.time())) == 0
    full = FakeServing(refusal=Overloaded("full", 2, own_limit=True))
    refusing = await connect(app_of(full, FakePeople(people_of(*BOTH)), ledger))
    assert (await refusing.post(PATH, json=CHAT, headers=ANN)).status == 429
    assert ledger.spent("ann", day_of(time.time())) == 0


@pytest.mark.parametrize("path", BODIES)
async def test_used_up_quota_is_429_with_the_time_of_its_end(connect: Connect, path: str) -> None:
    serving = FakeServing(says("a", "b"))
    client = await connect(application(serving, limited(tokens_per_day=PROMPT + 1)))
    assert (await client.post(path, json=BODIES[path], headers=ANN)).status == 200
    response = await client.post(path, json=BODIES[path], headers=ANN)
    assert response.status == 429
    body = await response.json()
    assert "midnight UTC" in body["error"]["message"]
    if path == "/v1/messages":
        assert body["error"]["type"] == "rate_limit_error"
        assert response.headers["anthropic-ratelimit-tokens-remaining"] == "0"
        assert response.headers["anthropic-ratelimit-tokens-reset"].endswith("T00:00:00Z")
    else:
        assert body["error"]["code"] == "insufficient_quota"
        assert response.headers["x-ratelimit-remaining-tokens"] == "0"
    assert 0 < int(response.headers["Retry-After"]) <= DAY_SECONDS
    assert response.headers["x-should-retry"] == "false"
    assert len(serving.requests) == 1


async def test_prompt_longer_than_what_is_left_is_refused_before_it_reaches_an_engine(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving, limited(tokens_per_day=PROMPT - 1)))
    for path in (PATH, "/v1/completions"):
        body = {"prompt": ["x" * (PROMPT - 2), "yy"], **CHAT}
        response = await client.post(path, json=body, headers=ANN)
        assert response.status == 429
        assert f"{PROMPT - 1} of your {PROMPT - 1} tokens" in (await error_of(response))["message"]
    assert serving.requests == []


async def test_prompts_underway_are_held_against_the_quota(connect: Connect) -> None:
    serving = FakeServing(says("a"), hold=0)
    client = await connect(application(serving, limited(tokens_per_day=2 * PROMPT + 1)))
    asked = [asyncio.create_task(client.post(PATH, json=CHAT, headers=ANN)) for _ in range(2)]
    await until(lambda: len(serving.streams) == 2)
    assert (await client.post(PATH, json=CHAT, headers=ANN)).status == 429
    for stream in serving.streams:
        stream.release.set()
    assert [response.status for response in await asyncio.gather(*asked)] == [200, 200]


async def test_counting_tokens_and_looking_around_need_no_quota(connect: Connect) -> None:
    client = await connect(application(chosen=limited(tokens_per_day=1)))
    await client.post(PATH, json={"messages": [{"role": "user", "content": ""}], "max_tokens": 1}, headers=ANN)
    assert (await client.get("/v1/models", headers=ANN)).status == 200
    assert (await client.post("/v1/messages/count_tokens", json={**CHAT, "model": CARD.name}, headers=ANN)).status == 200


# --- limits of their own ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", BODIES)
async def test_longer_context_than_the_persons_is_400_with_their_limit(connect: Connect, path: str) -> None:
    long = "x" * 300
    body = {**BODIES[path], **{name: long for name in ("prompt", "input") if name in BODIES[path]}}
    if "messages" in body:
        body = {**body, "messages": [{"role": "user", "content": long}]}
    client = await connect(application(chosen=limited(max_context=256)))
    response = await client.post(path, json=body, headers=ANN)
    assert response.status == 400
    assert "maximum context length is 256 tokens" in (await response.json())["error"]["message"]


async def test_answer_is_fitted_into_the_persons_context_and_models_tell_it(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving, limited(max_context=256)))
    await client.post(PATH, json=CHAT, headers=ANN)
    assert serving.requests[0].max_tokens == 256 - PROMPT
    for path in ("/v1/models", f"/v1/models/{CARD.name}"):
        body = await (await client.get(path, headers=ANN)).json()
        assert body.get("data", [body])[0]["context_length"] == 256


async def test_context_of_a_person_does_not_exceed_the_models(connect: Connect) -> None:
    client = await connect(application(chosen=limited(max_context=10**9)))
    body = await (await client.get("/v1/models", headers=ANN)).json()
    assert body["data"][0]["context_length"] == CARD.context


@pytest.mark.parametrize("path", BODIES)
async def test_deadline_is_the_requests_own_or_the_configured_one(connect: Connect, path: str) -> None:
    serving = FakeServing()
    client = await connect(application(serving, Settings(sharing=SharingSettings(default_timeout_seconds=1000.0))))
    before = time.monotonic()
    for fields in ({}, {"timeout": 5000}, {"timeout": None}):
        assert (await client.post(path, json={**BODIES[path], **fields})).status == 200
    after = time.monotonic()
    for request, seconds in zip(serving.requests, (1000, 5000, 1000), strict=True):
        assert request.deadline is not None
        assert before + seconds <= request.deadline <= after + seconds
    assert (await (await connect(application(serving))).post(path, json=BODIES[path])).status == 200
    assert serving.requests[-1].deadline is None


async def test_new_settings_hold_for_the_next_request(connect: Connect) -> None:
    app = application()
    client = await connect(app)
    origin = {"Origin": "https://chat.example"}
    assert "Access-Control-Allow-Origin" not in (await client.get("/v1/models", headers=origin)).headers
    app[API].in_force.reload(Settings(server=ServerSettings(cors_origins=["https://chat.example"], max_queued=7)))
    assert (await client.get("/v1/models", headers=origin)).headers["Access-Control-Allow-Origin"] == "https://chat.example"
    assert (await client.post(PATH, json=CHAT)).headers["x-ratelimit-limit-requests"] == "7"


# --- headers ------------------------------------------------------------------------------------------------------------------


def rates(response: ClientResponse, start: str = "x-ratelimit-") -> dict[str, str]:
    return {name.lower().removeprefix(start): value for name, value in response.headers.items() if name.lower().startswith(start)}


async def ask_and_hold(client: Client, serving: FakeServing, count: int) -> list[asyncio.Task[ClientResponse]]:
    asked = [asyncio.create_task(client.post(PATH, json=CHAT, headers=ANN)) for _ in range(count)]
    await until(lambda: len(serving.streams) == count)
    return asked


async def test_headers_say_what_is_left(connect: Connect) -> None:
    serving = FakeServing(says("a", "b"), hold=0)
    client = await connect(application(serving, limited(max_concurrent=1, max_queued=2, tokens_per_day=1000)))
    asked = await ask_and_hold(client, serving, 2)
    serving.hold = None
    response = await client.post(PATH, json={**CHAT, "stream": True}, headers=ANN)
    found = rates(response)
    assert (found["limit-requests"], found["remaining-requests"], found["reset-requests"]) == ("3", "0", found["reset-requests"])
    assert found["reset-requests"] != "0s"
    assert (found["limit-tokens"], found["remaining-tokens"]) == ("1000", str(1000 - 3 * PROMPT))
    assert found["reset-tokens"].endswith("s")
    await response.read()
    for stream in serving.streams:
        stream.release.set()
    await asyncio.gather(*asked)
    found = rates(await client.post(PATH, json=CHAT, headers=ANN))
    assert (found["remaining-requests"], found["reset-requests"]) == ("3", "0s")
    assert found["remaining-tokens"] == str(1000 - 4 * (PROMPT + 2))


async def test_refusal_says_the_same_time_in_all_its_headers(connect: Connect) -> None:
    serving = FakeServing(says("a"), hold=0)
    client = await connect(application(serving, limited(max_concurrent=1, max_queued=0)))
    asked = await ask_and_hold(client, serving, 1)
    serving.refusal = Overloaded("yours", 4.25, own_limit=True)
    response = await client.post(PATH, json=CHAT, headers=ANN)
    assert (response.headers["Retry-After"], response.headers["retry-after-ms"]) == ("5", "4250")
    assert rates(response)["reset-requests"] == "5s"
    serving.streams[0].release.set()
    await asyncio.gather(*asked)


async def test_person_without_a_quota_gets_no_token_headers(connect: Connect) -> None:
    client = await connect(application())
    found = rates(await client.post(PATH, json=CHAT))
    assert set(found) == {"limit-requests", "remaining-requests", "reset-requests"}
    assert found["limit-requests"] == str(ServerSettings().max_queued)


async def test_anthropics_clients_get_their_own_names(connect: Connect) -> None:
    client = await connect(application(chosen=limited(tokens_per_day=1000)))
    response = await client.post("/v1/messages", json=BODIES["/v1/messages"], headers=ANN)
    assert set(rates(response, "anthropic-ratelimit-")) == {
        f"{kind}-{what}" for kind in ("requests", "tokens") for what in ("limit", "remaining", "reset")
    }
    assert rates(response) == {}


async def test_other_answers_have_no_rate_limit_headers(connect: Connect) -> None:
    client = await connect(application(chosen=limited(tokens_per_day=1000)))
    for response in (await client.get("/v1/models", headers=ANN), await client.post(PATH, json=CHAT)):
        assert rates(response) == {}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.017, "17ms"), (1, "1s"), (59.2, "1m0s"), (360, "6m0s"), (3600, "1h0m0s"), (47_125, "13h5m25s")],
)
def test_duration_is_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- official clients ---------------------------------------------------------------------------------------------------------


class RefusingOnce(FakeServing):
    """Refuses the first request, and no other."""

    def open(self, request: object) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]  # the fake's own types
        """Raise what was set, once."""
        try:
            return super().open(request)  # pyright: ignore[reportArgumentType]  # as it came
        finally:
            self.refusal = None


@pytest.mark.parametrize("refusal", [Overloaded("full", 0.02, own_limit=True), Overloaded("full", 0.02, own_limit=False)])
async def test_official_clients_try_again_after_the_time_they_are_told(connect: Connect, refusal: RequestError) -> None:
    serving = RefusingOnce(refusal=refusal)
    client = await connect(app_of(serving, FakePeople(people_of())))
    url = str(client.make_url("/"))
    async with openai.AsyncOpenAI(base_url=f"{url}v1", api_key="x", max_retries=1) as ours:
        answer = await ours.chat.completions.create(model=CARD.name, messages=[{"role": "user", "content": "Hi"}])
    assert answer.choices[0].message.content == "Hello there."
    serving.refusal = refusal
    async with anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=1) as theirs:
        message = await theirs.messages.create(model=CARD.name, max_tokens=9, messages=[{"role": "user", "content": "Hi"}])
    assert message.stop_reason == "end_turn"
    assert len(serving.requests) == 2


async def test_official_client_does_not_try_again_where_the_day_is_used_up(connect: Connect) -> None:
    ledger = FakeLedger()
    ledger.add("ann", day_of(time.time()), 10**6)
    people = people_of(*BOTH, limits=[PersonSettings(name="ann", tokens_per_day=1000)])
    client = await connect(app_of(FakeServing(), FakePeople(people), ledger))
    async with openai.AsyncOpenAI(base_url=f"{client.make_url('/')}v1", api_key=KEY, max_retries=5) as ours:
        with pytest.raises(openai.RateLimitError) as raised:
            await ours.chat.completions.create(model=CARD.name, messages=[{"role": "user", "content": "Hi"}])
    assert raised.value.code == "insufficient_quota"
    assert raised.value.request.headers["x-stainless-retry-count"] == "0"
