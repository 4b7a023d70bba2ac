"""config.yaml: every complaint names the key, and the line where the file has it."""

from pathlib import Path

import pytest

from daemon.core.errors import ConfigError
from daemon.core.settings import BackendKind, Settings
from daemon.host.settings_file import find_file, is_loopback, read_configuration, state_directory

KEY = "keys:\n- name: ann\n  hash: scrypt$a$b\n"


def read(tmp_path: Path, text: str, *overrides: str) -> ConfigError | None:
    """The complaint about a file, if any."""
    path = tmp_path / "config.yaml"
    path.write_text(text)
    try:
        read_configuration(path, overrides, {})
    except ConfigError as problem:
        return problem
    return None


def test_three_lines_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model: /models/a\nhost: 127.0.0.1\nport: 1234\n")
    configuration = read_configuration(path, (), {"HOME": "/home/ann"})
    assert (configuration.settings.model, configuration.settings.port) == ("/models/a", 1234)
    assert configuration.state_dir == Path("/home/ann/.local/state/exl3d")
    assert configuration.source == path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot: 1\n", ["line 1", "`prot`", "did you mean `port`"]),
        ("port: 1\nengine:\n  k_bits: 99\n", ["line 3", "`engine.k_bits`", "<= 16"]),
        ("engine:\n  kbits: 4\n", ["line 2", "`engine.kbits`", "did you mean `k_bits`"]),
        ("port: eighty\n", ["line 1", "`port`", "int"]),
        ("server:\n  resume_timeout: .inf\n", ["line 2", "`server.resume_timeout`", "finite"]),
        ("sharing:\n  background: [{streamed: -.inf}]\n", ["line 2", "`sharing.background[0].streamed`", "finite"]),
        ("model: " + "[" * 3000 + "]" * 3000, ["nested too deeply"]),
        ("model: &a [*a]\n", ["nested too deeply"]),
        ("keys:\n- name: ann\n", ["line 2", "`keys[0]`", "hash"]),
        ("port: 1\n\nport: 2\n", ["`port`", "line 1", "line 3"]),
        ("port: [\n", ["YAML"]),
        ("- 1\n", ["key: value"]),
        ("engine:\n  backend: gpu\n", ["line 2", "`engine.backend`", "gpu"]),
    ],
)
def test_mistake_is_named_with_its_place(tmp_path: Path, text: str, words: list[str]) -> None:
    problem = read(tmp_path, text)
    assert problem is not None
    assert "config.yaml" in str(problem)
    assert [word for word in words if word not in str(problem)] == []


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "host: localhost\n", "host: '::1'\n", "host: 127.0.0.5\n", "host: 0.0.0.0\n" + KEY]
)
def test_sound_file_is_taken(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) is None


def test_home_of_nobody_is_named(tmp_path: Path) -> None:
    problem = read(tmp_path, "state_dir: ~nobody-of-this-name/x\n")
    assert str(problem) == "`state_dir` is ~nobody-of-this-name/x, and nobody on this machine has such a home"


def test_section_of_which_only_the_name_is_left_is_at_its_defaults(tmp_path: Path) -> None:
    """What remains where somebody takes the `#` from a section's name alone."""
    path = tmp_path / "config.yaml"
    path.write_text("port: 1\nengine:\n#  k_bits: 4\nserver:\n")
    assert read_configuration(path, (), {}).settings == Settings(port=1)


def test_overrides_win_and_make_sections(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("port: 1\nserver:\n  max_queued: 5\n")
    overrides = ("port=2", "engine.cache_tokens=1024", "engine.gpu_split=[1.5, 2]", "server.drain_seconds=3")
    settings = read_configuration(path, overrides, {}).settings
    assert (settings.port, settings.engine.cache_tokens, settings.engine.gpu_split) == (2, 1024, [1.5, 2])
    assert (settings.server.max_queued, settings.server.drain_seconds) == (5, 3)


def test_null_backend_may_be_written_bare(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("engine: {backend: null, threads: null}\n")
    assert read_configuration(path, (), {}).settings.engine.backend is BackendKind.NULL
    path.write_text("")
    assert read_configuration(path, ("engine.backend=null",), {}).settings.engine.backend is BackendKind.NULL


@pytest.mark.parametrize("override", ["port", "=3", "port.x=3", "port=[", "nonsense=1"])
def test_wrong_override_is_named(tmp_path: Path, override: str) -> None:
    problem = read(tmp_path, "port: 1\n", override)
    assert problem is not None
    assert override.partition("=")[0] in str(problem)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("port=99999", "`port`"),
        ("engine.k_bits=99", "`engine.k_bits`"),
        ("keys=[{name: ann}]", "`keys[0]`"),
        ("nonsense=1", "`nonsense`"),
    ],
)
def test_mistake_on_the_command_line_is_not_blamed_on_the_file(tmp_path: Path, override: str, key: str) -> None:
    problem = read(tmp_path, "port: 1\nengine:\n  k_bits: 4\n", override)
    assert problem is not None
    assert str(problem).startswith("command line: ")
    assert key in str(problem)
    assert "config.yaml" not in str(problem).replace("in config.yaml", "")


def test_mistake_in_the_file_keeps_its_line_beside_options(tmp_path: Path) -> None:
    problem = read(tmp_path, "port: 1\nengine:\n  k_bits: 99\n", "port=2")
    assert problem is not None
    assert "config.yaml, line 3" in str(problem)


def test_missing_file_is_an_error_only_when_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"other\.yaml"):
        read_configuration(tmp_path / "other.yaml", (), {})
    monkeypatch.chdir(tmp_path)
    assert read_configuration(None, (), {"HOME": str(tmp_path)}).source is None


def test_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_configuration(tmp_path / "config.yaml", (), {})


def test_first_existing_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "xdg" / "exl3d" / "config.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("")
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    assert find_file(None, environment) == own
    (tmp_path / "config.yaml").write_text("")
    assert find_file(None, environment) == Path("config.yaml")
    assert find_file(Path("given"), environment) == Path("given")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"STATE_DIRECTORY": "/var/lib/exl3d"}, "/var/lib/exl3d"),
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}, "/var/lib/a"),
        ({"XDG_STATE_HOME": "/x"}, "/x/exl3d"),
        ({"HOME": "/home/ann"}, "/home/ann/.local/state/exl3d"),
    ],
)
def test_state_directory_follows_systemd_then_the_home(tmp_path: Path, environment: dict[str, str], expected: str) -> None:
    (tmp_path / "c.yaml").write_text("")
    settings = read_configuration(tmp_path / "c.yaml", (), {}).settings
    assert state_directory(settings, environment) == Path(expected)


@pytest.mark.parametrize(("host", "expected"), [("localhost", True), ("::1", True), ("10.0.0.1", False), ("box", False)])
def test_loopback_addresses_are_known(host: str, expected: bool) -> None:  # a parametrized expectation
    assert is_loopback(host) is expected
