"""Through the whole daemon, with a scripted model: thoughts always lead to an answer, and no answer runs in circles."""

import json
import urllib.request
from collections.abc import Generator
from typing import cast

import pytest

from tests.engine.checkpoints import MESSAGE_END, Architecture, tiny_tokenizer
from tests.engine.written import Checkpoint
from tests.process.front import Front, front

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    '<tool_call>\n{"name": NAME, "arguments": ARGUMENTS}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if not itself %}<think>\n{% endif %}{% endif %}"
)
"""In the shape of Qwen's; with `itself` the model begins its thought itself."""
SENTENCE = "Time is up."
STOPS = "Let me think.<|im_end|>"
LOOP = " over and"


def ids(text: str) -> list[int]:
    """The ids of a text, tags and control tokens included."""
    return tiny_tokenizer().encode(text, add_special_tokens=False).ids


AT_STOP = "\n</think>\n\n"
AT_BUDGET = f"\n\n{SENTENCE}{AT_STOP}"
PUT_IN = [0] * (len(ids(AT_STOP)) - 1)
"""What the model would say while the engine puts the closing ids in; the first of them takes the place of the stop."""
SCRIPTS: list[dict[str, object]] = [
    {"marker": "capital", "ids": [*ids(STOPS), *PUT_IN, *ids("Paris.")]},
    {"marker": "itself", "ids": [*ids("\n<think>\n" + STOPS), *PUT_IN, *ids("Paris.")]},
    {"marker": "twice", "ids": [*ids(STOPS), *PUT_IN, MESSAGE_END]},
    {"marker": "budget", "ids": [*ids("one two three"), *[0] * len(ids(AT_BUDGET)), *ids("Four.")]},
    {"marker": "circle", "ids": [*ids("Well</think>Never"), *ids(LOOP) * 2000]},
    {"marker": "stubborn", "ids": ids("Hm.</think>No, I will not.")},
    {"marker": "dreamy", "ids": [*ids("<think>Hm"), *[0] * len(ids(AT_BUDGET)), *ids("No, I will not.")]},
    {"marker": "vertigo", "ids": ids("Hm") + ids(LOOP) * 2000},
]


@pytest.fixture(scope="module")
def running(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Generator[Front]:
    """A daemon over a thinking model that plays the scripts."""
    model = checkpoint(Architecture.LLAMA)
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    where = tmp_path_factory.mktemp("daemon")
    setting = f"answers.closing_sentence={SENTENCE}"
    with front(model, where, setting, "answers.repetition_tokens=128", profile={"scripts": SCRIPTS}) as found:
        yield found


def ask(running: Front, words: str, **more: object) -> dict[str, object]:
    """One chat, streamed if `stream` says so: message, finish_reason and stop_detail, folded."""
    body = {"messages": [{"role": "user", "content": words}], "temperature": 0, "max_tokens": 2000, **more}
    request = urllib.request.Request(
        f"http://127.0.0.1:{running.port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
        text = answer.read().decode()
    if not more.get("stream"):
        choice = json.loads(text)["choices"][0]
        return {**choice["message"], **choice}
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    folded: dict[str, object] = {"content": "", "reasoning_content": ""}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        for key in ("content", "reasoning_content"):
            folded[key] = cast("str", folded[key]) + (choice["delta"].get(key) or "")
        folded |= {key: value for key, value in choice.items() if value is not None}
    return folded


def metric(running: Front, name: str) -> float:
    """One number of /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{running.port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " "))


STREAMED = pytest.mark.parametrize("stream", [False, True])


@STREAMED
def test_model_that_stops_inside_its_thought_answers(running: Front, stream: bool) -> None:
    name = 'exl3d_thoughts_closed_total{cause="stop"}'
    before = metric(running, name)
    said = ask(running, "capital?", stream=stream)
    assert (said["reasoning_content"], said["content"], said["finish_reason"]) == ("Let me think.", "Paris.", "stop")
    assert metric(running, name) == before + 1


def test_model_that_opens_its_thought_itself_answers_too(running: Front) -> None:
    said = ask(running, "itself?", chat_template_kwargs={"itself": True}, stop=["think"])
    assert (said["reasoning_content"], said["content"]) == ("Let me think.", "Paris.")


@STREAMED
def test_model_that_stops_again_gives_its_thought_as_the_answer(running: Front, stream: bool) -> None:
    said = ask(running, "twice?", stream=stream)
    assert (said["reasoning_content"], said["content"]) == ("Let me think.", "Let me think.")


@pytest.mark.parametrize("name", ["reasoning_budget", "thinking_token_budget"])
def test_budget_closes_the_thought_with_a_sentence(running: Front, name: str) -> None:
    count = len(ids("one two three"))
    said = ask(running, "budget?", **{name: count})
    assert (said["reasoning_content"], said["content"]) == (f"one two three\n\n{SENTENCE}", "Four.")


@STREAMED
def test_answer_that_runs_in_circles_is_ended(running: Front, stream: bool) -> None:
    before = metric(running, "exl3d_repetitions_total")
    said = ask(running, "circle?", stream=stream)
    assert (said["finish_reason"], said["stop_detail"]) == ("stop", "repetition")
    assert cast("str", said["content"]).startswith("Never over and over and")
    assert len(ids(cast("str", said["content"]))) < 128 + 64 + 16
    assert metric(running, "exl3d_repetitions_total") == before + 1


def test_thought_that_runs_in_circles_is_closed_and_answered(running: Front) -> None:
    name = 'exl3d_thoughts_closed_total{cause="repetition"}'
    before = metric(running, name)
    said = ask(running, "vertigo?")
    assert cast("str", said["reasoning_content"]).endswith(SENTENCE)
    assert said["content"]
    assert metric(running, name) == before + 1


TOOL = {
    "type": "function",
    "function": {
        "name": "set_light",
        "parameters": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "room": {"enum": ["hall", "attic"]}},
            "required": ["on", "room"],
        },
    },
}
NAMED = {"type": "function", "function": {"name": "set_light"}}


def light_of(said: dict[str, object]) -> dict[str, object]:
    """The arguments of the only call of an answer that has no visible text."""
    assert (said["finish_reason"], said.get("content") or "") == ("tool_calls", "")
    (call,) = cast("list[dict[str, dict[str, str]]]", said["tool_calls"])
    assert call["function"]["name"] == "set_light"
    return json.loads(call["function"]["arguments"])


def test_named_call_is_made_behind_the_thought_by_a_model_that_would_not(running: Front) -> None:
    said = ask(running, "stubborn?", tools=[TOOL], tool_choice=NAMED)
    assert said["reasoning_content"] == "Hm."
    light = light_of(said)
    assert (type(light["on"]), light["room"] in {"hall", "attic"}) == (bool, True)


def test_required_call_follows_a_thought_that_the_model_began_and_the_engine_closed(running: Front) -> None:
    """The grammar describes the thought too, and takes what the engine puts in for part of it."""
    budget = len(ids("Hm"))
    kwargs = {"itself": True}
    said = ask(running, "dreamy?", tools=[TOOL], tool_choice="required", reasoning_budget=budget, chat_template_kwargs=kwargs)
    assert said["reasoning_content"] == f"Hm\n\n{SENTENCE}"
    assert light_of(said)["room"] in {"hall", "attic"}
