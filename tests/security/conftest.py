"""A folder that somebody else has filled, and the real command line, run there as a process of its own."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from tilescout.search.tables.shipped import largest_table
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.checksums import sealed
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

TILESCOUT = Path(sys.executable).with_name("tilescout")
PROBLEM = "1024x1024x1024:bf16"
EVIL = "evil:Template"
"""The name that the files of the tests give to their space: a class in a module that lies beside them."""

SEARCH = ("--problem", PROBLEM, "--device", "replay", "--sampler", "random", "--trials", "3", "--store", "store")

_PAYLOAD = """
with open({canary!r}, "a") as file:
    file.write(__name__ + "\\n")
"""

_TEMPLATE = """
from tilescout.spaces.gemm import Gemm
from tilescout.spaces.gemm_sm90.template import GemmSm90Template

class Template(GemmSm90Template):
    name = "evil:Template"

class Workload(Gemm):
    pass
"""


@dataclass(frozen=True)
class Scene:
    """A working directory of somebody else's making.

    Attributes
    ----------
    folder
        The directory.
    canary
        A file outside of it that any module planted there writes when it runs.
    """

    folder: Path
    canary: Path

    def plant(self, *names: str, source: str = "") -> None:
        """Put modules in the directory that write the canary when they are imported."""
        for name in names:
            path = self.folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_PAYLOAD.format(canary=str(self.canary)) + source)

    def run(self, *command: object, environment: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a program in the directory."""
        return subprocess.run(
            list(map(str, command)),
            cwd=self.folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            check=False,
            timeout=300,
        )

    def tilescout(self, *arguments: object) -> "subprocess.CompletedProcess[str]":
        """Run ``tilescout`` in the directory."""
        return self.run(TILESCOUT, *arguments)

    def check(self, done: "subprocess.CompletedProcess[str]", *codes: int) -> None:
        """Nothing planted ran; the program ended as it should (with one of the codes, 0 or 2 unless given)."""
        said = f"{done.args}\n{done.stdout}\n{done.stderr}"
        assert not self.canary.exists(), f"{self.canary.read_text()} ran: {said}"
        assert done.returncode in (codes or (0, 2)), said
        assert "Traceback" not in said

    def survives(self, *arguments: object, codes: tuple[int, ...] = ()) -> "subprocess.CompletedProcess[str]":
        """Run ``tilescout`` in the directory, and check it."""
        done = self.tilescout(*arguments)
        self.check(done, *codes)
        return done


@dataclass(frozen=True)
class ForkedScene(Scene):
    """The same, for what does not depend on how the process starts: it is forked, see `run_command`."""

    forked: Callable[..., "subprocess.CompletedProcess[str]"]

    def tilescout(self, *arguments: object) -> "subprocess.CompletedProcess[str]":
        """Run ``tilescout`` in the directory."""
        return self.forked(self.folder, *arguments)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A working directory with the module `evil`: a template that works, whose import writes the canary."""
    folder = tmp_path / "folder"
    folder.mkdir()
    made = Scene(folder, tmp_path / "canary")
    made.plant("evil", source=_TEMPLATE)
    return made


@pytest.fixture
def forked_scene(scene: Scene, run_command: Callable[..., "subprocess.CompletedProcess[str]"]) -> ForkedScene:
    """The same directory; commands are forked."""
    return ForkedScene(scene.folder, scene.canary, run_command)


@pytest.fixture(scope="session")
def small_table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The first rows of a problem in the shipped table, the default's among them."""
    whole, problem = largest_table(find_template("gemm_sm90")), GemmProblem.parse(PROBLEM)
    baseline = whole.card.baselines[problem]
    default = whole.row(baseline.default, problem)
    rows = sorted({default, *whole.rows(problem)[:100].tolist()})
    return write_table(
        tmp_path_factory.mktemp("table") / "small.parquet",
        replace(whole.card, baselines={problem: baseline}),
        [(whole.configuration(row), problem, whole.measurement(row)) for row in rows],
    )


@pytest.fixture(scope="session")
def searched(
    tmp_path_factory: pytest.TempPathFactory,
    small_table: Table,
    run_command: Callable[..., "subprocess.CompletedProcess[str]"],
    copy_store: Callable[[Path], str],
) -> Path:
    """A folder in which a replay was searched: ``store`` with its study, ``studies.db``, and ``result.json``."""
    folder = tmp_path_factory.mktemp("searched")
    copy_store(folder / "store")
    for extra in (("--json", "result.json"), ("--storage", f"sqlite:///{folder}/studies.db")):
        run_command(folder, "tune", "gemm_sm90", *SEARCH, "--table", small_table.path, *extra).check_returncode()
    return folder


@pytest.fixture(scope="session")
def proven(searched: Path) -> dict[str, object]:
    """The result of a search whose race would have proven the best: what an export takes kernels for."""
    result: dict[str, object] = json.loads((searched / "result.json").read_text())
    sure = {"value": 1.1, "low": 1.09, "high": 1.11}
    race = {"speedup_over_library": sure, "rounds": 12}
    best = cast("dict[str, object]", result["best"]) | {"speedup_over_library": sure["value"]}
    return sealed(result | {"measured_by": {"kind": "live", "description": "a GPU"}, "best": best, "race": race})


Rename = Callable[[str], str]


@pytest.fixture(scope="session")
def renamed() -> Rename:
    """A function: a text in which the space is the evil one, however its quotes are escaped, and without checksums."""

    def renamed(text: str) -> str:
        assert '"gemm_sm90"' in text or '\\"gemm_sm90\\"' in text
        text = re.sub(r',"sum":"[0-9a-f]{16}"', "", text)
        text = re.sub(r'"format": ?[23], ?|, ?"digest": ?"[0-9a-f]{64}"', "", text)
        return text.replace('"gemm_sm90"', f'"{EVIL}"').replace('\\"gemm_sm90\\"', f'\\"{EVIL}\\"')

    return renamed
