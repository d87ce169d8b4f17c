"""A module that lies in the working directory runs in no command, nor in a process that one starts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.metadata import packages_distributions
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

import pytest

from tilescout.search.tables.table import Table
from tilescout.spaces.processes import module_places, safe_processes, spawn_context

if TYPE_CHECKING:
    from conftest import Scene  # type: ignore[import-not-found]

TILESCOUT = Path(sys.executable).with_name("tilescout")
EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "own_kernel.py"
PROBLEM = "1024x1024x1024:bf16"
SEARCH = ("--problem", PROBLEM, "--device", "replay", "--trials", "3", "--store", "store")

HERE = sorted(
    name
    for name in {*sys.stdlib_module_names, *packages_distributions()}
    if name.isidentifier() and name != "antigravity"
)
"""Every module that this Python has: a file of the same name is run where the folder comes before the others."""

ABSENT = (
    "sitecustomize", "usercustomize", "redis", "colorama", "psycopg2", "MySQLdb", "gunicorn", "waitress", "IPython",
    "cupy", "pycuda", "gevent", "eventlet", "uvloop", "orjson", "simplejson", "brotli", "tensorflow", "boto3", "winreg",
    "__main__", "conftest", "setup", "nvMatmulHeuristics",
)  # fmt: skip
"""Modules that something looks for and does without: a file of the name is run wherever the folder comes."""


@pytest.fixture
def poisoned(scene: "Scene") -> "Scene":
    """The directory, with a file in the place of every module."""
    scene.plant(*HERE, *ABSENT)
    return scene


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("tune", "gemm_sm90", *SEARCH, "--sampler", "tpe", "--storage", "sqlite:///studies.db"),
        ("tables",),
        ("suites",),
        ("predict", "gemm_sm90", "--problem", PROBLEM),
        ("doctor", "--store", "store"),
        ("compile", "gemm_sm90", "--problem", PROBLEM, "--store", "store"),
    ],
    ids=lambda arguments: f"{arguments[0]} {arguments[-1]}",
)
def test_a_command(poisoned: "Scene", arguments: tuple[str, ...]) -> None:
    poisoned.survives(*arguments, codes=(0, 1) if arguments[0] == "doctor" else (0,))


@pytest.mark.slow
def test_commands_on_a_study(poisoned: "Scene", searched: Path) -> None:
    (journal,) = (searched / "store" / "studies").glob("*.journal")

    poisoned.survives("report", journal, "--out", "page.html", codes=(0,))
    poisoned.survives("export", "--study", journal, "--out", "bundle", codes=(0,))


@pytest.mark.slow
def test_a_comparison_on_several_processes(
    poisoned: "Scene", small_table: Table, copy_store: Callable[[Path], str]
) -> None:
    copy_store(poisoned.folder / "store")
    compare = ("compare", "--table", small_table.path, "--trials", "3", "--seeds", "2", "--processes", "2")
    poisoned.survives(*compare, "--samplers", "random,kernel_tuner.random_sample", "--store", "store", codes=(0,))


@pytest.mark.slow
def test_the_ui(poisoned: "Scene", searched: Path, held_port: Callable[[], AbstractContextManager[int]]) -> None:
    command = [str(TILESCOUT), "ui", "--store", str(searched / "store"), "--port"]
    with (
        held_port() as port,
        subprocess.Popen(
            [*command, str(port)],
            cwd=poisoned.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as server,
    ):
        deadline = time.monotonic() + 240
        while server.poll() is None and not _answers(port):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        server.send_signal(signal.SIGINT)
        said, _ = server.communicate(timeout=120)
    poisoned.check(subprocess.CompletedProcess(command, server.returncode, said, ""), 0)


def _answers(port: int) -> bool:
    with socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


# A program of somebody's own, in another folder, that is started in the directory; it looks for modules there only if
# it is told to.
PROGRAM = """
import os, sys

if __name__ == "__main__":
    sys.path[1:1] = sys.argv[1:]
    from tilescout.search.measure.process import MeasuringProcess

    with MeasuringProcess("cpu", 60.0) as process:
        print(process.describe()["name"])
"""


@pytest.mark.slow
def test_the_measuring_process_of_a_program(poisoned: "Scene", tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    poisoned.check(poisoned.run(sys.executable, program), 0)


ASK = """
from tilescout.costmodel import heuristics
from tilescout.spaces.errors import ModelError
from tilescout.spaces.gemm import GemmProblem

heuristics.is_installed = lambda: True
try:
    print(heuristics.suggest(GemmProblem(512, 512, 512), "h200"))
except ModelError as error:
    print(error)
"""


def test_the_process_of_the_heuristics(poisoned: "Scene", tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(ASK)

    done = poisoned.run(sys.executable, program)

    poisoned.check(done, 0)
    assert done.stdout


JOIN = """
import sys
from tilescout.search.engines.ray import joined

def places():
    import sys, redis
    return sys.path

if __name__ == "__main__":
    import ray
    with joined("auto"):
        try:
            print(ray.get(ray.remote(places).remote()))
        except ImportError as error:
            print(error)
        print("LISTENING", *sorted(listening(os.getpid())))
"""
LISTENING = """
import os
from contextlib import suppress
from pathlib import Path

def listening(parent):
    \"\"\"The addresses, as the kernel writes them, on which the processes below one accept connections.\"\"\"
    found, processes = set(), [parent]
    for process in processes:
        for thread in Path(f"/proc/{process}/task").glob("*/children"):
            processes += thread.read_text().split()
    sockets = set()
    for file in (each for pid in processes for each in Path(f"/proc/{pid}/fd").glob("*")):
        with suppress(OSError):  # it was just closed
            sockets.add(os.readlink(file))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                found.add(local.split(":")[0])
    return found
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same in IPv6, and ::1."""


@pytest.mark.slow
def test_the_processes_of_ray_which_listen_on_this_machine_alone(poisoned: "Scene", tmp_path: Path) -> None:
    pytest.importorskip("ray")
    program = tmp_path / "program.py"
    program.write_text(LISTENING + JOIN)

    done = poisoned.run(sys.executable, program, environment={"RAY_USAGE_STATS_ENABLED": "0"})

    poisoned.check(subprocess.CompletedProcess(done.args, done.returncode, done.stdout, ""), 0)
    assert "No module named 'redis'" in done.stdout
    listening = done.stdout.rpartition("LISTENING")[2].split()
    assert listening
    assert set(listening) <= LOOPBACK


@pytest.mark.slow
def test_a_space_that_is_named_is_found_behind_all_others(scene: "Scene") -> None:
    scene.plant(*HERE)
    (scene.folder / "own_kernel.py").write_text(EXAMPLE.read_text())

    scene.survives("compile", "own_kernel:RmsNorm", "--problem", "64x512:bf16", "--store", "store", codes=(0,))


def test_the_command_as_a_module_leaves_the_directory_out(scene: "Scene") -> None:
    # Python itself looks there for `tilescout`, and for what it needs until then: see SECURITY.md.
    scene.plant("redis", "colorama", "click", "rich", "numpy", "pyarrow")

    scene.check(scene.run(sys.executable, "-m", "tilescout.experiments", "tables"), 0)


@pytest.mark.slow
def test_the_directory_is_no_place_of_an_installed_package(scene: "Scene", copy_store: Callable[[Path], str]) -> None:
    copy_store(scene.folder / "store")
    information = scene.folder / "evil-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    groups = ("tilescout.spaces", "tilescout.samplers", "mlflow.request_header_provider", "mlflow.run_context_provider")
    claims = "".join(f"[{group}]\nevil = evil:Template\n" for group in groups)
    (information / "entry_points.txt").write_text(claims)
    source = "from tilescout.spaces.gemm_sm90.template import GemmSm90Template as Own\n"
    (scene.folder / "own.py").write_text(source)

    scene.survives("tune", "evil", *SEARCH, codes=(2,))
    scene.survives("tune", "own:Own", *SEARCH, "--sampler", "random", codes=(0,))


def test_an_interactive_python_passes_the_directory_on_as_the_last_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/somewhere"])
    assert module_places() == ["/somewhere", os.getcwd()]

    monkeypatch.setattr(sys, "path", ["/somewhere"])
    assert module_places() == ["/somewhere"]


def test_the_environment_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with safe_processes, safe_processes:
        assert os.environ["PYTHONSAFEPATH"]
    assert "PYTHONSAFEPATH" not in os.environ

    monkeypatch.setenv("PYTHONSAFEPATH", "of the user")
    with safe_processes:
        pass
    assert os.environ["PYTHONSAFEPATH"] == "of the user"


def test_a_spawned_process_looks_where_this_one_does_but_not_for_the_stand_ins_that_torch_has_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TorchInductor makes a place of an empty package ``cuda``: a compiler that finds it does not start."""
    monkeypatch.setattr(sys, "path", [*filter(None, sys.path), "/cache/torch_cutlass"])
    context = spawn_context()
    ours, theirs = context.Pipe()
    # Nothing of this module: it is not importable in a process that another pytest has started.
    process = context.Process(target=exec, args=("import sys; here.send(sys.path)", {"here": theirs}))
    process.start()
    assert ours.poll(120)
    assert ours.recv() == module_places() == sys.path[:-1]
    process.join()
