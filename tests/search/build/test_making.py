"""Making one artifact: which failures are recorded as the configuration's, and which pass."""

import errno
import os
import signal
from pathlib import Path
from subprocess import CalledProcessError
from types import ModuleType

import pytest

from tilescout.search.build.artifacts import ArtifactKey, ArtifactStore
from tilescout.search.build.making import build
from tilescout.spaces.errors import BuildError, StoreError
from tilescout.spaces.knobs import Configuration


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


@pytest.fixture
def key(plain_gemm: ModuleType) -> ArtifactKey:
    return ArtifactKey.of(plain_gemm.TEMPLATE, Configuration.of({"fault": "nothing", "repeats": 1}), "bf16", "host")


def test_a_linker_that_is_killed_below_the_compiler_is_not_recorded_as_the_configurations_fault(
    plain_gemm: ModuleType, store: ArtifactStore, key: ArtifactKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linker = tmp_path / "ld"
    linker.write_text("#!/bin/sh\nkill -KILL $$\n")
    linker.chmod(0o755)

    with monkeypatch.context() as patch:
        patch.setenv("COMPILER_PATH", str(tmp_path))
        with pytest.raises(MemoryError, match=r"linking failed: .*Killed"):
            build(plain_gemm.TEMPLATE, key, store)

    assert store.find(key) is None
    assert build(plain_gemm.TEMPLATE, key, store).ok


def test_a_compiler_that_crashes_is_recorded(
    plain_gemm: ModuleType, store: ArtifactStore, key: ArtifactKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crashing(*arguments: object) -> None:
        raise BuildError("gcc: fatal error: Segmentation fault signal terminated program cc1")

    monkeypatch.setattr(plain_gemm.PlainGemmTemplate, "build", crashing)

    assert build(plain_gemm.TEMPLATE, key, store).error.endswith("Segmentation fault signal terminated program cc1")


@pytest.mark.parametrize(
    ("cause", "raised"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), StoreError),
        (MemoryError("no more"), MemoryError),
        (RuntimeError("ld: final link failed: No space left on device"), StoreError),
        (RuntimeError("collect2: fatal error: ld terminated with signal 9 [Killed]"), MemoryError),
        (RuntimeError("gcc: fatal error: Terminated signal terminated program cc1"), MemoryError),
        (RuntimeError("nvcc error   : 'ptxas' died due to signal 15 (Software termination signal)"), MemoryError),
        (RuntimeError("clang: error: unable to execute command: Killed"), MemoryError),
        (CalledProcessError(-signal.SIGKILL, ["ptxas", "kernel.ptx"]), MemoryError),
    ],
    ids=["disk full", "memory", "printed", "linker killed", "compiler ended", "nvcc", "clang", "Python"],
)
def test_a_shortage_is_not_recorded_as_the_configurations_fault(
    plain_gemm: ModuleType,
    store: ArtifactStore,
    key: ArtifactKey,
    monkeypatch: pytest.MonkeyPatch,
    cause: Exception,
    raised: type[Exception],
) -> None:
    def build_in_need(*arguments: object) -> None:
        try:
            raise cause
        except Exception as error:
            raise BuildError(str(error)) from error

    monkeypatch.setattr(plain_gemm.PlainGemmTemplate, "build", build_in_need)

    with pytest.raises(raised):
        build(plain_gemm.TEMPLATE, key, store)
    assert store.find(key) is None
