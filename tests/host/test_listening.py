"""Sockets: a port that is taken is an error with words."""

import socket
import stat
from pathlib import Path

import pytest

from daemon.core.errors import ConfigError
from daemon.host.listening import AddressTaken, listen_tcp, listen_unix, remove_unix


def test_busy_port_is_named() -> None:
    [first] = listen_tcp("127.0.0.1", 0)
    port = first.getsockname()[1]
    with first, pytest.raises(AddressTaken, match=f"port {port} on 127.0.0.1 is in use"):
        listen_tcp("127.0.0.1", port)


def test_every_address_of_a_name_shares_the_port() -> None:
    listeners = listen_tcp("localhost", 0)
    ports = {listener.getsockname()[1] for listener in listeners}
    for listener in listeners:
        listener.close()
    assert len(ports) == 1


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7", "a" * 64 + ".example"])
def test_address_of_another_machine_is_a_configuration_error(host: str) -> None:
    with pytest.raises(ConfigError):
        listen_tcp(host, 0)


def test_admin_socket_is_for_its_user_only(tmp_path: Path) -> None:
    with listen_unix(tmp_path):
        path = tmp_path / "run" / "exl3d.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_second_daemon_on_one_state_directory_is_refused(tmp_path: Path) -> None:
    with listen_unix(tmp_path), pytest.raises(AddressTaken, match="another exl3d"):
        listen_unix(tmp_path)


def test_state_directory_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/state: the state directory cannot be used: Not a directory; set another"):
        listen_unix(tmp_path / "file" / "state")


def test_socket_of_a_daemon_too_busy_to_answer_is_left_alone(tmp_path: Path) -> None:
    """One that is stopped, with its queue of connections full."""
    path = tmp_path / "run" / "exl3d.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(str(path))
        busy.listen(0)
        first.connect(str(path))
        with pytest.raises(AddressTaken, match="another exl3d"):
            listen_unix(tmp_path)
    assert path.exists()


def test_socket_of_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    listen_unix(tmp_path).close()
    listen_unix(tmp_path).close()


def test_socket_is_gone_after_removal(tmp_path: Path) -> None:
    listen_unix(tmp_path).close()
    for _ in range(2):
        remove_unix(tmp_path)
    assert not (tmp_path / "run" / "exl3d.sock").exists()


def test_other_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "exl3d.sock").write_text("precious")
    with pytest.raises(ConfigError, match="in the way"):
        listen_unix(tmp_path)
    assert (tmp_path / "run" / "exl3d.sock").read_text() == "precious"
