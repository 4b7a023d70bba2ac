"""`exl3ctl` as a person or a script uses it: output, exit codes, JSON shapes."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec
import pytest
import yaml
from rich.console import Console

from daemon.core.gpu import GpuReading
from daemon.core.keys import DIGEST_BYTES, SALT_BYTES, matches, parse_hash
from daemon.core.ports import EngineStatus, Status
from daemon.core.senses import Sense, SenseState
from daemon.core.settings import KeySettings, Settings
from daemon.core.wire import Pool
from ops.admin_socket import running_socket, socket_path
from ops.exit_codes import ExitCode
from ops.status_table import duration, status_table
from tests.ops.exl3ctl import Tool, daemon_saying

ENGINE = EngineStatus(
    state="ready",
    detail="",
    pid=4711,
    backend="exl3 on cuda",
    pool=Pool(pages=400, referenced=100, slots=16, running=3, pending=1),
    page=256,
    restarts=2,
    uptime=3725.0,
)
STATUS = Status(
    version="0.1.0",
    uptime=90061.0,
    ready=True,
    model="Qwen3-8B-EXL3",
    context=81920,
    engines=(ENGINE,),
    running=3,
    queued=2,
    requests=1234,
    prompt_tokens=1000,
    cached_tokens=750,
    generated_tokens=5678,
)


def _status(body: bytes) -> Mapping[str, tuple[int, bytes]]:
    return {"GET /status": (200, body)}


HASH = f"scrypt${'00' * SALT_BYTES}${'00' * DIGEST_BYTES}"


def test_status_shows_the_running_daemon(tmp_path: Path, exl3ctl: Tool) -> None:
    state = tmp_path / "s"
    with daemon_saying(_status(msgspec.json.encode(STATUS)), state):
        shown = exl3ctl("status", "--state-dir", str(state))
        as_json = exl3ctl("status", "--state-dir", str(state), "--json")
    assert (shown.code, shown.err) == (ExitCode.OK, "")
    for words in (
        "Qwen3-8B-EXL3",
        "● ready",
        "81,920 tokens",
        "3 running, 2 queued",
        "75% from cache",
        "25,600 of 102,400 tokens",
    ):
        assert words in shown.out
    assert msgspec.json.decode(as_json.out, type=Status) == STATUS


def test_status_without_a_daemon_says_so_and_exits_3(tmp_path: Path, exl3ctl: Tool) -> None:
    done = exl3ctl("status")
    assert (done.code, done.out) == (ExitCode.NOT_RUNNING, "")
    assert "no exl3d is running" in done.err
    assert str(tmp_path / ".local/state/exl3d/run/exl3d.sock") in done.err


def test_socket_of_the_service_is_tried_after_the_users_own(tmp_path: Path) -> None:
    own, service = tmp_path / "own", tmp_path / "service"
    assert running_socket([own, service]) == socket_path(own)
    socket_path(service).parent.mkdir(parents=True)
    socket_path(service).touch()
    assert running_socket([own, service]) == socket_path(service)
    socket_path(own).parent.mkdir(parents=True)
    socket_path(own).touch()
    assert running_socket([own, service]) == socket_path(own)


def test_status_of_something_else_exits_4(tmp_path: Path, exl3ctl: Tool) -> None:
    state = tmp_path / "s"
    with daemon_saying(_status(b'{"hello": "world"}'), state):
        done = exl3ctl("status", "--state-dir", str(state))
    assert done.code == ExitCode.UNKNOWN
    assert "Traceback" not in done.err


def test_status_of_a_running_daemon_is_shown_although_the_configuration_is_broken(tmp_path: Path, exl3ctl: Tool) -> None:
    (tmp_path / "config.yaml").write_text("port: many\n")
    refused = exl3ctl("status")
    assert (refused.code, "config.yaml, line 1" in refused.err) == (ExitCode.FAILED, True)
    with daemon_saying(_status(msgspec.json.encode(STATUS)), tmp_path / ".local/state/exl3d"):
        assert exl3ctl("status", "--json").code == ExitCode.OK


def test_socket_left_by_a_dead_daemon_means_not_running(tmp_path: Path, exl3ctl: Tool) -> None:
    state = tmp_path / "s"
    with daemon_saying({}, state):
        pass
    assert (state / "run" / "exl3d.sock").exists()
    assert exl3ctl("status", "--state-dir", str(state)).code == ExitCode.NOT_RUNNING


def test_config_example_is_what_config_check_calls_good(tmp_path: Path, exl3ctl: Tool) -> None:
    example = exl3ctl("config", "example")
    (tmp_path / "config.yaml").write_text(example.out)
    checked = exl3ctl("config", "check")
    assert (checked.code, checked.out) == (ExitCode.OK, "config.yaml: good\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modell: x\n", ["line 1", "modell"]),
        ("port: 8321\nengine:\n  k_bits: 99\n", ["line 3", "k_bits"]),
        ("a: [\n", ["YAML"]),
        ("host: 192.0.2.1\n", ["192.0.2.1", "exl3ctl user add"]),
    ],
)
def test_config_check_names_place_and_remedy(tmp_path: Path, text: str, words: list[str], exl3ctl: Tool) -> None:
    (tmp_path / "config.yaml").write_text(text)
    done = exl3ctl("config", "check")
    assert (done.code, done.out) == (ExitCode.FAILED, "")
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err
    answer = cast("dict[str, object]", json.loads(exl3ctl("config", "check", "--json").out))
    assert done.err.strip() in {answer["problem"], answer["people_problem"]}


def test_config_check_looks_into_the_model_directory(exl3ctl: Tool) -> None:
    """A model without its tokenizer is found before anything is started."""
    (exl3ctl.home / "model").mkdir()
    (exl3ctl.home / "model" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (exl3ctl.home / "config.yaml").write_text("model: model\n")
    done = exl3ctl("config", "check")
    assert done.code == ExitCode.FAILED
    assert "tokenizer.json" in done.err or "safetensors" in done.err
    assert "Traceback" not in done.err
    assert exl3ctl("status").code == ExitCode.NOT_RUNNING, "other commands do not care about the model"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("engine: {layout: split, replicas: 2}", "engine.replicas asks for 2"),
        ("engine: {backend: cpu, layout: tensor}", "engines compute on a CPU"),
        (
            f"{{engine: {{cache_tokens: 4096}}, sharing: {{guaranteed_context: 8192}}, keys: [{{name: ann, hash: {HASH}}}]}}",
            "the cache holds 4,096 tokens",
        ),
    ],
)
def test_config_check_says_what_no_engine_could_do(text: str, words: str, exl3ctl: Tool) -> None:
    (exl3ctl.home / "config.yaml").write_text(text)
    done = exl3ctl("config", "check")
    assert done.code == ExitCode.FAILED
    assert words in done.err


def test_commands_that_need_the_configuration_fail_on_a_bad_one(tmp_path: Path, exl3ctl: Tool) -> None:
    (tmp_path / "config.yaml").write_text("port: many\n")
    done = exl3ctl("status")
    assert done.code == ExitCode.FAILED
    assert "port" in done.err


def test_key_new_prints_a_key_and_lines_that_accept_it(exl3ctl: Tool) -> None:
    """The lines go under `keys:` as they are, whatever the name holds."""
    done = exl3ctl("key", "new", 'Ann: "the" first')
    key, _, lines = done.out.partition("\n")
    settings = msgspec.convert(yaml.safe_load("keys:\n" + lines), Settings)
    (entry,) = settings.keys
    assert entry.name == 'Ann: "the" first'
    assert matches(key, parse_hash(entry.hash))
    assert not matches(key + "x", parse_hash(entry.hash))
    assert key not in done.err


def test_key_new_as_json_gives_the_entry(exl3ctl: Tool) -> None:
    answer = json.loads(exl3ctl("key", "new", "ann", "--json").out)
    entry = msgspec.convert(answer["entry"], KeySettings)
    assert matches(answer["key"], parse_hash(entry.hash))


def test_wrong_command_line_exits_2(exl3ctl: Tool) -> None:
    assert exl3ctl("key", "new", "").code == ExitCode.USAGE
    assert exl3ctl("status", "--no-such-option").code == ExitCode.USAGE
    assert exl3ctl("no-such-command").code == ExitCode.USAGE


def test_engine_check_prints_the_finding(exl3ctl: Tool) -> None:
    """Whatever machine this is, the finding names system, Python and both packages; JSON has the same plan."""
    done = exl3ctl("engine", "check")
    for heading in ("System", "Python", "GPU", "installed torch", "installed exllamav3"):
        assert heading in done.out
    answer = json.loads(exl3ctl("engine", "check", "--json").out)
    assert set(answer) == {"machine", "plan", "needs", "installed", "advice"}
    assert done.code == (ExitCode.FAILED if answer["needs"] or answer["advice"] else ExitCode.OK)


def test_completion_script_can_be_printed(exl3ctl: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the shell it runs under, which in a test run may be one without completion."""
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    done = exl3ctl("--show-completion", "bash")
    assert done.code == ExitCode.OK
    assert "complete" in done.out


def _drawn(facts: Status) -> str:
    console = Console(width=90, no_color=True)
    with console.capture() as capture:
        console.print(status_table(facts))
    return capture.get()


def test_table_of_a_loading_engine_shows_how_far_it_is() -> None:
    engine = EngineStatus(
        state="starting", detail="loading the weights", pid=1, backend="", pool=None, page=0, restarts=0, uptime=4.0, loading=0.4
    )
    drawn = _drawn(replace(STATUS, ready=False, engines=(engine,)))
    assert "● not ready" in drawn
    assert "loading the weights" in drawn
    assert "40%" in drawn


def test_table_shows_gpus_incidents_and_what_cannot_be_seen() -> None:
    senses = (
        Sense("kernel log", SenseState.ABSENT, "not permitted"),
        Sense("nvml", SenseState.WORKING, "1 GPU"),
        Sense("probe", SenseState.OFF, "watchdog.probe is false"),
    )
    gpu = GpuReading("RTX 5070", "GPU-1", "0000:01:00", used_mib=10_000, total_mib=12_000, temperature=61)
    drawn = _drawn(replace(STATUS, incidents={"engine_dead": 2}, senses=senses, gpus=(gpu,), shut="drained for an update"))
    for words in (
        "RTX 5070: 10,000 of 12,000 MiB used, 61 °C",
        "2 engine dead (exl3ctl incidents)",
        "kernel log: not permitted",
        "drained for an update",
    ):
        assert words in drawn
    assert "nvml" not in drawn
    assert "probe" not in drawn


def test_table_names_engines_where_there_are_several() -> None:
    drawn = _drawn(replace(STATUS, engines=(ENGINE, ENGINE)))
    assert "engine 0" in drawn
    assert "engine 1" in drawn


def test_table_says_which_gpu_a_replica_has() -> None:
    gpus = (GpuReading("RTX 5070", "GPU-1", "0000:01:00"), GpuReading("RTX 5070", "GPU-2", "0000:02:00"))
    drawn = _drawn(replace(STATUS, gpus=gpus, engines=(ENGINE, replace(ENGINE, gpus=("GPU-2",)))))
    lines = [line for line in drawn.splitlines() if "engine 0" in line or "engine 1" in line]
    assert ["GPU 1" in line for line in lines] == [False, True]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.9, "59 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (90061, "1 d 1 h"), (86400 * 40, "40 d 0 h")],
)
def test_duration_gives_its_two_largest_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words
