"""What a person commands over the admin socket, on a whole daemon with streams running."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import openai
import pytest

from daemon.core.keys import SALT_BYTES, SECRET_BYTES, hash_key, new_key
from ops.admin_socket import command, command_reload, fetch_health, fetch_incidents, socket_path
from tests.process.front import DEADLINE, Front, environment, free_port, front, wait_until
from tests.process.front import command as command_line
from tests.process.house import until
from tests.process.test_daemon import SLOW, chat, client_of, refused

SALT = b"s" * SALT_BYTES
CONFIG = "config.yaml"
UNCHANGED = "reload: nothing to take over has changed"


@pytest.fixture(scope="module")
def running(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Front]:
    """One daemon for all who leave it as they found it."""
    directory = tmp_path_factory.mktemp("daemon")
    (directory / CONFIG).write_text("log:\n  level: info\n")
    with front(model, directory, profile=SLOW) as found:
        yield found
        assert found.end() == 0


def _socket(running: Front) -> Path:
    return socket_path(running.state)


def _reloads(running: Front) -> list[bytes]:
    """What systemd heard of readiness and reloads, without the times."""
    heard = [datagram.partition(b"\n")[0] for datagram in running.heard]
    return [datagram for datagram in heard if datagram in {b"READY=1", b"RELOADING=1"}]


async def test_drained_daemon_refuses_newcomers_finishes_what_runs_and_opens_again(running: Front, model: Path) -> None:
    path = _socket(running)
    async with client_of(running) as client:
        reading = asyncio.ensure_future(chat(client, model.name, "one", 150))
        await until(lambda: running.status().running == 1, "one running")
        drained = await asyncio.to_thread(command, path, "drain")
        assert drained.done
        assert "1 request left" in drained.words
        with pytest.raises(openai.InternalServerError, match="no new requests") as refused:
            await chat(client, model.name, "two", 1)
        assert refused.value.status_code == 503
        assert int(refused.value.response.headers["Retry-After"]) > 0
        health = await asyncio.to_thread(fetch_health, path, "ready")
        assert not health.ok
        assert "no new requests" in health.reason
        assert (await asyncio.to_thread(fetch_health, path, "live")).ok
        assert (await reading)[1] == "length"
        assert (await asyncio.to_thread(command, path, "resume")).done
        assert (await chat(client, model.name, "two", 2))[1] == "length"
        assert (await asyncio.to_thread(fetch_health, path, "deep")).ok


async def test_fresh_engine_on_request_changes_no_stream_and_accuses_nobody(running: Front, model: Path) -> None:
    async with client_of(running) as client:
        undisturbed = await chat(client, model.name, "one", 150)
        before = running.engine_pid()
        reading = asyncio.ensure_future(chat(client, model.name, "one", 150))
        await until(lambda: running.status().running == 1, "one running")
        asked = await asyncio.to_thread(command, _socket(running), "restart")
        assert asked.done
        assert "1 request waits" in asked.words
        assert await reading == undisturbed
        assert running.engine_pid() != before


async def test_reload_lets_keys_in_and_out_while_a_stream_goes_on(model: Path, tmp_path: Path) -> None:
    key = new_key(SALT, b"k" * SECRET_BYTES)
    config = tmp_path / CONFIG
    config.write_text("log:\n  level: info\n")
    with front(model, tmp_path, profile=SLOW) as running:
        path = _socket(running)
        async with client_of(running) as client:
            undisturbed = await chat(client, model.name, "one", 150)
            reading = asyncio.ensure_future(chat(client, model.name, "one", 150))
            await until(lambda: running.status().running == 1, "one running")
            config.write_text(f"keys:\n- name: ann\n  hash: {hash_key(key, SALT)}\nmodel_name: other\n")
            reloaded = await asyncio.to_thread(command_reload, path)
            assert (reloaded.problem, reloaded.applied, reloaded.waiting) == ("", ("keys",), ("model_name",))
            with pytest.raises(openai.AuthenticationError):
                await chat(client, model.name, "two", 1)
            assert (await chat(client.with_options(api_key=key), model.name, "two", 1))[1] == "length"
            config.write_text("prot: 1\n")
            bad = await asyncio.to_thread(command_reload, path)
            assert "line 1" in bad.problem
            assert (await chat(client.with_options(api_key=key), model.name, "two", 1))[1] == "length"
            config.write_text("keys: []\n")
            assert (await asyncio.to_thread(command_reload, path)).applied == ("keys",)
            with pytest.raises(openai.AuthenticationError):
                await chat(client.with_options(api_key=key), model.name, "two", 1)
            assert await reading == undisturbed
        wait_until(
            lambda: _reloads(running) == [b"READY=1", *[b"RELOADING=1", b"READY=1"] * 3], "systemd to be told of three reloads"
        )


async def test_incident_of_a_killed_engine_is_told_and_outlives_the_daemon(model: Path, tmp_path: Path) -> None:
    with front(model, tmp_path, profile=SLOW) as running:
        async with client_of(running) as client:
            reading = asyncio.ensure_future(chat(client, model.name, "one", 100))
            await until(lambda: running.status().running == 1, "one running")
            os.kill(running.engine_pid(), signal.SIGKILL)
            assert (await reading)[1] == "length"
        path = _socket(running)
        wait_until(lambda: any(record.closed for record in fetch_incidents(path, 10)), "the incident's end")
        (incident,) = fetch_incidents(path, 10)
        assert incident.closed is not None
        assert len(incident.closed.waited) == 1
        assert running.end() == 0
    with front(model, tmp_path, profile=SLOW) as again:
        assert fetch_incidents(_socket(again), 10) == [incident]


@pytest.mark.parametrize("cache", ["8192", "null"])
def test_guarantees_beyond_the_cache_end_the_daemon_with_the_arithmetic(model: Path, tmp_path: Path, cache: str) -> None:
    """A configured cache is known before anything is loaded; otherwise the engine's own word counts."""
    key = hash_key(new_key(SALT, b"k" * SECRET_BYTES), SALT)
    people = "people:\n- name: ann\n  guaranteed_context: 5000000\n"
    (tmp_path / "config.yaml").write_text(f"keys:\n- name: ann\n  hash: {key}\n{people}")
    ended = refused(command_line(model, tmp_path / "state", free_port(), (f"engine.cache_tokens={cache}",)), tmp_path)
    assert ended.returncode == 78, ended.stderr
    assert "5,000,000 (ann)" in ended.stderr
    assert "engine.cache_tokens" in ended.stderr


def test_closed_terminal_ends_the_daemon_that_was_started_on_it(model: Path, tmp_path: Path) -> None:
    """SIGHUP means reload elsewhere; here nobody would know any more that a daemon holds the GPU."""
    ours, terminal = os.openpty()
    with (tmp_path / "log").open("wb") as log:
        daemon = subprocess.Popen(
            ["setsid", "--ctty", *command_line(model, tmp_path / "state", free_port(), ())],
            stdin=terminal,
            stderr=log,
            cwd=tmp_path,
            env=environment(),
        )
    os.close(terminal)
    try:
        wait_until(lambda: " ready: " in (tmp_path / "log").read_text(), "ready")
        os.close(ours)
        assert daemon.wait(DEADLINE) == 0
        assert "the terminal was closed" in (tmp_path / "log").read_text()
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait()


def test_hangup_signal_reloads_and_ends_nothing(running: Front) -> None:
    engine, before, said = running.engine_pid(), _reloads(running), running.text().count(UNCHANGED)
    running.process.send_signal(signal.SIGHUP)
    wait_until(lambda: running.text().count(UNCHANGED) == said + 1, "the reload in the log")
    wait_until(lambda: _reloads(running) == [*before, b"RELOADING=1", b"READY=1"], "systemd to be told")
    assert running.engine_pid() == engine
