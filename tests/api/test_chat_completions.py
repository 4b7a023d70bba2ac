"""POST /v1/chat/completions over a scripted Serving."""

import asyncio
import json

import pytest
from aiohttp import ClientResponse

from daemon.api.sse import EventStream
from daemon.core.errors import GenerationFailed, NotReady, Overloaded, PoisonousRequest, ShuttingDown
from daemon.core.events import Ended, Ending, Opened, Paused, Piece, StreamEvent
from daemon.core.requests import ValidRequest
from daemon.core.settings import Overflow
from daemon.core.wire import FailureClass
from tests.api.conftest import Client, Connect
from tests.api.fakes import CARD, EOS, FakeServing, application, breaks, says, settings, usage_of
from tests.api.reading import CHAT, Json, error_of, events, text_of, until

PATH = "/v1/chat/completions"


async def ask(client: Client, **fields: object) -> ClientResponse:
    return await client.post(PATH, json={**CHAT, **fields})


async def test_plain_chat_answers_with_message_usage_and_finish_reason(connect: Connect) -> None:
    client = await connect(application(FakeServing(says("Hello", " you", cached=3))))
    response = await ask(client, model="fake-model")
    assert response.status == 200
    body = await response.json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "fake-model"
    assert body["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "Hello you"}, "logprobs": None, "finish_reason": "stop"}
    ]
    prompt = len("UserMessage: Hi\n")
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 2,
        "total_tokens": prompt + 2,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert body["timings"]["predicted_n"] == 2
    assert body["timings"]["cache_n"] == 3


async def test_stream_gives_role_first_then_content_then_finish_reason(connect: Connect) -> None:
    client = await connect(application(FakeServing(says("Hello", " you"))))
    response = await ask(client, stream=True)
    assert response.headers["X-Accel-Buffering"] == "no"
    assert response.headers["Cache-Control"] == "no-cache"
    chunks = await events(response)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
        {"content": " you"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert all("usage" not in chunk for chunk in chunks)


async def test_include_usage_adds_one_last_chunk_without_choices(connect: Connect) -> None:
    client = await connect(application(FakeServing(says("a", "b", cached=5))))
    chunks = await events(await ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


async def test_continuous_usage_counts_up_in_every_chunk(connect: Connect) -> None:
    client = await connect(application(FakeServing(says("a", "b"))))
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await events(await ask(client, stream=True, stream_options=options))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 1, 2, 2, 2]


async def test_empty_answer_still_has_role_and_finish_reason(connect: Connect) -> None:
    client = await connect(application(FakeServing(says())))
    chunks = await events(await ask(client, stream=True))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    body = await (await ask(client)).json()
    assert body["choices"][0]["message"]["content"] == ""


async def test_text_that_json_must_escape_arrives_unchanged(connect: Connect) -> None:
    text = 'quote " backslash \\ newline \n nul \x00 emoji 🙂 ls \u2028'
    client = await connect(application(FakeServing(says(text))))
    assert text_of(await events(await ask(client, stream=True))) == text
    assert (await (await ask(client)).json())["choices"][0]["message"]["content"] == text


async def test_parameters_reach_the_request(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    await ask(
        client,
        temperature=0,
        top_p=0.9,
        top_k=-1,
        min_p=0.1,
        seed=42,
        stop=["END", "STOP", "END"],
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias={"5": -100, "6": 1.5},
        max_tokens=11,
        min_tokens=2,
        dry_multiplier=0.8,
        xtc_probability=0.5,
        xtc_threshold=0.2,
        response_format={"type": "json_object"},
    )
    (request,) = serving.requests
    sampler = request.sampler
    assert (sampler.temperature, sampler.top_p, sampler.top_k, sampler.min_p) == (0, 0.9, 0, 0.1)
    assert (sampler.frequency_penalty, sampler.presence_penalty, sampler.repetition_penalty) == (0.5, -0.5, 1.1)
    assert sampler.logit_bias == {5: -100, 6: 1.5}
    assert sampler.dry is not None
    assert sampler.dry.multiplier == 0.8
    assert sampler.xtc is not None
    assert (sampler.xtc.probability, sampler.xtc.threshold) == (0.5, 0.2)
    assert (request.max_tokens, request.min_tokens, request.seed) == (11, 2, 42)
    assert request.stop_strings == ("END", "STOP")
    assert request.stop_ids == (EOS,)
    assert request.owner == "local"
    assert request.constraint is not None
    assert json.loads(request.constraint.text) == {"type": "object"}


async def test_absent_and_null_parameters_take_the_models_defaults(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    nothing: Json = dict.fromkeys(["temperature", "top_p", "top_k", "seed", "stop", "max_tokens", "tools", "n", "logprobs"])
    await ask(client, **nothing, best_of=None, whatever=None)
    (request,) = serving.requests
    assert (request.sampler.temperature, request.sampler.top_k) == (0.7, 20)
    assert request.max_tokens == CARD.context - request.prompt_tokens
    assert request.seed is None
    assert request.logprobs is None


async def test_ignore_eos_leaves_only_the_requests_own_stop_ids(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    await ask(client, ignore_eos=True, stop_token_ids=[9])
    assert serving.requests[0].stop_ids == (9,)


async def test_max_tokens_beyond_the_room_is_lowered_and_said_in_a_header(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    response = await ask(client, max_tokens=65536)
    room = CARD.context - serving.requests[0].prompt_tokens
    assert serving.requests[0].max_tokens == room
    assert response.headers["x-exl3d-max-tokens-clamped"] == f"65536->{room}"
    streamed = await ask(client, max_tokens=65536, stream=True)
    assert streamed.headers["x-exl3d-max-tokens-clamped"] == f"65536->{room}"
    assert "x-exl3d-max-tokens-clamped" not in (await ask(client, max_tokens=16)).headers


async def test_max_tokens_beyond_the_room_is_refused_where_settings_say_so(connect: Connect) -> None:
    client = await connect(application(chosen=settings(max_tokens_overflow=Overflow.REFUSE)))
    response = await ask(client, max_tokens=65536)
    assert response.status == 400
    error = await error_of(response)
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith(
        "This model's maximum context length is 4096 tokens. However, you requested 65536 output tokens and your prompt contains"
    )


async def test_prompt_that_does_not_fit_is_refused_in_the_words_clients_parse(connect: Connect) -> None:
    serving = FakeServing()
    client = await connect(application(serving))
    response = await client.post(PATH, json={"messages": [{"role": "user", "content": "x" * 5000}], "max_tokens": 10})
    assert response.status == 400
    error = await error_of(response)
    prompt = 5000 + len("UserMessage: \n")
    assert (
        f"maximum context length is 4096 tokens. However, you requested 10 output tokens and your prompt contains {prompt}"
        in (error["message"])
    )
    assert serving.requests == []


async def test_n_choices_start_after_the_first_one_has_its_first_token(connect: Connect) -> None:
    serving = FakeServing(says("a", "b"), hold=1)
    client = await connect(application(serving))
    asked = asyncio.create_task(ask(client, n=3, seed=5))
    await until(lambda: len(serving.streams) == 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(serving.streams) == 1
    serving.hold = None
    serving.streams[0].release.set()
    body = await (await asked).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in body["choices"]] == ["ab"] * 3
    assert [request.seed for request in serving.requests] == [5, 6, 7]
    assert len({request.name for request in serving.requests}) == 3
    prompt = serving.requests[0].prompt_tokens
    assert body["usage"]["prompt_tokens"] == prompt
    assert body["usage"]["completion_tokens"] == 6


async def test_streamed_choices_are_each_complete(connect: Connect) -> None:
    client = await connect(application(FakeServing(says("a", "b", "c"))))
    chunks = await events(await ask(client, n=2, stream=True))
    assert text_of(chunks, 0) == text_of(chunks, 1) == "abc"
    finished = [choice["index"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(finished) == [0, 1]


async def test_broken_choice_ends_the_others(connect: Connect) -> None:
    def script(request: ValidRequest) -> list[StreamEvent]:
        broken = breaks(GenerationFailed(FailureClass.SAMPLING, "NaN"), "b")
        return list((broken if request.name.endswith(".1") else says(*"abcdefgh"))(request))

    serving = FakeServing(script)
    client = await connect(application(serving))
    response = await ask(client, n=3)
    assert response.status == 500
    assert (await error_of(response))["code"] == "generation_failed"
    assert all(stream.finished or stream.cancelled.is_set() for stream in serving.streams)


async def test_logprobs_come_with_text_bytes_and_alternatives(connect: Connect) -> None:
    client = await connect(application(FakeServing(says("a", "é"))))
    body = await (await ask(client, logprobs=True, top_logprobs=2)).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["a", "é"]
    assert content[1]["bytes"] == list("é".encode())
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2]
    assert content[0]["logprob"] == -0.5
    chunks = await events(await ask(client, logprobs=True, top_logprobs=2, stream=True))
    found = [choice["logprobs"]["content"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert [entry for part in found for entry in part] == content


async def test_logprobs_of_tokens_whose_text_comes_later_are_not_lost(connect: Connect) -> None:
    """Ids may run ahead of the text, as with half a character or half a stop string."""
    one = says("x", "y")

    def script(request: ValidRequest) -> list[StreamEvent]:
        opened, first, second, ended = one(request)
        assert isinstance(first, Piece)
        assert isinstance(second, Piece)
        return [opened, Piece("", first.ids, first.logprobs), Piece("x", second.ids, second.logprobs), ended]

    client = await connect(application(FakeServing(script)))
    chunks = await events(await ask(client, logprobs=True, stream=True))
    found = [choice["logprobs"]["content"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert [entry["token"] for part in found for entry in part] == ["x", "y"]


@pytest.mark.parametrize(("stop", "told"), [("END", "END"), (9, 9), (EOS, None)])
async def test_stop_reason_names_what_the_request_asked_for(connect: Connect, stop: str | int, told: str | int | None) -> None:
    client = await connect(application(FakeServing(says("a", stop=stop))))
    body = await (await ask(client)).json()
    assert body["choices"][0].get("stop_reason") == told
    chunks = await events(await ask(client, stream=True))
    assert chunks[-1]["choices"][0].get("stop_reason") == told


async def test_repetition_is_told_as_stop_detail(connect: Connect) -> None:
    def script(request: ValidRequest) -> list[StreamEvent]:
        return [Opened(0, 0.0), Piece("ha", (20,)), Ended(Ending.STOP, usage_of(request, 1), None, "repetition")]

    client = await connect(application(FakeServing(script)))
    assert (await (await ask(client)).json())["choices"][0]["stop_detail"] == "repetition"
    assert (await events(await ask(client, stream=True)))[-1]["choices"][0]["stop_detail"] == "repetition"


async def test_length_is_told_as_finish_reason(connect: Connect) -> None:
    client = await connect(application(FakeServing(says("a", ending=Ending.LENGTH, stop=None))))
    assert (await (await ask(client)).json())["choices"][0]["finish_reason"] == "length"


async def test_error_before_the_first_piece_keeps_its_own_status_in_a_stream(connect: Connect) -> None:
    client = await connect(application(FakeServing(breaks(PoisonousRequest()))))
    response = await ask(client, stream=True)
    assert response.status == 422
    assert (await error_of(response))["code"] == "poisonous_request"
    assert response.headers["x-should-retry"] == "false"


async def test_error_after_the_first_piece_is_an_event_in_the_stream(connect: Connect) -> None:
    client = await connect(application(FakeServing(breaks(ShuttingDown(), "Hel"))))
    chunks = await events(await ask(client, stream=True))
    assert text_of(chunks[:-1]) == "Hel"
    assert chunks[-1]["error"]["code"] == "shutting_down"
    assert "shutting down" in chunks[-1]["error"]["message"]


async def test_error_of_a_whole_answer_is_its_status(connect: Connect) -> None:
    client = await connect(application(FakeServing(breaks(GenerationFailed(FailureClass.INVALID, "grammar"), "Hel"))))
    response = await ask(client)
    assert response.status == 400
    assert (await error_of(response))["code"] == "generation_refused"


@pytest.mark.parametrize(
    ("refusal", "status", "retry"),
    [
        (Overloaded("You have 4 requests running.", 2.2, own_limit=True), 429, "3"),
        (Overloaded("256 requests are waiting.", 9.0, own_limit=False), 503, "9"),
        (NotReady("The engine is starting.", 0.0), 503, "1"),
    ],
)
async def test_refusal_says_when_to_come_back(connect: Connect, refusal: Overloaded | NotReady, status: int, retry: str) -> None:
    client = await connect(application(FakeServing(refusal=refusal)))
    for stream in (False, True):
        response = await ask(client, stream=stream)
        assert response.status == status
        assert response.headers["Retry-After"] == retry
        assert (await error_of(response))["message"] == refusal.message


async def test_pause_is_a_comment_in_the_stream(connect: Connect) -> None:
    def script(request: ValidRequest) -> list[StreamEvent]:
        paused = Paused("the engine\nrestarts")
        return [Opened(0, 0.0), Piece("a", (20,)), paused, Piece("b", (21,)), Ended(Ending.STOP, usage_of(request, 2))]

    client = await connect(application(FakeServing(script)))
    response = await ask(client, stream=True)
    text = await response.text()
    assert "\n\n: the engine restarts\n\n" in text
    assert text_of(await events(response)) == "ab"


async def test_silence_is_filled_with_comments(connect: Connect) -> None:
    serving = FakeServing(says("a"), hold=1)
    client = await connect(application(serving, settings(keepalive_seconds=0.02)))
    response = await ask(client, stream=True)
    lines: list[bytes] = [await response.content.readline() for _ in range(4)]
    assert lines == [b": keepalive\n", b"\n"] * 2
    serving.streams[0].release.set()
    assert text_of(await events(response)) == "a"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("hold", [0, 2])
async def test_client_that_hangs_up_cancels_its_request(connect: Connect, hold: int, stream: bool) -> None:
    """Queued (nothing came yet) or running, streamed or not."""
    serving = FakeServing(says("a", "b", "c"), hold=hold)
    client = await connect(application(serving))
    asked = asyncio.create_task(ask(client, stream=stream))
    await until(lambda: len(serving.streams) == 1)
    if stream and hold:
        (await asked).close()
    else:
        asked.cancel()
    await asyncio.wait_for(serving.streams[0].cancelled.wait(), 60)


async def test_client_that_hangs_up_cancels_all_choices(connect: Connect) -> None:
    serving = FakeServing(says("a", "b", "c"), hold=2)
    client = await connect(application(serving))
    response = await ask(client, stream=True, n=3)
    await until(lambda: len(serving.streams) == 3)
    response.close()
    async with asyncio.timeout(60):
        for stream in serving.streams:
            await stream.cancelled.wait()


async def test_reader_that_stalls_is_cut_off_and_delays_nobody(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventStream.__init__, "__defaults__", (0.2,))
    serving = FakeServing(says(*["x" * 65536] * 400))
    client = await connect(application(serving, settings(keepalive_seconds=0.1)))
    stalled = await ask(client, stream=True)
    serving.script = says("quick")
    assert text_of(await events(await ask(client, stream=True))) == "quick"
    await asyncio.wait_for(serving.streams[0].cancelled.wait(), 60)
    stalled.close()
