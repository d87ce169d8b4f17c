"""Tests marked `gpu` run where there is a Hopper GPU and skip everywhere else; properties may take their time."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from tilescout.search.tracking import default_store
from tilescout.search.tracking.store import manners, open_client
from tilescout.spaces import plugins

hypothesis.settings.register_profile("tilescout", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("tilescout")


def has_hopper() -> bool:
    """Asked of nvidia-smi, so that the process that runs the tests holds no CUDA context."""
    try:
        ask = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
        done = subprocess.run(ask, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        return False
    return done.returncode == 0 and "9.0" in done.stdout.split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not has_hopper():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU of compute capability 9.0"))


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SQLite file of an MLflow store without runs: MLflow takes a second to make one, or ten on a slow disk."""
    folder = tmp_path_factory.mktemp("empty")
    uri, _ = default_store(folder)
    with manners():
        open_client(uri)
    return folder / "mlflow.db"


@pytest.fixture(scope="session")
def copy_store(empty_store: Path) -> Callable[[Path], str]:
    """A function: put an MLflow store without runs into a folder, which may be new; its URI."""

    def copy_store(folder: Path) -> str:
        uri, _ = default_store(folder)
        shutil.copyfile(empty_store, folder / "mlflow.db")
        return uri

    return copy_store


TEMPLATE = """
from tilescout.spaces.knobs import Configuration, Knob
from tilescout.spaces.templates import KernelTemplate

class Template(KernelTemplate):
    name = {name!r}
    workload = "tilescout.spaces.rowwise:Softmax"
    archs = ("sm_90a",)
    knobs = (Knob("threads", (32, 64), "threads a block"),)

    def default(self, problem, device):
        return Configuration.of({{"threads": 32}})

    def build(self, configuration, signature, arch, path):
        raise NotImplementedError
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function: install a distribution that registers one space; its module holds a template, or the given source."""
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(plugins, "_registry", plugins._registry.__wrapped__)  # it is asked once a process

    def install(distribution: str, space: str, source: str = "", attribute: str = "Template") -> None:
        module = distribution.replace("-", "_")
        information = folder / f"{module}-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{space} = {module}:{attribute}\n")
        (folder / f"{module}.py").write_text(source or TEMPLATE.format(name=space))

    return install
