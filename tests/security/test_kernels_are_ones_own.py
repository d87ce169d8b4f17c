"""The bytes that are hashed are those that are loaded, from a folder that nobody else could have filled."""

import hashlib
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tilescout.search.build.artifacts import Artifact, ArtifactKey, ArtifactStore, read_shared_object
from tilescout.search.build.loading import load_launch, load_runtime_libraries, sealed_file
from tilescout.search.build.making import find_linker
from tilescout.search.engines.ray_worker import session_folder
from tilescout.search.export.bundle import INDEX, KERNELS, Bundle, Kernel, read_bundle, write_bundle
from tilescout.search.export.decisions import Choice, Decision, Evidence
from tilescout.spaces.errors import ArtifactError, BundleError, StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.resources import Resources
from tilescout.spaces.trust import check_folder

if TYPE_CHECKING:
    from conftest import Scene  # type: ignore[import-not-found]

KEY = ArtifactKey("space", "5a5a", Configuration.of({"tile": 64}), "bf16", "sm_90a", "4.8.1")
WORKLOAD = "tilescout.spaces.gemm:Gemm"
STRANGER = 54321
"""Number of a user and a group that nobody here is."""

SOURCE = """
#include <stdio.h>
int __tvm_ffi_run(void *a, const void *b, int c, void *d) { return 0; }
__attribute__((constructor)) static void loaded(void) {
    FILE *file = fopen("%s", "a");
    fputs("%s ", file);
    fclose(file);
}
"""


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.fixture
def make_library(tmp_path: Path, canary: Path) -> Callable[[str], Path]:
    """A function: a shared object with the entry point ``run`` that writes its name when it is loaded."""

    def make_library(name: str) -> Path:
        source, library = tmp_path / f"{name}.c", tmp_path / f"{name}.so"
        source.write_text(SOURCE % (canary, name))
        subprocess.run([find_linker(), "-shared", "-fPIC", "-o", library, source], check=True)
        return library

    return make_library


def exchange(path: Path, other: Path) -> None:
    """Put another file in the place of one."""
    other.replace(path)


def overwrite(path: Path, other: Path) -> None:
    """Write another file's bytes into one."""
    path.write_bytes(other.read_bytes())


def link(path: Path, other: Path) -> None:
    """Put a link to another file in the place of one."""
    path.unlink()
    path.symlink_to(other)


@pytest.mark.parametrize("swap", [exchange, overwrite, link])
def test_a_library_that_is_swapped_once_it_was_hashed(
    make_library: Callable[[str], Path],
    canary: Path,
    monkeypatch: pytest.MonkeyPatch,
    swap: Callable[[Path, Path], None],
) -> None:
    import tvm_ffi

    good, evil = make_library("good"), make_library("evil")
    sha256 = hashlib.sha256(good.read_bytes()).hexdigest()
    load_runtime_libraries()
    load_module = tvm_ffi.load_module

    def load_swapped(path: str) -> object:
        swap(good, evil)
        return load_module(path)

    monkeypatch.setattr(tvm_ffi, "load_module", load_swapped)

    load_launch(good, sha256, "run", WORKLOAD, 1)

    assert canary.read_text().split() == ["good"]


def test_what_is_about_to_be_loaded_can_not_be_written() -> None:
    with sealed_file(b"a library") as path:
        assert path.read_bytes() == b"a library"
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        for write in (lambda: path.write_bytes(b"another"), lambda: os.truncate(path, 0)):
            with pytest.raises(PermissionError):
                write()
        folder = path.parent
    assert not folder.exists()


def test_many_libraries_are_told_apart(make_library: Callable[[str], Path], canary: Path) -> None:
    names = [f"kernel{number}" for number in range(4)]
    for name in names:
        library = make_library(name)
        load_launch(library, hashlib.sha256(library.read_bytes()).hexdigest(), "run", WORKLOAD, 1)

    assert canary.read_text().split() == names


def give_away(path: Path) -> None:
    """Make another user the owner."""
    os.chown(path, STRANGER, -1)


def open_to_all(path: Path) -> None:
    """Let anybody write."""
    path.chmod(path.stat().st_mode | stat.S_IWOTH)


def open_to_a_group(path: Path) -> None:
    """Let a group write that is not the user's own."""
    os.chown(path, -1, STRANGER)
    path.chmod(path.stat().st_mode | stat.S_IWGRP)


OPENED = [
    open_to_all,
    *(
        pytest.param(opened, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away"))
        for opened in (give_away, open_to_a_group)
    ),
]
Opened = Callable[[Path], None]


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    made = ArtifactStore(tmp_path / "store" / "artifacts")
    with made.scratch() as scratch:
        (scratch / "kernel.so").write_bytes(b"a library")
        sha256 = hashlib.sha256(b"a library").hexdigest()
        made.publish(KEY, Artifact(Path("kernel.so"), sha256, "run", Resources(1, 0, 0), 1.0), scratch)
    return made


@pytest.mark.parametrize("opened", OPENED)
def test_a_store_that_others_fill(store: ArtifactStore, opened: Opened) -> None:
    opened(store.root)

    with pytest.raises(StoreError, match="can't trust"):
        ArtifactStore(store.root)


@pytest.mark.parametrize("opened", OPENED)
def test_a_record_that_others_wrote(store: ArtifactStore, opened: Opened) -> None:
    opened(store.folder(KEY) / "artifact.json")

    with pytest.raises(ArtifactError, match="can't trust"):
        store.find(KEY)


def test_an_artifact_in_the_place_of_another(store: ArtifactStore) -> None:
    other = ArtifactKey("space", "5a5a", Configuration.of({"tile": 128}), "bf16", "sm_90a", "4.8.1")
    store.folder(other).parent.mkdir()
    store.folder(KEY).rename(store.folder(other))

    assert store.find(other) is None


@pytest.mark.parametrize("link", ["artifact.json", "kernel.so"])
def test_a_link_in_the_place_of_a_file(store: ArtifactStore, tmp_path: Path, link: str) -> None:
    file = store.folder(KEY) / link
    file.rename(tmp_path / "moved")
    file.symlink_to(tmp_path / "moved")

    found = store.find(KEY)

    if link == "artifact.json":
        assert found is None
    else:
        assert found is not None
        with pytest.raises(ArtifactError, match="link"):
            read_shared_object(found.path, found.sha256)


def test_a_folder_that_anybody_may_replace(store: ArtifactStore) -> None:
    above = store.root.parent
    above.chmod(0o777)
    with pytest.raises(StoreError, match="chmod o-w"):
        ArtifactStore(store.root)

    above.chmod(0o1777)  # as /tmp: there nobody replaces what is another's
    assert ArtifactStore(store.root).find(KEY) is not None


def test_a_store_is_usable_under_any_mask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        tmp_path.joinpath("made").mkdir(mode=0o755)
        store = ArtifactStore(tmp_path / "made" / "artifacts")
        with store.scratch() as scratch:
            (scratch / "kernel.so").write_bytes(b"a library")
            store.publish(KEY, Artifact(Path("kernel.so"), "c0ffee", "run", None, 1.0), scratch)
    finally:
        os.umask(before)

    assert ArtifactStore(store.root).find(KEY) is not None


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    library, digest = tmp_path / "library", "0" * 64
    library.write_bytes(b"a library")
    kernel = Kernel(f"{KERNELS}/{digest}.so", hashlib.sha256(b"a library").hexdigest(), "run", WORKLOAD, 1, {})
    evidence = Evidence("a-study", "proven", 0.97, 0.96, 0.98, 12, "a test", {})
    decisions = [Decision(GemmProblem(64, 64, 64), Choice.OURS, evidence, digest)]
    return write_bundle(tmp_path / "bundle", "host", "h200", {}, decisions, {digest: (kernel, library)})


@pytest.mark.parametrize("opened", OPENED)
@pytest.mark.parametrize("part", [".", INDEX])
def test_a_bundle_that_others_wrote(bundle: Bundle, part: str, opened: Opened) -> None:
    opened(bundle.path / part)

    with pytest.raises(BundleError, match="can't trust"):
        read_bundle(bundle.path)


def test_a_bundle_that_anybody_may_replace(bundle: Bundle) -> None:
    bundle.path.parent.chmod(0o777)

    with pytest.raises(BundleError, match="anybody may write"):
        read_bundle(bundle.path)


def test_roots_files_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)

    check_folder(Path("/usr/bin"), StoreError)
    with pytest.raises(StoreError, match=r"can't trust .*belongs to|others may write"):
        check_folder(Path("/tmp"), StoreError)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The session of a cluster whose folder on this machine somebody else has made."""
    monkeypatch.setattr("tilescout.search.engines.ray_worker.gettempdir", lambda: str(tmp_path))
    (tmp_path / "tilescout-5e55").mkdir()
    open_to_all(tmp_path / "tilescout-5e55")
    return "5e55"


def test_the_folder_of_a_session_that_was_planted(planted: str) -> None:
    with pytest.raises(ArtifactError, match="can't trust"):
        session_folder(planted)


@pytest.mark.parametrize("opened", OPENED)
@pytest.mark.parametrize(
    "arguments",
    [
        ("tune", "gemm_sm90", "--problem", "1024x1024x1024:bf16", "--device", "replay", "--trials", "3"),
        ("compile", "gemm_sm90", "--problem", "1024x1024x1024:bf16"),
        ("export", "--out", "bundle"),
        ("report", "study"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_default_store_that_was_planted(forked_scene: "Scene", arguments: tuple[str, ...], opened: Opened) -> None:
    store = forked_scene.folder / ".tilescout"
    (store / "studies").mkdir(parents=True)
    opened(store)

    done = forked_scene.survives(*arguments, codes=(2,))

    assert "can't trust" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in store.iterdir()] == ["studies"]


def test_a_device_is_no_folder_and_nobody_is_told_to_change_its_mode() -> None:
    with pytest.raises(NotADirectoryError):
        check_folder(Path(os.devnull), StoreError)
