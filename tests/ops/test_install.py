"""The installer, over a stand-in for the environment's Python that writes down what pip is asked."""

import json
import sys
from pathlib import Path

import pytest

from ops import install
from ops.machine_plan import plan
from tests.ops.test_machine_plan import BARE, NVCC_12_8, RTX_5070, WHEELS, with_gpu

STAND_IN = """#!{python}
import json, pathlib, sys
home, words = pathlib.Path({home!r}), sys.argv[1:]
with (home / "asked").open("a") as asked:
    asked.write(json.dumps(words) + "\\n")
state = json.loads((home / "state").read_text())
if words[0] == "-c" and "version" in words[1]:
    sys.exit(1) if state["installed"] is None else print(state["installed"])
elif "--report" in words:
    found = state["index" if "--index-url" in words else "configured"]
    report = {{"install": [{{"metadata": {{"name": "torch", "version": found}}}}]}}
    pathlib.Path(words[words.index("--report") + 1]).write_text(json.dumps(report))
elif words[-1] == state["broken"]:
    sys.exit(7)
"""


class Venv:
    """A virtual environment whose Python only remembers. `configured` and `index` are the torch that pip would find."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "venv"
        self._home = folder
        (self.path / "bin").mkdir(parents=True)
        python = self.path / "bin" / "python"
        python.write_text(STAND_IN.format(python=sys.executable, home=str(folder)))
        python.chmod(0o755)
        self.has()

    def has(self, installed: str | None = None, configured: str = "2.13.0", index: str = "2.13.0", broken: str = "") -> None:
        """What is there."""
        state = {"installed": installed, "configured": configured, "index": index, "broken": broken}
        (self._home / "state").write_text(json.dumps(state))

    def changes(self) -> list[list[str]]:
        """What pip was told to change, without its general options."""
        lines = [json.loads(line) for line in (self._home / "asked").read_text().splitlines()]
        asked = [words for words in lines if words[:2] == ["-m", "pip"] and "--dry-run" not in words]
        general = {"-m", "pip", "--quiet", "--yes", "--disable-pip-version-check"}
        return [[word for word in words if word not in general] for words in asked]


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    return Venv(tmp_path)


EXL3D = ["install", "--editable", str(install.REPOSITORY)]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
RANGE = "torch>=2.9,<2.14"


def test_cpu_build_that_pip_already_finds_is_taken_from_there(venv: Venv) -> None:
    venv.has(configured="2.13.0+cpu")
    install.install(plan(BARE), venv.path, ["dev"])
    assert venv.changes() == [["install", RANGE], ["install", "--editable", f"{install.REPOSITORY}[dev]"]]


def test_cpu_build_comes_from_pytorch_where_pip_has_none(venv: Venv) -> None:
    venv.has(index="2.12.1+cpu")
    install.install(plan(BARE), venv.path, [])
    assert venv.changes() == [["install", "--index-url", CPU_INDEX, RANGE], EXL3D]


def test_usual_build_is_better_than_none(venv: Venv, capsys: pytest.CaptureFixture[str]) -> None:
    install.install(plan(BARE), venv.path, [])
    assert venv.changes() == [["install", RANGE], EXL3D]
    assert "several gigabytes" in capsys.readouterr().err


@pytest.mark.parametrize("installed", ["2.13.0+cpu", "2.13.0"])
def test_torch_that_fits_stays(venv: Venv, installed: str) -> None:
    """The usual build has no local version, and a machine without a GPU can use it."""
    venv.has(installed=installed)
    install.install(plan(BARE), venv.path, [])
    assert venv.changes() == [EXL3D]


def test_cpu_build_makes_way_when_a_gpu_has_come(venv: Venv) -> None:
    """Pip alone would find 2.11.0+cpu good enough for torch==2.11.*."""
    venv.has(installed="2.11.0+cpu")
    install.install(plan(with_gpu(RTX_5070, 576), WHEELS), venv.path, [])
    uninstall, torch, engine, project = venv.changes()
    assert uninstall == ["uninstall", "torch"]
    assert torch == ["install", "--index-url", "https://download.pytorch.org/whl/cu128", "torch==2.11.*"]
    assert engine[-1].startswith("exllamav3 @ https://")
    assert project == EXL3D


def test_source_build_is_compiled_at_once(venv: Venv, tmp_path: Path) -> None:
    install.install(plan(with_gpu(RTX_5070, 576, **NVCC_12_8)), venv.path, [])
    last = json.loads((tmp_path / "asked").read_text().splitlines()[-1])
    assert last == ["-c", "import exllamav3"]
    assert ["install", "exllamav3==1.6.5"] in venv.changes()


def test_step_that_fails_stops_the_rest_and_is_named(venv: Venv) -> None:
    venv.has(configured="2.13.0+cpu", broken=RANGE)
    with pytest.raises(install.InstallFailed, match="torch could not be installed"):
        install.install(plan(BARE), venv.path, [])
    assert venv.changes() == [["install", RANGE]]


def test_missing_things_are_told_and_nothing_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    machine = with_gpu(RTX_5070, 560, compiler=None)

    def look(_around: object) -> object:
        return machine

    monkeypatch.setattr(install, "look", look)
    monkeypatch.setattr(install, "release_wheels", lambda: WHEELS)
    assert install.main(["--venv", str(tmp_path / "venv")]) == 1
    said = capsys.readouterr().err
    assert "Missing: NVIDIA driver 570 or newer" in said
    assert "$ sudo apt-get install build-essential" in said
    assert "make install DEVICE=cpu" in said
    assert not (tmp_path / "venv").exists()


def test_release_page_gives_the_names_of_its_files() -> None:
    facts = {"tag_name": "v1.6.5", "assets": [{"name": "a.whl", "size": 1}, {"name": "b.whl"}, {"size": 2}, "odd"]}
    assert install.asset_names(facts) == ("a.whl", "b.whl")


def test_release_page_of_another_shape_gives_no_names() -> None:
    """An error document or a page of a proxy must not stop the installation."""
    assert install.asset_names({"message": "API rate limit exceeded"}) == ()
    assert install.asset_names(["assets"]) == ()
    assert install.asset_names({"assets": None}) == ()
