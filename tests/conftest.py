"""Tests marked `gpu` run where there is a Hopper GPU and skip everywhere else; properties may take their time."""

import gc
import getpass
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import hypothesis
import pytest

from tilescout.experiments.commands.cli import main
from tilescout.search.build.standby import running
from tilescout.search.tracking import default_store
from tilescout.search.tracking.store import open_client, quiet_mlflow
from tilescout.spaces import devices, plugins, templates

ROOT = Path(__file__).parents[1]

# TorchInductor's C++ without vector instructions: to learn which of them this machine has, each process would compile a
# program for every kind that there is, 12 s of CPU.
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"

# Ray's workers at niceness 0, not 15: beside other tests on both cores they would wait for all that those do. Its tests
# took 102 s beside two busy loops on 2 cores, and 41 s so (2026-11-28).
os.environ.setdefault("RAY_worker_niceness", "0")

# Processes that stand by are found again while places of modules and some variables stay as they are. So packages of
# kernels have their place from the start, and the variables the values that imports of sklearn and torch would set.
KERNELS = str(Path(__file__).parent / "search" / "kernels")
if KERNELS not in sys.path:  # xdist hands on the places of the process that starts the others
    sys.path.insert(0, KERNELS)
os.environ.setdefault("KMP_INIT_AT_FORK", "FALSE")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}")

# The files of the tests are kept in memory where there is room, and kernels may be loaded from there: each commit of a
# database waits for the disk, 17 ms where one in memory takes 0.2.
MEMORY = "/dev/shm"
with suppress(OSError):
    found = os.statvfs(MEMORY)
    if found.f_bavail * found.f_frsize >= 4 << 30 and not found.f_flag & os.ST_NOEXEC and os.access(MEMORY, os.W_OK):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# What is imported and collected stays: to look through it for garbage, again and again, took 7 of the 18 s of CPU that
# each process needs to collect the tests.
gc.disable()

# A shell's background jobs, and what they start, ignore Ctrl-C; here it is heard, wherever the tests run.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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
    # Files with slow tests first: where files run side by side, none of these is left to one process at the end.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not has_hopper():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU of compute capability 9.0"))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def same_places() -> Iterator[None]:
    """Where modules are looked for is the same for each file of tests: importing ray, for one, adds a place."""
    before = sys.path.copy()
    yield
    sys.path[:] = before


@pytest.fixture(scope="session")
def fake_cublaslt() -> ModuleType:
    """The package `fake_cublaslt`, importable here and in the processes that are started from here."""
    return importlib.import_module("fake_cublaslt")


@pytest.fixture(scope="module")
def host_library(fake_cublaslt: ModuleType) -> Iterator[ModuleType]:
    """`fake_cublaslt`, whose space and device are found by their names while the tests of a module run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(templates._BUILT_IN, "host_cublaslt", "fake_cublaslt:TEMPLATE")
        patch.setitem(devices.DEVICES, "host", fake_cublaslt.HOST)
        yield fake_cublaslt


@pytest.fixture(scope="session")
def held_port() -> Callable[[], AbstractContextManager[int]]:
    """A function: a port of this machine that a server can be told to listen at, and that nobody else is given."""

    @contextmanager
    def held_port() -> Iterator[int]:
        with socket.socket() as holder:  # it does not listen, so that who names the port may, and allows that
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            yield holder.getsockname()[1]

    return held_port


@pytest.fixture(scope="session")
def plain_gemm() -> ModuleType:
    """The package `plain_gemm`, importable here and in the processes that are started from here."""
    return importlib.import_module("plain_gemm")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SQLite file of an MLflow store without runs: MLflow takes a second to make one, or ten on a slow disk."""
    folder = tmp_path_factory.mktemp("empty")
    uri, _ = default_store(folder)
    with quiet_mlflow():
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


COMMAND = """
import gc, os, sys
gc.freeze()
os.chdir({folder!r})
for number, path in enumerate({outputs!r}, 1):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
sys.argv = ["tilescout", *{arguments!r}]
from tilescout.search.tracking.standing import logger
logger.PATIENCE_SECONDS = 60.0
from tilescout.experiments.commands.cli import main
main()
"""


@pytest.fixture(scope="session", autouse=True)
def patient() -> Iterator[None]:
    """Searches wait for a process that logs to start, however busy the machine is: tests look at what it logged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilescout.search.tracking.standing.logger.PATIENCE_SECONDS", 60.0)
        yield


@pytest.fixture(scope="session")
def start_command(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[ForkServerProcess, Sequence[Path]]]:
    """A function: start ``tilescout`` in a folder; gives the process and the files with its output and errors.

    It is forked off a process that has imported what commands import: to do that anew takes seconds, each time.
    """
    server = get_context("forkserver")
    ours = [
        path for room in ("costmodel", "search", "experiments/commands") for path in sorted((ROOT / room).rglob("*.py"))
    ]
    server.set_forkserver_preload(
        [
            *(
                ".".join(("tilescout", *path.relative_to(ROOT).with_suffix("").parts))
                for path in ours
                if path.stem[0] != "_"
            ),
            "matplotlib.pyplot",
            "mlflow.store.tracking.sqlalchemy_store",
            "optuna",
            "pyarrow.parquet",
            "sklearn.ensemble",
            "torch",
        ]
    )

    def start_command(folder: Path, *arguments: object) -> tuple[ForkServerProcess, Sequence[Path]]:
        printed = tmp_path_factory.mktemp("printed")
        outputs = [printed / "stdout", printed / "stderr"]
        code = COMMAND.format(folder=str(folder), outputs=list(map(str, outputs)), arguments=list(map(str, arguments)))
        process = server.Process(target=exec, args=(code,))
        process.start()
        return process, outputs

    return start_command


@pytest.fixture(scope="session")
def run_command(
    start_command: Callable[..., tuple[ForkServerProcess, Sequence[Path]]],
) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """A function: run ``tilescout`` in a folder, in a process of its own, see `start_command`."""

    def run_command(folder: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
        process, outputs = start_command(folder, *arguments)
        process.join()
        assert process.exitcode is not None
        return subprocess.CompletedProcess(
            list(map(str, arguments)), process.exitcode, *(path.read_text() for path in outputs)
        )

    return run_command


@pytest.fixture
def own_standing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the sockets of what stands by for a test alone, and ends with it."""
    with TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket has 107 bytes at most
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder, "tilescout")
        for each in running():
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)


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
    """A function: install a distribution that registers one name; its module holds a template, or the given source."""
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(plugins, "_registry", plugins._registry.__wrapped__)  # it is asked once a process

    def install(
        distribution: str, name: str, source: str = "", attribute: str = "Template", group: str = plugins.SPACES
    ) -> None:
        module = distribution.replace("-", "_")
        information = folder / f"{module}-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:{attribute}\n")
        (folder / f"{module}.py").write_text(source or TEMPLATE.format(name=name))

    return install


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function: run ``tilescout`` with arguments, which must leave with a code, 0 unless told otherwise."""

    def run(*arguments: str, code: int = 0) -> None:
        monkeypatch.setattr(sys, "argv", ["tilescout", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code

    return run
