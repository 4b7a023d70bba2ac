"""`exl3ctl install --root` and `uninstall --root`: which files, with what in them, and nothing of a person's lost."""

import json
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ops import service
from ops.config_example import example
from ops.errors import InstallFailed
from ops.exit_codes import ExitCode
from ops.service import drop_ins, unit
from tests.ops.exl3ctl import Tool

UNIT = Path("etc/systemd/system/exl3d.service")
CONFIG = Path("etc/exl3d/config.yaml")


def _files(root: Path) -> Mapping[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_everything_is_laid_down_and_told(tmp_path: Path, exl3ctl: Tool) -> None:
    root = tmp_path / "root"
    done = exl3ctl("install", "--root", str(root))
    assert (done.code, done.err) == (ExitCode.OK, "")
    assert f"wrote     {root / UNIT}" in done.out
    assert "sudo systemctl enable --now exl3d.service" in done.out
    assert (root / CONFIG).read_text() == example()
    assert stat.S_IMODE((root / CONFIG).stat().st_mode) == 0o640
    text = (root / UNIT).read_text()
    assert f'ExecStart="{sys.prefix}/bin/exl3d" --config "/etc/exl3d/config.yaml"\n' in text
    assert "User=exl3d\nGroup=exl3d\n" in text
    assert "@" not in text.replace("@system-service", "").partition("[Unit]")[2]


def test_second_time_changes_nothing(tmp_path: Path, exl3ctl: Tool) -> None:
    root = tmp_path / "root"
    exl3ctl("install", "--root", str(root))
    before = _files(root)
    steps = json.loads(exl3ctl("install", "--root", str(root), "--json").out)
    assert {step["verb"] for step in steps} == {"kept"}
    assert _files(root) == before


def test_edited_configuration_stays_and_edited_unit_is_put_aside(tmp_path: Path, exl3ctl: Tool) -> None:
    root = tmp_path / "root"
    exl3ctl("install", "--root", str(root))
    (root / CONFIG).write_text("port: 1\n")
    (root / UNIT).write_text("[Unit]\nDescription=mine\n")
    done = exl3ctl("install", "--root", str(root))
    assert done.code == ExitCode.OK
    assert (root / CONFIG).read_text() == "port: 1\n"
    assert f"kept      {root / CONFIG}" in done.out
    assert "Description=exl3d" in (root / UNIT).read_text()
    assert (root / UNIT).with_name("exl3d.service.old").read_text() == "[Unit]\nDescription=mine\n"


def test_configuration_is_made_from_the_given_file(tmp_path: Path, exl3ctl: Tool) -> None:
    (tmp_path / "mine.yaml").write_text("modell: x\n")
    done = exl3ctl("install", "--root", str(tmp_path / "root"), "--config", "mine.yaml")
    assert (tmp_path / "root" / CONFIG).read_text() == "modell: x\n"
    assert "sudoedit" in done.out
    assert "did you mean `model`" in done.out


def test_drop_ins_follow_the_version_of_systemd() -> None:
    names = [path.name for path in service.shipped_drop_ins()]
    assert names
    assert [file.path.name for file in drop_ins(10_000)] == names
    assert list(drop_ins(249)) == []
    assert "254-backoff.conf" not in {file.path.name for file in drop_ins(253)}
    assert "254-backoff.conf" in {file.path.name for file in drop_ins(254)}


def test_uninstall_takes_ours_and_leaves_what_is_a_persons(tmp_path: Path, exl3ctl: Tool) -> None:
    root = tmp_path / "root"
    exl3ctl("install", "--root", str(root))
    own = root / "etc/systemd/system/exl3d.service.d/override.conf"
    own.parent.mkdir(exist_ok=True)
    own.write_text("[Service]\nNice=5\n")
    (own.parent / "254-backoff.conf").write_text("[Service]\n")
    done = exl3ctl("uninstall", "--root", str(root), "--yes")
    assert done.code == ExitCode.OK
    assert set(_files(root)) == {str(CONFIG), str(own.relative_to(root))}
    again = exl3ctl("uninstall", "--root", str(root), "--yes")
    assert again.code == ExitCode.OK
    assert "removed" not in again.out


def test_purge_takes_configuration_and_state_too(tmp_path: Path, exl3ctl: Tool) -> None:
    root = tmp_path / "root"
    exl3ctl("install", "--root", str(root))
    (root / "var/lib/exl3d").mkdir(parents=True)
    (root / "var/lib/exl3d/people.json").write_text("{}")
    assert exl3ctl("uninstall", "--root", str(root), "--yes", "--purge").code == ExitCode.OK
    assert _files(root) == {}


def test_uninstall_asks_or_refuses(tmp_path: Path, exl3ctl: Tool) -> None:
    root = tmp_path / "root"
    exl3ctl("install", "--root", str(root))
    done = exl3ctl("uninstall", "--root", str(root))
    assert done.code == ExitCode.FAILED
    assert "--yes" in done.err
    assert (root / UNIT).exists()


def test_without_systemd_the_reason_is_said(exl3ctl: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "booted", lambda: False)
    done = exl3ctl("install")
    assert (done.code, done.out) == (ExitCode.FAILED, "")
    assert "systemd=true" in done.err


def test_without_root_the_command_for_root_is_said(exl3ctl: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "booted", lambda: True)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    done = exl3ctl("install", "--user", "ann")
    assert (done.code, done.out) == (ExitCode.FAILED, "")
    assert f"sudo {sys.prefix}/bin/exl3ctl install --user ann" in done.err


def test_path_with_spaces_is_quoted_and_one_that_no_unit_can_name_is_refused() -> None:
    assert 'ExecStart="/home/ann b/.venv/bin/exl3d"' in unit("/home/ann b/.venv", "ann", "users").text
    with pytest.raises(InstallFailed, match="choose a path"):
        unit("/home/50%", "ann", "users")
