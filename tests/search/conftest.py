"""Tables of invented measurements, and kernels that are built on the spot: what needs no GPU."""

import ctypes
import importlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.search.tables.invented_card import card_of
from tilescout.search.build.artifacts import Artifact, ArtifactKey, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.build.loading import load_library
from tilescout.search.build.making import build
from tilescout.search.export.bundle import Bundle
from tilescout.search.measure.measurement import Clocks, Measurement, Raced, Status, Timing
from tilescout.search.measure.protocol import Objective, ProtocolOptions
from tilescout.search.measure.worker import Job
from tilescout.search.tables.card import Baseline, TableCard
from tilescout.search.tables.rows import Row
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.resources import Resources
from tilescout.spaces.templates import KernelTemplate, find_template

TEMPLATE = find_template("gemm_sm90")
DEVICE = DEVICES["h200"]
LIBRARY_US = {
    GemmProblem(4096, 4096, 4096): 195.0,
    GemmProblem(16, 4096, 4096): 9.5,
    GemmProblem(512, 512, 512, dtype="fp16"): 5.25,
}


def invent_measurement(rng: np.random.Generator, library_us: float) -> Measurement:
    """Five of eight are ok; the others fail before or after compiling, or are pruned."""
    resources = Resources(
        int(rng.integers(32, 256)),
        int(rng.integers(2) * 16),
        int(rng.integers(2**10, 2**17)),
        int(rng.integers(300, 3000)),
    )
    compiling, measuring = rng.uniform(0.3, 2), rng.uniform(0.01, 0.1)
    match rng.integers(8):
        case 0:
            return Measurement(Status.COMPILE_ERROR, "ptxas: too many registers", compile_seconds=compiling)
        case 1:
            return Measurement(
                Status.WRONG,
                "relative error 0.7",
                resources=resources,
                relative_error=0.7,
                compile_seconds=compiling,
                gpu_seconds=measuring,
                verify_seconds=measuring,
            )
    ratio = float(0.9 + rng.gamma(2.0))
    outcome = Measurement(
        Status.OK,
        timing=Timing(ratio, ratio * 0.99, ratio * 1.02, ratio * 0.995, ratio * 1.01, library_us, 7),
        raced=Raced(ratio * 1.003, ratio * 0.999, ratio * 1.008, 42) if ratio < 1.5 else None,
        pilot_us=ratio * library_us * rng.uniform(0.9, 1.2),
        resources=resources,
        clocks=Clocks(float(rng.integers(1200, 1981)), rng.uniform(300, 700), float(rng.integers(30, 80)), "power cap"),
        relative_error=rng.uniform(0, 3e-3),
        compile_seconds=compiling,
        gpu_seconds=measuring,
        verify_seconds=measuring / 3,
        pilot_seconds=measuring / 16,
    )
    if ratio > 4:
        spent = outcome.verify_seconds + outcome.pilot_seconds
        return replace(outcome, status=Status.PRUNED, timing=None, raced=None, gpu_seconds=spent)
    return outcome


def invent_rows(configurations: int, seed: int) -> list[Row]:
    """So many random configurations of the real space a problem."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for problem, library_us in LIBRARY_US.items():
        space = TEMPLATE.space(problem, DEVICE)
        chosen = rng.choice(len(space), configurations, replace=False)
        rows += [(space[int(index)], problem, invent_measurement(rng, library_us)) for index in chosen]
    return rows


@pytest.fixture(scope="session")
def invented_rows() -> list[Row]:
    """200 configurations a problem; some failed."""
    return invent_rows(200, seed=0)


@pytest.fixture(scope="session")
def invented_card(invented_rows: list[Row]) -> TableCard:
    """The card of `invented_rows`; the default of a problem is the first configuration that was tried."""
    first = {problem: configuration for configuration, problem, _ in reversed(invented_rows)}
    baselines = {problem: Baseline(Configuration.of(first[problem]), us) for problem, us in LIBRARY_US.items()}
    return card_of(TEMPLATE, DEVICE, baselines)


@pytest.fixture
def invented_table(tmp_path: Path, invented_card: TableCard, invented_rows: list[Row]) -> Table:
    """`invented_rows`, written and read back."""
    path = tmp_path / "invented.parquet"
    write_table(path, invented_card, invented_rows)
    return Table.read(path)


@pytest.fixture(scope="session")
def alter_template() -> Callable[..., KernelTemplate]:
    """A function: the real template with some members replaced, as a later release might have it."""

    def alter(**members: object) -> KernelTemplate:
        template = type("Altered", (type(TEMPLATE),), members)()
        assert isinstance(template, KernelTemplate)
        return template

    return alter


@pytest.fixture(scope="session")
def rows_on_host() -> ModuleType:
    """The package `rows_on_host`, importable here and in the processes that are started from here."""
    return importlib.import_module("rows_on_host")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, copy_store: Callable[[Path], str]) -> str:
    """The URI of an MLflow store that the tests of a module add to."""
    return copy_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def children() -> Callable[[], set[int]]:
    """A function: the processes below this one, but for the tracker that multiprocessing keeps until the end."""

    def children(parent: int | str = "self") -> set[int]:
        found = set()
        for listing in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                for pid in listing.read_text().split():
                    if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found |= {int(pid)} | children(pid)
        return found

    return children


@pytest.fixture(scope="session")
def build_plain(plain_gemm: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Artifact]:
    """A function: the plain GEMM with a fault, built in this process, once."""
    store = ArtifactStore(tmp_path_factory.mktemp("plain"))

    def build_plain(fault: str = "nothing", repeats: int = 1, arch: str = "host") -> Artifact:
        configuration = Configuration.of({"fault": fault, "repeats": repeats})
        key = ArtifactKey.of(plain_gemm.TEMPLATE, configuration, "bf16", arch)
        return store.find(key) or build(plain_gemm.TEMPLATE, key, store)

    return build_plain


@pytest.fixture(scope="session")
def job_of() -> Callable[..., Job]:
    """A function: the job of measuring an artifact on a problem, with little time spent on heating."""

    def job_of(artifact: Artifact, problem: str = "64x64x64", incumbent: float | None = None, **options: Any) -> Job:
        return Job(
            shared_object=str(artifact.path),
            sha256=artifact.sha256,
            function=artifact.function,
            workload="tilescout.spaces.gemm:Gemm",
            problem=problem,
            blocks_per_cluster=1,
            library_us=None,
            options=ProtocolOptions(**{"objective": Objective.CHAIN, "heating_us": 1000.0, **options}),
            incumbent=incumbent,
        )

    return job_of


@pytest.fixture(scope="session")
def compiled_gemm(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The default configuration of the real template, compiled for bf16."""
    store = ArtifactStore(tmp_path_factory.mktemp("gemm"))
    default = TEMPLATE.default(GemmProblem(4096, 4096, 4096), DEVICE)
    with CompilePool(TEMPLATE, "bf16", DEVICE.arch, store, CompileOptions(processes=1)) as pool:
        artifact = pool.submit(default).result()
    assert isinstance(artifact, Artifact), artifact.error
    return artifact


@pytest.fixture(scope="session")
def calls() -> Callable[[Bundle], int]:
    """A function: how often this process has run the kernel of a bundle; the kernel counts."""

    def calls(bundle: Bundle) -> int:
        (kernel,) = bundle.kernels.values()
        library = load_library(bundle.path / kernel.file, kernel.sha256)
        return ctypes.c_int64.in_dll(ctypes.CDLL(library.name), "calls").value

    return calls


@pytest.fixture
def fresh_inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache for compiled code, and none of the code that earlier tests compiled."""
    import torch

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()


def _postgres_programs() -> Path | None:
    """The folder of PostgreSQL's programs; None where it is not installed."""
    found = shutil.which("postgres")
    installed = [Path(found).resolve()] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return installed[-1].parent if installed else None


class PostgresServer:
    """A PostgreSQL server with the databases `studies`, `outages` and `mlflow`, which can be killed and started again.

    It refuses to run as root, and is run as another user then, who can't enter the folders that pytest makes.

    Attributes
    ----------
    address
        The address of a database, with {} for its name.
    """

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._files = Path(tempfile.mkdtemp(prefix="tilescout-postgres-"))
        self._user: dict[str, int] = {}
        if os.geteuid() == 0:
            known = {entry.pw_name for entry in pwd.getpwall()}
            account = pwd.getpwnam("postgres" if "postgres" in known else "nobody")
            self._user = {"user": account.pw_uid, "group": account.pw_gid}
            os.chown(self._files, account.pw_uid, account.pw_gid)
        self._run("initdb", "--auth=trust", "--username=tester", "--no-sync", "--encoding=UTF8", "-D", self._data)
        self.address = f"postgresql+psycopg://tester@/{{}}?host={self._files}"
        self.start()
        for name in ("studies", "outages", "mlflow"):
            self._ask(f"CREATE DATABASE {name}")

    @property
    def _data(self) -> Path:
        return self._files / "data"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = ["-D", self._data, "-k", self._files, "-c", "listen_addresses=", "-c", "fsync=off"]
        options += ["-c", "shared_buffers=16MB"]
        with self._files.with_suffix(".log").open("ab") as log:
            command = [self._programs / "postgres", *options]
            self._server = subprocess.Popen(command, stderr=log, cwd=self._files, **self._user)  # type: ignore[call-overload]
        deadline = time.monotonic() + 120
        while not self._ask("SELECT 1", check=False):
            assert self._server.poll() is None, self._files.with_suffix(".log").read_text()
            assert time.monotonic() < deadline, "PostgreSQL does not answer"
            time.sleep(0.1)

    def kill(self) -> None:
        """End it at once, as a crash does; what was committed is kept."""
        self._server.send_signal(signal.SIGQUIT)  # SIGKILL would leave its other processes
        self._server.wait(60)

    def remove(self) -> None:
        """End it for good."""
        self._server.send_signal(signal.SIGINT)  # on SIGTERM it would wait for its clients
        self._server.wait(60)
        shutil.rmtree(self._files, ignore_errors=True)
        self._files.with_suffix(".log").unlink(missing_ok=True)

    def _ask(self, statement: str, check: bool = True) -> bool:
        return self._run("psql", "-h", self._files, "-U", "tester", "-d", "postgres", "-qc", statement, check=check)

    def _run(self, program: str, *arguments: str | Path, check: bool = True) -> bool:
        command = [self._programs / program, *arguments]
        return not subprocess.run(  # type: ignore[call-overload]
            command, check=check, capture_output=True, cwd=self._files, **self._user
        ).returncode


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server; a test that kills it starts it again."""
    binaries = _postgres_programs()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed: there is no `postgres` on the PATH nor in /usr/lib/postgresql")
    server = PostgresServer(binaries)
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres(postgres_server: PostgresServer) -> str:
    """The address of the databases of a PostgreSQL server, with {} for the name."""
    return postgres_server.address
