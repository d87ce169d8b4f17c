"""The wheel: what is in it, and that it works where nothing but the wheel and its dependencies is installed."""

import fnmatch
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("spaces", "costmodel", "search", "experiments")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def shipped(folder: Path) -> set[str]:
    """The files that a wheel must hold: every file of the rooms in `folder`, Python or data, as paths inside the wheel.

    Except the studies and benchmarks of experiments/research and what they measured, in experiments/results: they are
    for readers of the repository.
    """
    files = [path for room in ROOMS for path in (folder / room).rglob("*") if path.is_file()]
    left_out = [folder / "experiments" / name for name in ("research", "results")]
    files = [path for path in files if not any(path.is_relative_to(other) for other in left_out)]
    return {
        f"tilescout/{path.relative_to(folder).as_posix()}"
        for path in files
        if "__pycache__" not in path.parts and not path.name.startswith(".")
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the checkout: setuptools would leave a build/ here, and put stale files of it in."""
    source = tmp_path_factory.mktemp("source")
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", source, cwd=source)
    (built,) = (source / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment that holds the wheel, and sees the other packages of this one through a path file.

    Directories named in a path file get no path files of their own read, so the editable install stays out of sight.
    """
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=home)
    ask = "import site, sys; print(*(site.getsitepackages() if {own} else sys.path), sep='\\n')"
    (own,) = run(python, "-I", "-c", ask.format(own=True), cwd=home).splitlines()
    standard = set(run(python, "-I", "-S", "-c", ask.format(own=False), cwd=home).splitlines())
    here = run(sys.executable, "-I", "-c", ask.format(own=False), cwd=home).splitlines()
    seen = [path for path in here if path not in standard and Path(path).is_dir()]
    (Path(own) / "dependencies.pth").write_text("\n".join(seen), encoding="utf-8")
    return python


@pytest.mark.slow
def test_every_file_of_the_rooms_is_in_the_wheel(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("tilescout/")}
    missing, extra = sorted(shipped(ROOT) - held), sorted(held - shipped(ROOT))
    assert not missing, f"name their folder in pyproject.toml, [tool.setuptools] packages or package-data: {missing}"
    assert not extra


def test_the_wheel_holds_what_users_need_and_no_study(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        held = [name.removeprefix("tilescout/") for name in archive.namelist()]
    for pattern in (
        "experiments/scripts/strategies.py",
        "spaces/suites/*.toml",
        "search/tables/recorded/*.parquet",
        "search/tables/recorded/*.json",
        "costmodel/pretrained/*.npz",
        "costmodel/pretrained/*.json",
        "search/tracking/page.html",
        *(f"{room}/py.typed" for room in ROOMS),
    ):
        assert fnmatch.filter(held, pattern), pattern
    assert not fnmatch.filter(held, "experiments/research/*")
    assert not fnmatch.filter(held, "experiments/results/*")


def test_every_folder_of_python_files_is_a_package():
    folders = {path.parent for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_the_wheel_holds_the_licence_and_nothing_outside_the_rooms(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    info = f"tilescout-{PROJECT['version']}.dist-info"
    assert f"{info}/licenses/LICENSE" in names
    assert {name.partition("/")[0] for name in names} == {"tilescout", info}


@pytest.mark.slow
def test_the_installed_wheel_imports_its_own_files_and_finds_its_data(installed: Path, tmp_path: Path):
    code = (
        "import importlib, importlib.resources as resources\n"
        f"for room in {ROOMS}:\n"
        "    module = importlib.import_module(f'tilescout.{room}')\n"
        "    assert resources.files(module).joinpath('py.typed').is_file(), room\n"
        "    print(module.__file__)\n"
        "import tilescout.search.studies.records, tilescout.spaces.gemm_sm90.template\n"
    )
    home = installed.parents[1]
    for line in run(installed, "-I", "-c", code, cwd=tmp_path).splitlines():
        assert Path(line).is_relative_to(home)


def test_the_installed_command_says_its_version_and_its_commands(installed: Path, tmp_path: Path):
    command = installed.parent / "tilescout"
    assert PROJECT["version"] in run(command, "--version", cwd=tmp_path)
    helped = run(command, "--help", cwd=tmp_path)
    for name in ("tune", "compile", "measure", "export", "tables", "ui", "doctor"):
        assert name in helped
